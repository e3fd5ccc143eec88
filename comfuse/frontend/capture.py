"""From a Python function and example inputs to a flat aten graph, without touching a device."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.traceback
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from comfuse.errors import ArgumentError, DeviceError
from comfuse.frontend import views
from comfuse.frontend.decompositions import DECOMPOSED
from comfuse.frontend.errors import TraceError
from comfuse.frontend.handlers import explain_unknown, is_mutation
from comfuse.frontend.source import LocationRecorder, failed_at

aten = torch.ops.aten

CONSTANT_TYPES = (bool, int, str, type(None), torch.dtype)


@dataclass(frozen=True)
class Captured:
    """A function as an aten graph.

    Attributes:
        graph: free of mutations and dead code.
        constants: the module whose attributes the graph's ``get_attr`` nodes name.
        names: the name of each argument, by its position.
        arguments: the position of the argument behind each placeholder.
        scalars: positions of Python floats that are run-time scalars (0-dim placeholders in the graph).
        outputs: the graph's results, flat.
        structure: how the function packed its results.
        device: the type of the device whose kernels read a tensor of one number; the host reads all others.
        named: whether values are called what the user's source calls them.
    """

    graph: torch.fx.Graph
    constants: torch.nn.Module
    names: tuple[str, ...]
    arguments: dict[torch.fx.Node, int]
    scalars: frozenset[int]
    outputs: tuple[torch.fx.Node, ...]
    structure: pytree.TreeSpec
    device: str = "cuda"
    named: bool = True

    def constant(self, node: torch.fx.Node) -> torch.Tensor | None:
        """The tensor that a ``get_attr`` node names; None if its numbers are not known."""
        tensor = getattr(self.constants, str(node.target))
        return getattr(tensor, "constant", None) if hasattr(tensor, "fake_mode") else tensor


def capture(fn: Callable[..., Any], inputs: Sequence[Any], mode: FakeTensorMode | None = None) -> Captured:
    """Captures ``fn(*inputs)``.

    Tensors may be real, fake or on the meta device: only their shapes, strides, dtypes and devices are
    read.  A Python float becomes a run-time scalar if ``fn`` only computes with it; where ``fn`` needs its
    value (``F.layer_norm(..., eps)``, ``if scale > 1``), all floats are constants, as ints, bools,
    strings, dtypes and None always are.

    ``mode``: that of fake inputs whose sizes are symbols.  It must allow inputs that are not fake.

    Raises:
        ArgumentError, DeviceError: an input of another type, or tensors on several devices.
        TraceError: ``fn`` raised, mutates an argument, reads a tensor that is none of its arguments, or
            decides by the values of a tensor.
    """
    names = argument_names(fn, len(inputs))
    check_inputs(names, inputs)
    floats = frozenset(i for i, x in enumerate(inputs) if isinstance(x, float))
    with _capturing():
        if floats:
            try:
                return _capture(fn, inputs, names, floats, mode)
            except TraceError:
                pass  # fn may need the values: try once more with constants, and report what that raises
        return _capture(fn, inputs, names, frozenset(), mode)


class _State(threading.local):
    depth = 0  # of captures in this thread


_STATE = _State()


def is_capturing() -> bool:
    """Whether this thread captures a function, so that what is called is a part of it."""
    return _STATE.depth > 0


@contextlib.contextmanager
def _capturing() -> Iterator[None]:
    _STATE.depth += 1
    try:
        yield
    finally:
        _STATE.depth -= 1


def like(x: torch.Tensor, shape: Sequence[int], mode: FakeTensorMode | None = None) -> torch.Tensor:
    """A tensor without memory, its dimensions in memory in the order of those of ``x``.

    On the device of ``x``, since autocast depends on it.
    """
    order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
    strides, step = [0] * x.dim(), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1)
    with mode or FakeTensorMode():
        return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)


def argument_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the first ``count`` positional arguments of ``fn``."""
    names: list[str] = []
    try:
        for p in inspect.signature(fn).parameters.values():
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
            elif p.kind is p.VAR_POSITIONAL:
                names.extend(f"{p.name}{i}" for i in range(count - len(names)))
    except (TypeError, ValueError):  # a builtin without a signature
        pass
    names.extend(f"arg{i}" for i in range(len(names), count))
    return tuple(names[:count])


