"""A traced function: its spec, and how a call's arguments and results belong to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from comfuse.frontend.capture import capture
from comfuse.frontend.errors import TraceError
from comfuse.frontend.lower import Lowered, lower
from comfuse.generator.spec import FusedSpec, Space


@dataclass(frozen=True)
class OutputForm:
    """How one result of the function is made of one of the spec's outputs.

    The op gives ``(*lead, N)`` or ``(*lead,)``, where ``lead`` are the leading dimensions of A.
    ``flat``: the rows are one dimension.  ``keepdim``: a trailing 1 follows.
    """

    index: int
    flat: bool = False
    keepdim: bool = False


@dataclass(frozen=True)
class BoundCall:
    """The tensors and scalars of one call, in the order of the spec."""

    a: torch.Tensor
    b: torch.Tensor
    operands: list[torch.Tensor]
    scalars: list[float]


@dataclass(frozen=True)
class TracedRegion:
    """A function whose whole body is one fused kernel.

    Attributes:
        spec: what is computed.
        names: the function's arguments.
        lowered: which argument is what.
        outputs: how its results are made of the kernel's.
        structure: how the function packs them.
        lead: the leading dimensions of A when it was traced.
        dtypes: of the tensor arguments; None for the others.
        shapes: of the operands, in the order of the spec.
        forms: which of :func:`_row_shapes` each operand has; None: it has its shape for every number of rows.
        constants: position and value of each argument that is built into the spec.
        any_rows: True if the function means the same for every number of rows; False if it reads the number
            itself (``x / x.shape[0]``, ``x.view(8, 128, -1)``): then the spec holds for ``lead`` alone.
    """

    spec: FusedSpec
    names: tuple[str, ...]
    lowered: Lowered
    outputs: tuple[OutputForm, ...]
    structure: pytree.TreeSpec
    lead: tuple[int, ...]
    dtypes: tuple[torch.dtype | None, ...]
    shapes: tuple[tuple[int, ...], ...]
    forms: tuple[int | None, ...]
    constants: tuple[tuple[int, Any], ...] = ()
    any_rows: bool = True

    @property
    def is_plain(self) -> bool:
        """True if the function returns the kernel's only output as it is."""
        return self.outputs == (OutputForm(0),) and self.structure.is_leaf()

    def accepts(self, args: Sequence[Any]) -> bool:
        """True if these arguments are of the class that the function was traced with."""
        if len(args) != len(self.names):
            return False
        if any(type(args[i]) is not type(value) or args[i] != value for i, value in self.constants):
            return False
        tensors = {i for i, dtype in enumerate(self.dtypes) if dtype is not None}
        if any(isinstance(x, torch.Tensor) != (i in tensors) for i, x in enumerate(args)):
            return False
        try:
            self.bind(args)
        except ArgumentError:
            return False
        return True

    def bind(self, args: Sequence[Any]) -> BoundCall:
        """The call's tensors, as the op takes them.

        Raises:
            ShapeError, DTypeError: an argument does not have the shape or dtype class it was traced with.
        """
        low = self.lowered
        a, b = args[low.a], args[low.b]
        k, n = self.spec.k, self.spec.n
        if a.dim() != len(self.lead) + 1 or a.shape[-1] != k:
            raise self._shape(low.a, a, f"({', '.join('*' * len(self.lead))}, {k})")
        lead = a.shape[:-1]
        if not self.any_rows and tuple(lead) != self.lead:
            raise self._shape(low.a, a, f"{(*self.lead, k)}, since the function reads the number of rows")
        if tuple(b.shape) != (n, k):
            raise self._shape(low.b, b, f"({n}, {k})")
        operands = []
        for (i, space), shape, form in zip(low.operands, self.shapes, self.forms, strict=True):
            expected = shape if form is None else _row_shapes(space, lead, n)[form]
            if tuple(args[i].shape) != expected:
                raise self._shape(i, args[i], f"{expected}, where {self.names[low.a]} has {tuple(a.shape)}")
            wanted = _op_shape(space, lead, n)
            operands.append(args[i] if expected == wanted else args[i].reshape(wanted))
        for i, dtype in enumerate(self.dtypes):
            if dtype is not None and args[i].dtype is not dtype:
                raise DTypeError(
                    "call", self.names[i], str(args[i].dtype), str(dtype), "trace again for another dtype"
                )
        for i in low.scalars:
            if isinstance(args[i], torch.Tensor) and args[i].is_cuda:
                raise DeviceError(
                    "call", self.names[i], f"on {args[i].device}", "a Python float or a tensor on the CPU",
                    "reading it would wait for the GPU; or expand it to (M, 1) or (N,)",
                )  # fmt: skip
        casts = [x if dtype is None else x.to(dtype) for x, dtype in zip((a, b), low.casts, strict=True)]
        return BoundCall(casts[0], casts[1], operands, [float(args[i]) for i in low.scalars])

    def pack(self, results: Sequence[torch.Tensor], lead: Sequence[int]) -> Any:
        """What the function returns, made of the kernel's outputs."""
        flat = []
        for form in self.outputs:
            y = results[form.index]
            if form.flat and len(lead) != 1:
                y = y.reshape(-1, *y.shape[len(lead) :])
            flat.append(y.unsqueeze(-1) if form.keepdim else y)
        return pytree.tree_unflatten(flat, self.structure)

    def _shape(self, position: int, got: torch.Tensor, allowed: str) -> ShapeError:
        return ShapeError("call", self.names[position], f"of shape {tuple(got.shape)}", allowed)


