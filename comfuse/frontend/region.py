"""A traced function: its spec, and for which arguments it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from comfuse.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from comfuse.frontend.calls import BoundCall, Call
from comfuse.frontend.forms import Rows
from comfuse.frontend.lowered import Lowered, Read
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec
from comfuse.generator.stages import stages

if TYPE_CHECKING:
    from comfuse.frontend.symbolic import Symbolic

#: Shapes of which what belongs to them is remembered; past that the table is emptied, which costs a check a
#: call.
REMEMBERED = 1024

# Reductions over rows that torch refuses where there are none.
_NEEDS_A_ROW = ("col_max", "col_min", "full_max", "full_min")


@dataclass(frozen=True)
class TracedRegion:
    """A function whose whole body is one fused kernel, or a few that follow each other.

    Attributes:
        lowered: what is computed, and which argument is what.
        names: the function's arguments.
        structure: how it packs its results.
        dtypes: of the tensor arguments; None for the others.
        shapes: of the tensor arguments when it was traced; None for the others.
        constants: position and value of each argument that is built into the spec.
        symbolic: what the function does for any number of rows; None if it computes with the number
            (``x / x.shape[0]``, ``x.view(8, 128, -1)``): then the spec holds for these rows alone.
        lead: the dimensions of the rows of the inputs that it was traced with.
        notes: what each call does beside the kernels, for people: copies and conversions.
    """

    lowered: Lowered
    names: tuple[str, ...]
    structure: pytree.TreeSpec
    dtypes: tuple[torch.dtype | None, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    constants: tuple[tuple[int, Any], ...] = ()
    symbolic: Symbolic | None = field(default=None, compare=False, repr=False)
    lead: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    _calls: dict[tuple[int, ...], Call] = field(default_factory=dict, compare=False, repr=False)

    @property
    def spec(self) -> FusedSpec | ChainSpec:
        return self.lowered.spec

    @property
    def any_rows(self) -> bool:
        """Whether it holds for other numbers of rows than it was traced with."""
        return self.symbolic is not None

    @property
    def kernels(self) -> tuple[FusedSpec | ChainSpec, ...]:
        """The specs of its kernels, in the order in which they run, for any number of rows.

        Raises:
            PlanError: no kernels can run it; names the node and the reason.
        """
        spec = self.spec
        return (spec,) if isinstance(spec, ChainSpec) else tuple(stage.spec for stage in stages(spec))

    # --- which calls it takes -----------------------------------------------------------------------

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
            self.call(args)
        except ArgumentError:
            return False
        return True

    def rows(self, args: Sequence[Any]) -> Rows:
        """The rows of arguments that it accepts."""
        if not self.any_rows:
            return self.lowered.rows
        return Rows(tuple(args[i].shape[d] // divisor for i, d, divisor in self.lowered.sources))

    def bind(self, args: Sequence[Any]) -> BoundCall:
        """The call's tensors, as the op takes them.

        Raises:
            ShapeError, DTypeError, DeviceError: an argument is not of the class that was traced.
        """
        return self.call(args).tensors(args)

    def call(self, args: Sequence[Any]) -> Call:
        """What calls with arguments of these shapes have in common.

        Raises:
            ShapeError, DTypeError, DeviceError: an argument is not of the class that was traced.
        """
        self._check_ranks(args)
        rows = self.rows(args)
        found = self._calls.get(rows.sizes)
        if found is None:
            self._check_conditions(rows, args)
            lowered = self.lowered if rows == self.lowered.rows else self.lowered.at(rows)
            found = Call(lowered, self.names, self.structure)
            if len(self._calls) >= REMEMBERED:
                self._calls.clear()
            self._calls[rows.sizes] = found
        self._check(found, args)
        return found

    def _check_ranks(self, args: Sequence[Any]) -> None:
        for i, dtype in enumerate(self.dtypes):
            if dtype is None:
                continue
            shape = self.shapes[i]
            assert shape is not None
            if args[i].dim() != len(shape):
                raise self._shape(i, args[i], f"{len(shape)} dimensions, as traced")
            if args[i].dtype is not dtype:
                raise DTypeError(
                    "call", self.names[i], str(args[i].dtype), str(dtype), "trace again for another dtype"
                )

    def _check(self, call: Call, args: Sequence[Any]) -> None:
        low = call.lowered
        read: set[int] = set()
        for argument in low.reads:
            self._check_shape(argument, args)
            read.add(argument.position)
        for i, shape in enumerate(self.shapes):
            if shape is not None and i not in read and tuple(args[i].shape) != shape:
                raise self._shape(i, args[i], f"{shape}, as traced: the function reads its shape")
        for i, expected in self._majors(call, args):
            raise self._shape(i, args[i], f"strides whose {expected} is contiguous, as traced")
        for i in low.scalars:
            if isinstance(args[i], torch.Tensor) and args[i].is_cuda:
                raise DeviceError(
                    "call", self.names[i], f"on {args[i].device}", "a Python float or a tensor on the CPU",
                    "reading it would wait for the GPU",
                )  # fmt: skip
        if low.rows.count == 0:
            self._check_empty(args)

    def _check_conditions(self, rows: Rows, args: Sequence[Any]) -> None:
        """Of fewer rows than two nothing is known: :func:`~.trace.holds_for` compares."""
        if self.symbolic is None or min(rows.sizes, default=2) < 2 or self.symbolic.holds(rows.sizes):
            return
        first = self.lowered.a.position
        raise self._shape(
            first, args[first], "rows of which what the function decides by is as when it was traced"
        )

    def _check_shape(self, read: Read, args: Sequence[Any]) -> None:
        got = args[read.position]
        if tuple(got.shape) == read.shape:
            return
        hint = "" if self.any_rows else ", since the function reads the number of rows"
        first = self.lowered.a.position
        beside = (
            "" if read.position == first else f", where {self.names[first]} has {tuple(args[first].shape)}"
        )
        raise self._shape(read.position, got, f"{read.shape}{beside}{hint}")

    def _majors(self, call: Call, args: Sequence[Any]) -> list[tuple[int, str]]:
        """The factors of which another dimension is contiguous than when they were traced."""
        wrong = []
        for read, arrangement, major in call.factor_majors():
            if arrangement.major(args[read.position]) is not major:
                wrong.append((read.position, f"{major.value.upper()} dimension"))
        return wrong

    def _check_empty(self, args: Sequence[Any]) -> None:
        needy = next((node for node in self.lowered.last.nodes if node.op in _NEEDS_A_ROW), None)
        if needy is not None:
            position = self.lowered.a.position
            raise self._shape(
                position, args[position], f"at least one row: {needy.name} is the extreme of all of them"
            )

    def _shape(self, position: int, got: torch.Tensor, allowed: str) -> ShapeError:
        return ShapeError("call", self.names[position], f"of shape {tuple(got.shape)}", allowed)
