"""The dispatcher ops: schemas, what CPU tensors run, shapes for tracing, and the way to the C++ kernels.

``comfuse::region`` runs any spec or chain.  ``comfuse::region_1.t0`` to ``.t6`` run one with that many tensor
operands, one output and at most two scalars, at the lowest cost a call; ``comfuse::region_2.t0`` to ``.t6``
one with two outputs.  ``comfuse::region.alone`` takes no operands: AOTInductor cannot pass an empty list of
tensors.  ``comfuse::region_out`` writes to tensors of the caller's.  On CUDA the binding
implements them in C++; it is loaded at the first call, so that importing ComFuse compiles nothing.  On a CPU
they evaluate the spec in float32.  ``comfuse::region_reference`` evaluates a spec on any device, or runs the
links of a chain as regions of their own, and counts that as a fallback of the named op, if the text is that
of one (:func:`comfuse.ops.programs.name_of`).

None of them has a gradient, and none a kernel for autograd: one in Python would cost every call more than its
launch, gradients or not, and the binding's stable interface cannot ask a tensor for its own.  So the
dispatcher marks the results of inputs that require one, by which ``comfuse.ops.region`` refuses them; whoever
calls the dispatcher ops themselves gets torch's warning at the backward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from comfuse import fallbacks, reference
from comfuse.generator.spec import FusedSpec
from comfuse.ops import checks, faults, native, programs, resolver

MAX_FIXED = 6  # tensor operands of the fixed-arity forms
FIXED_OUTPUTS = (1, 2)
FIXED_SCALARS = 2

_LIBRARY = torch.library.Library("comfuse", "FRAGMENT")
_OPERAND = re.compile(r"t(\d)")  # in the fixed-arity forms
_TAGS = (torch.Tag.pt2_compliant_tag,)
_ARGUMENTS = "str spec, Tensor a, Tensor b, Tensor[] operands, float[] scalars"

Tensors = Sequence[Tensor]
#: What all forms do, each with its own arguments: (spec, a, b, operands, scalars) to the outputs.
General = Callable[[str, Tensor, Tensor, Tensors, Sequence[float]], list[Tensor]]


def schemas() -> dict[str, str]:
    """The schema of every op that the binding implements, by its name."""
    result = {
        "region": f"({_ARGUMENTS}) -> Tensor[]",
        "region.alone": "(str spec, Tensor a, Tensor b, float[] scalars) -> Tensor[]",
        "region_out": f"({_ARGUMENTS}, Tensor(a!)[] out) -> ()",
    }
    for outputs in FIXED_OUTPUTS:
        returns = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
        for count in range(MAX_FIXED + 1):
            operands = "".join(f", Tensor t{i}" for i in range(count))
            arguments = f"(str spec, Tensor a, Tensor b{operands}, float s0=0., float s1=0.)"
            result[f"region_{outputs}.t{count}"] = f"{arguments} -> {returns}"
    return result


def _evaluate(spec: str, a: Tensor, b: Tensor, operands: Tensors, scalars: Sequence[float]) -> list[Tensor]:
    program = programs.parse(spec)
    checks.check(program, a, b, operands, scalars)
    factors, rest = program.split(b, operands)
    numbers = [float(s) for s in scalars[: program.scalar_count]]
    with torch.no_grad():
        if isinstance(program.spec, FusedSpec):
            return reference.evaluate(program.spec, a, factors, rest, numbers)
        return reference.evaluate_chain(program.spec, a, factors, rest, numbers)


def _fall_back(spec: str, a: Tensor, b: Tensor, operands: Tensors, scalars: Sequence[float]) -> list[Tensor]:
    if a.shape[:-1].numel() > 0:  # otherwise no kernel would have anything to do
        fallbacks.record(programs.name_of(spec), resolver.reason(spec, a))
    if programs.parse(spec).is_chain:
        return _link_by_link(spec, a, b, operands, scalars)
    return _evaluate(spec, a, b, operands, scalars)


def _link_by_link(
    spec: str, a: Tensor, b: Tensor, operands: Tensors, scalars: Sequence[float]
) -> list[Tensor]:
    """A chain that is no kernel as one region a link, each of which may be a kernel."""
    program = programs.parse(spec)
    checks.check(program, a, b, operands, scalars)
    results = [a]
    arguments, numbers = [b, *operands], list(scalars[: program.scalar_count])
    with torch.no_grad():
        for link in map(programs.Program.of, program.links):
            count = len(link.factors) + len(link.tensors)
            own, arguments = arguments[:count], arguments[count:]
            of_link, numbers = numbers[: link.scalar_count], numbers[link.scalar_count :]
            text = programs.called(link.links[0].text(), programs.name_of(spec))
            results = GENERAL(text, results[0], own[0], own[1:], of_link)
    return results


def _shapes(spec: str, a: Tensor, b: Tensor, operands: Tensors, scalars: Sequence[float]) -> list[Tensor]:
    program = programs.parse(spec)
    checks.check(program, a, b, operands, scalars)
    shapes = program.output_shapes(a.shape[:-1])
    return [
        a.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, program.output_dtypes, strict=True)
    ]


def _into(general: General) -> Callable[..., None]:
    """``general``, for region_out."""

    def call(
        spec: str, a: Tensor, b: Tensor, operands: Tensors, scalars: Sequence[float], out: Tensors
    ) -> None:
        program = programs.parse(spec)
        checks.check(program, a, b, operands, scalars)
        checks.check_outputs(program, a, out)
        checks.check_places(program, a, b, operands, out)
        for tensor, value in zip(out, general(spec, a, b, operands, scalars), strict=True):
            tensor.copy_(value)

    return call


def _shapes_into(
    spec: str, a: Tensor, b: Tensor, operands: Tensors, scalars: Sequence[float], out: Tensors
) -> None:
    program = programs.parse(spec)
    checks.check(program, a, b, operands, scalars)
    checks.check_outputs(program, a, out)


def _fixed(outputs: int) -> Callable[[General], Callable[..., Any]]:
    """The forms of a fixed number of operands and outputs."""

    def form(general: General) -> Callable[..., Tensor | tuple[Tensor, ...]]:
        def call(spec: str, a: Tensor, b: Tensor, *rest: Any) -> Tensor | tuple[Tensor, ...]:
            operands = [x for x in rest if isinstance(x, Tensor)]
            scalars = list(rest[len(operands) :])
            checks.check_count("outputs", outputs, len(programs.parse(spec).outputs))
            results = general(spec, a, b, operands, scalars + [0.0] * (FIXED_SCALARS - len(scalars)))
            return results[0] if outputs == 1 else tuple(results)

        return call

    return form


def _first_call(op: torch._ops.OpOverload, evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """What runs where neither CPU nor C++ has a kernel: the first CUDA call, and other kinds of devices."""
    name = op.name()

    def call(*arguments: Any) -> Any:
        _check_layouts(op, arguments)
        a = arguments[1]
        if native.reason_against(a) is None and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
            return op(*arguments)
        return evaluate(*arguments)

    return call


def _check_layouts(op: torch._ops.OpOverload, arguments: Sequence[Any]) -> None:
    """Raises ArgumentError for a sparse tensor, which comes here whatever its device has kernels for."""
    for argument, value in zip(op._schema.arguments, arguments, strict=False):
        if isinstance(value, Tensor):
            faults.check_layout(_OPERAND.sub(r"operands[\1]", argument.name), value)
        elif isinstance(value, list | tuple):
            for i, x in enumerate(value):
                faults.check_layout(f"{argument.name}[{i}]", x)


def _define(name: str, schema: str, form: Callable[[General], Callable[..., Any]]) -> torch._ops.OpOverload:
    _LIBRARY.define(name + schema, tags=_TAGS)
    packet, _, overload = name.partition(".")
    op: torch._ops.OpOverload = getattr(getattr(torch.ops.comfuse, packet), overload or "default")
    fake = _shapes_into if form is _into else form(_shapes)
    torch.library.register_fake(f"comfuse::{name}", fake, lib=_LIBRARY)
    _LIBRARY.impl(name, form(_evaluate), "CPU")
    # A kernel that the binding registers for CUDA comes before this one.
    _LIBRARY.impl(name, _first_call(op, form(_fall_back)), "CompositeExplicitAutograd")
    return op


def _itself(general: General) -> Callable[..., Any]:
    return general


def _alone(general: General) -> Callable[..., Any]:
    def call(spec: str, a: Tensor, b: Tensor, scalars: Sequence[float]) -> list[Tensor]:
        return general(spec, a, b, [], scalars)

    return call


def _define_all() -> dict[str, torch._ops.OpOverload]:
    ops = {}
    for name, schema in schemas().items():
        form = {"region": _itself, "region.alone": _alone, "region_out": _into}.get(name)
        form = form or _fixed(int(name.partition(".")[0][-1]))
        ops[name] = _define(name, schema, form)
    _LIBRARY.define(f"region_reference({_ARGUMENTS}) -> Tensor[]", tags=_TAGS)
    torch.library.register_fake("comfuse::region_reference", _shapes, lib=_LIBRARY)
    _LIBRARY.impl("region_reference", _fall_back, "CompositeExplicitAutograd")
    return ops


_OPS = _define_all()
GENERAL: torch._ops.OpOverload = _OPS["region"]
ALONE: torch._ops.OpOverload = _OPS["region.alone"]
OUT: torch._ops.OpOverload = _OPS["region_out"]
#: By number of outputs, then by number of tensor operands.
FIXED: dict[int, tuple[torch._ops.OpOverload, ...]] = {
    outputs: tuple(_OPS[f"region_{outputs}.t{count}"] for count in range(MAX_FIXED + 1))
    for outputs in FIXED_OUTPUTS
}