def trace_region(fn: Callable[..., Any], inputs: Sequence[Any]) -> TracedRegion:
    """Captures and lowers ``fn(*inputs)``, and does so for other numbers of rows too, to see if they matter.

    Raises:
        ArgumentError, DeviceError: an input that cannot be traced.
        TraceError: a function that is not one fused kernel.
    """
    region = _trace(fn, inputs)
    try:
        other = _trace(fn, _other_rows(region, inputs))
    except TraceError:
        return replace(region, any_rows=False)
    same = (other.spec, other.outputs, other.forms) == (region.spec, region.outputs, region.forms)
    return region if same else replace(region, any_rows=False)


def _trace(fn: Callable[..., Any], inputs: Sequence[Any]) -> TracedRegion:
    captured = capture(fn, inputs)
    lowered = lower(captured)
    lead = tuple(inputs[lowered.a].shape[:-1])
    shapes = tuple(tuple(inputs[i].shape) for i, _ in lowered.operands)
    return TracedRegion(
        spec=lowered.spec,
        names=captured.names,
        lowered=lowered,
        outputs=tuple(_output_form(i, shape, lead, lowered.spec) for i, shape in lowered.outputs),
        structure=captured.structure,
        lead=lead,
        dtypes=tuple(x.dtype if isinstance(x, torch.Tensor) else None for x in inputs),
        shapes=shapes,
        forms=tuple(
            _form_of(shape, _row_shapes(space, lead, lowered.spec.n))
            for shape, (_, space) in zip(shapes, lowered.operands, strict=True)
        ),
        constants=tuple(
            (i, x)
            for i, x in enumerate(inputs)
            if not isinstance(x, torch.Tensor) and i not in captured.scalars
        ),
    )


def _output_form(index: int, shape: tuple[int, ...], lead: tuple[int, ...], spec: FusedSpec) -> OutputForm:
    m = math.prod(lead)
    node = spec.outputs[index]
    for form, expected in (
        (OutputForm(index), (*lead, spec.n)),
        (OutputForm(index, flat=True), (m, spec.n)),
        (OutputForm(index), lead),
        (OutputForm(index, keepdim=True), (*lead, 1)),
        (OutputForm(index, flat=True), (m,)),
        (OutputForm(index, flat=True, keepdim=True), (m, 1)),
    ):
        if shape == expected:
            return form
    raise TraceError(
        f"the result has shape {shape}; allowed where A has leading dimensions {lead}: these, or one of {m}, "
        f"before N = {spec.n} for a matrix: change the shape after the call",
        node=node.name,
    )


def _op_shape(space: Space, lead: Sequence[int], n: int) -> tuple[int, ...]:
    """The shape in which the op gets an operand."""
    if space is Space.TILE:
        return (*lead, n)
    return (n,) if space is Space.ROW else tuple(lead)


def _row_shapes(space: Space, lead: Sequence[int], n: int) -> tuple[tuple[int, ...], ...]:
    """The shapes in which a function may get an operand that varies over the rows."""
    m = math.prod(lead)
    if space is Space.TILE:
        return ((*lead, n), (m, n))
    if space is Space.COLUMN:
        return ((*lead, 1), tuple(lead), (m, 1), (m,))
    return ()


def _form_of(shape: tuple[int, ...], forms: tuple[tuple[int, ...], ...]) -> int | None:
    return forms.index(shape) if shape in forms else None


def _other_rows(region: TracedRegion, inputs: Sequence[Any]) -> list[Any]:
    """Inputs like these with other leading dimensions."""
    low, n = region.lowered, region.spec.n
    lead = tuple(d + 2 * i + 3 for i, d in enumerate(region.lead))
    if math.prod(lead) == n:
        lead = (*lead[:-1], lead[-1] + 1)
    others = [_like(x, tuple(x.shape)) if isinstance(x, torch.Tensor) else x for x in inputs]
    others[low.a] = _like(inputs[low.a], (*lead, region.spec.k))
    for (i, space), form in zip(low.operands, region.forms, strict=True):
        if form is not None and i != low.a and i != low.b:
            others[i] = _like(inputs[i], _row_shapes(space, lead, n)[form])
    return others


def _like(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor without memory, on the device of ``x``, since autocast depends on it."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=x.dtype, device=x.device)