def check_inputs(names: Sequence[str], inputs: Sequence[Any]) -> None:
    """Raises what :func:`capture` has against inputs, whatever the function is."""
    device: torch.device | None = None
    for name, x in zip(names, inputs, strict=True):
        if isinstance(x, torch.Tensor):
            if x.is_nested or x.layout is not torch.strided:
                got = "a nested tensor" if x.is_nested else f"a tensor of layout {x.layout}"
                raise ArgumentError("trace", name, got, "strided tensors")
            if x.dim() and device not in (None, x.device):
                raise DeviceError("trace", name, f"on {x.device}", f"the device of the others, {device}")
            device = x.device if x.dim() else device
        elif not isinstance(x, (float, *CONSTANT_TYPES)):
            raise ArgumentError(
                "trace", name, f"a {type(x).__name__}", "a tensor, float, int, bool, str, dtype or None",
                "unpack containers and pass the parameters of a module as arguments",
            )  # fmt: skip


def _capture(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    names: tuple[str, ...],
    scalars: frozenset[int],
    mode: FakeTensorMode | None,
) -> Captured:
    traced = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) or i in scalars]
    structure: pytree.TreeSpec | None = None

    def flat(*values: torch.Tensor) -> list[torch.Tensor]:
        nonlocal structure
        full = list(inputs)
        for i, value in zip(traced, values, strict=True):
            full[i] = value
        results, structure = pytree.tree_flatten(fn(*full))
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise TraceError(f"the function returns a {type(result).__name__}; return tensors only")
        return results

    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        fakes = [_fake(inputs[i], mode) for i in traced]
    try:
        with (
            mode,
            torch.no_grad(),
            torch.fx.traceback.preserve_node_meta(),
            LocationRecorder(),
            _quiet(),
        ):
            module = make_fx(
                torch.func.functionalize(flat, remove="mutations"),
                decomposition_table=DECOMPOSED,
                tracing_mode="real" if mode.shape_env is None else "symbolic",
            )(*fakes)
    except TraceError:
        raise
    except DataDependentOutputException as e:
        raise TraceError(
            "the function needs the values of a tensor (an if on a tensor, .item(), float(t)), which are not "
            "known when it is traced",
            location=failed_at(e),
        ) from e
    except Exception as e:
        what = str(e).strip().split("\n")[0]
        raise TraceError(
            f"the function raised {type(e).__name__} while it was traced: {what}", location=failed_at(e)
        ) from e
    assert structure is not None
    module.graph.eliminate_dead_code()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    arguments = dict(zip(placeholders, traced, strict=True))
    for node, i in arguments.items():
        node.meta["argument"] = names[i]
    _drop_mutations(module.graph)
    _refuse_surroundings(module.graph)
    output = module.graph.output_node().args[0]
    outputs = tuple(output) if isinstance(output, list | tuple) else (output,)
    return Captured(module.graph, module, names, arguments, scalars, outputs, structure)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from logging what the function raises: it is reported, or was to be expected."""

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def _drop_mutations(graph: torch.fx.Graph) -> None:
    """Makes in-place operators on values that nobody else reads functional.

    The user's own are gone by now; torch's composite functions (rms_norm) leave some behind.
    """
    for node in graph.nodes:
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if node.op != "call_function" or not name.endswith("_") or not is_mutation(node):
            continue
        changed = node.args[0]
        is_own = views.view_of(changed) is None or changed.target is aten.clone.default
        if changed.op == "call_function" and len(changed.users) == 1 and is_own:
            node.target = getattr(getattr(aten, name[:-1]), node.target._overloadname)


def _refuse_surroundings(graph: torch.fx.Graph) -> None:
    """Refuses what the function has to do with tensors that are not its own: changing an argument, also
    where no result shows it, and reading a tensor from outside, whose value and gradient would be lost.
    And ops that are kernels themselves.
    """
    for node in graph.nodes:
        if node.op == "call_function" and (is_mutation(node) or _is_ours(node)):
            raise views.refuse(node, explain_unknown(node))
        for source in node.all_input_nodes:
            # A tensor that the function makes of a number is copied first.
            if source.op == "get_attr" and node.target is not aten.lift_fresh_copy.default:
                raise views.refuse_outside(node, source)


def _is_ours(node: torch.fx.Node) -> bool:
    """Whether it is an op of :mod:`comfuse.ops`."""
    return getattr(node.target, "namespace", None) == "comfuse"


def _fake(x: Any, mode: FakeTensorMode) -> torch.Tensor:
    """A tensor of the same shape without data; a new one each time, so that f(t, t) has two arguments."""
    if not isinstance(x, torch.Tensor):
        return torch.empty((), dtype=torch.float32)
    device = "cpu" if x.device.type == "meta" else x.device
    if isinstance(x, FakeTensor) and x.fake_mode is mode and device == x.device:
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
