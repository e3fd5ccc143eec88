"""The dispatcher ops: schemas, what CPU tensors run, shapes for tracing, and the way to the C++ kernels.

``comfuse::region`` runs any spec; ``comfuse::region_1.t0`` to ``.t6`` run one with that many tensor operands,
one output and at most two scalars, at the lowest cost a call.  On CUDA the binding implements them in C++; it
is loaded at the first call, so that importing ComFuse compiles nothing.  On a CPU they evaluate the spec in
float32. ``comfuse::region_reference`` evaluates a spec on any device and counts that as a fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from comfuse import fallbacks, reference
from comfuse.errors import ComFuseError
from comfuse.generator.spec import Space
from comfuse.ops import native, programs, resolver

MAX_FIXED = 6  # tensor operands of the fixed-arity forms
FIXED_SCALARS = 2

_LIBRARY = torch.library.Library("comfuse", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_GENERAL = "(str spec, Tensor a, Tensor b, Tensor[] operands, float[] scalars) -> Tensor[]"


def _fixed(count: int) -> str:
    operands = "".join(f", Tensor t{i}" for i in range(count))
    return f"(str spec, Tensor a, Tensor b{operands}, float s0=0., float s1=0.) -> Tensor"


def _evaluate(
    spec: str, a: Tensor, b: Tensor, operands: Sequence[Tensor], scalars: Sequence[float]
) -> list[Tensor]:
    program = programs.parse(spec)
    program.check(a, b, operands, scalars)
    with torch.no_grad():
        return reference.evaluate(program.spec, a, b, operands, scalars[: program.scalar_count])


def _fall_back(
    spec: str, a: Tensor, b: Tensor, operands: Sequence[Tensor], scalars: Sequence[float]
) -> list[Tensor]:
    fallbacks.record("comfuse::region", resolver.reason(spec, a))
    return _evaluate(spec, a, b, operands, scalars)


def _shapes(
    spec: str, a: Tensor, b: Tensor, operands: Sequence[Tensor], scalars: Sequence[float]
) -> list[Tensor]:
    program = programs.parse(spec)
    program.check(a, b, operands, scalars)
    return [
        a.new_empty(
            (*a.shape[:-1], program.spec.n) if space is Space.TILE else a.shape[:-1],
            dtype=reference.TORCH_DTYPES[output.dtype],
        )
        for output, space in zip(program.spec.outputs, program.output_spaces, strict=True)
    ]


def _first_call(
    op: torch._ops.OpOverload, evaluate: Callable[..., list[Tensor]]
) -> Callable[..., Tensor | list[Tensor]]:
    """What runs where neither CPU nor C++ has a kernel: the first CUDA call, and other kinds of devices."""
    name = op.name()

    def call(*arguments: object) -> Tensor | list[Tensor]:
        a = arguments[1]
        assert isinstance(a, Tensor)
        if native.reason_against(a) is None and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
            return op(*arguments)
        return evaluate(*arguments)

    return call


def _define(
    name: str, schema: str, unpack: Callable[..., tuple[list[Tensor], list[float]]], single: bool
) -> None:
    """Defines one op; ``unpack`` maps the arguments after a and b to operands and scalars."""

    def form(general: Callable[..., list[Tensor]]) -> Callable[..., Tensor | list[Tensor]]:
        def call(spec: str, a: Tensor, b: Tensor, *rest: object) -> Tensor | list[Tensor]:
            results = general(spec, a, b, *unpack(*rest))
            return results[0] if single else results

        return call

    _LIBRARY.define(name + schema, tags=_TAGS)
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.comfuse, packet), overload or "default")
    torch.library.register_fake(f"comfuse::{name}", form(_shapes), lib=_LIBRARY)
    _LIBRARY.impl(name, form(_evaluate), "CPU")
    # A kernel that the binding registers for CUDA comes before this one.
    _LIBRARY.impl(name, _first_call(op, form(_fall_back)), "CompositeExplicitAutograd")


def _unpack_fixed(*rest: object) -> tuple[list[Tensor], list[float]]:
    operands = [x for x in rest if isinstance(x, Tensor)]
    scalars = [float(x) for x in rest[len(operands) :]]  # type: ignore[arg-type]
    return operands, scalars + [0.0] * (FIXED_SCALARS - len(scalars))


def _unpack_general(operands: list[Tensor], scalars: list[float]) -> tuple[list[Tensor], list[float]]:
    return operands, scalars


_define("region", _GENERAL, _unpack_general, single=False)
for _count in range(MAX_FIXED + 1):
    _define(f"region_1.t{_count}", _fixed(_count), _unpack_fixed, single=True)
_LIBRARY.define("region_reference" + _GENERAL, tags=_TAGS)
torch.library.register_fake("comfuse::region_reference", _shapes, lib=_LIBRARY)
_LIBRARY.impl("region_reference", _fall_back, "CompositeExplicitAutograd")

#: By number of tensor operands.
FIXED: tuple[torch._ops.OpOverload, ...] = tuple(
    getattr(torch.ops.comfuse.region_1, f"t{count}") for count in range(MAX_FIXED + 1)
)
GENERAL: torch._ops.OpOverload = torch.ops.comfuse.region.default


def region(
    spec: str, a: Tensor, b: Tensor, operands: Sequence[Tensor] = (), scalars: Sequence[float] = ()
) -> list[Tensor]:
    """Runs a spec, given as its canonical text, as one fused kernel.

    Args:
        spec: ``FusedSpec.text()``.
        a: (..., K) in the spec's dtype.  One whose rows cannot be walked with a single stride, or that is not
            aligned to 16 bytes, is copied first (counted); the same holds for ``b`` and for tile operands.
        b: (N, K) in the spec's dtype.
        operands: the non-scalar operands in order, in the spec's dtypes: (..., N) with a's leading sizes or
            (M, N) for a tile, (N,) for a row vector, (...,), (..., 1) or (M,) for a column vector.
        scalars: the scalar operands in order.

    Returns:
        One tensor an output: (..., N) or, for a column vector, (...,).

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: an argument does not fit the spec.
        SpecError: the spec is malformed.
        BuildError, CacheError, LoadError, LaunchError: its kernel cannot be built or run.
        FallbackError: it cannot be fused here and ``COMFUSE_STRICT`` is 1.
    """
    single = len(operands) <= MAX_FIXED and len(scalars) <= FIXED_SCALARS and programs.parse(spec).is_single
    try:
        if single:
            return [FIXED[len(operands)](spec, a, b, *operands, *scalars)]
        return GENERAL(spec, a, b, list(operands), list(scalars))
    except ComFuseError:
        raise
    except RuntimeError as e:
        raise resolver.translate(e, "region") from None
