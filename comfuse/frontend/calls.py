"""One class of calls of a region: the steps from its arguments to tensors of the op, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from comfuse import ops
from comfuse.frontend.arguments import Arrangement, converted, count_copy
from comfuse.frontend.axes import row_major, same_strides
from comfuse.frontend.lowered import Lowered, OwnForm, Read, ResultForm
from comfuse.generator.kernels import kernels
from comfuse.generator.plan import Gpu
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.generator.stages import Source, Stage
from comfuse.ops import programs
from comfuse.ops.resolver import calibrated_gpu
from comfuse.reference import TORCH_DTYPES

Tensor = torch.Tensor
_COPIED = "torch makes it contiguous, in an order that no kernel stores"
# What runs one kernel: as comfuse.ops.region, with the text of the spec.
Run = Callable[[str, Tensor, Tensor, Sequence[Tensor], Sequence[float]], list[Tensor]]
RunInto = Callable[[str, Tensor, Tensor, Sequence[Tensor], Sequence[float], Sequence[Tensor]], None]


class BoundCall(NamedTuple):
    """The tensors and scalars of one call, in the order of the spec.  ``b`` has one for each product."""

    a: Tensor
    b: list[Tensor]
    operands: list[Tensor]
    scalars: list[float]


@dataclass(frozen=True)
class Step:
    """One kernel of a region."""

    text: str
    stage: Stage


def steps(spec: FusedSpec, gpu: str | Gpu = "h200", m: int | None = None) -> tuple[Step, ...]:
    """The kernels of a region for ``m`` rows, or any number of them, in the order in which they run."""
    found = kernels(spec, gpu, m)
    if len(found) == 1:  # as it was traced, with the user's names
        found = (replace(found[0], spec=spec),)
    return tuple(Step(stage.spec.text(), stage) for stage in found)


@dataclass(frozen=True)
class Call:
    """What is the same for all calls with arguments of these shapes.

    Attributes:
        lowered: the region, for the call's rows.
        names: the function's arguments.
        structure: how the function packs its results.
    """

    lowered: Lowered
    names: tuple[str, ...]
    structure: pytree.TreeSpec
    _steps: dict[torch.device, tuple[Step, ...]] = field(default_factory=dict, compare=False, repr=False)

    # --- arguments ----------------------------------------------------------------------------------

    @cached_property
    def _factors(self) -> list[tuple[int, torch.dtype | None, Arrangement]]:
        low = self.lowered
        arranged = [(low.a, low.arrangement_of_a()), *((b, low.arrangement_of_b(b)) for b in low.b)]
        return [(read.position, read.cast, arrangement) for read, arrangement in arranged]

    @cached_property
    def _operands(self) -> list[tuple[int, Arrangement]]:
        return [(o.position, self.lowered.arrangement_of(o)) for o in self.lowered.operands]

    def factor_majors(self) -> list[tuple[Read, Arrangement, Major]]:
        """Each factor with its arrangement, and which of its dimensions the kernel wants contiguous."""
        low = self.lowered
        majors = [low.spec.a_major, *(low.spec.b_major for _ in low.b)]
        arrangements = [arrangement for _, _, arrangement in self._factors]
        return list(zip((low.a, *low.b), arrangements, majors, strict=True))

    def notes(self, args: Sequence[Any]) -> tuple[str, ...]:
        """What a call with these arguments does beside the kernels: copies and conversions, with reasons."""
        said = []
        for i, cast, arrangement in (*self._factors, *((i, None, a) for i, a in self._operands)):
            if cast is not None:
                said.append(f"{self.names[i]} is converted to {cast} at each call")
            reason = arrangement.reason_to_copy(args[i])
            if reason:
                said.append(f"{self.names[i]} is copied at each call: {reason}")
        for number, form in enumerate(self.lowered.results):
            if isinstance(form, ResultForm) and form.copied:
                said.append(f"result {number} is copied at each call: {_COPIED}")
        return tuple(dict.fromkeys(said))

    @cached_property
    def tensors(self) -> Callable[[Sequence[Any]], BoundCall]:
        """From arguments, which have been checked, to the call's tensors as the op takes them."""
        (first, a), *others = [(i, self._read(i, cast, arranged)) for i, cast, arranged in self._factors]
        operands = [(i, self._read(i, None, arranged)) for i, arranged in self._operands]
        scalars = self.lowered.scalars

        def unpack(args: Sequence[Any]) -> BoundCall:
            return BoundCall(
                args[first] if a is None else a(args[first]),
                [args[i] if read is None else read(args[i]) for i, read in others],
                [args[i] if read is None else read(args[i]) for i, read in operands],
                [float(args[i]) for i in scalars],
            )

        return unpack

    def _read(
        self, position: int, cast: torch.dtype | None, arrangement: Arrangement
    ) -> Callable[[Tensor], Tensor] | None:
        """The steps for one argument; None if it is taken as it is."""
        name = self.names[position]
        if cast is not None:
            return lambda x: arrangement.apply(converted(x, cast, name), name)
        return None if arrangement.is_identity else lambda x: arrangement.apply(x, name)

    # --- kernels ------------------------------------------------------------------------------------

    def steps(self, device: torch.device) -> tuple[Step, ...]:
        """Its kernels on a device, in the order in which they run."""
        if device not in self._steps:
            spec = self.lowered.spec
            if device.type == "cuda":
                found = steps(spec, calibrated_gpu(device.index), math.prod(self.lowered.lead_shape))
            else:
                found = steps(spec)
            self._steps[device] = found
        return self._steps[device]

    def plain(self, device: torch.device) -> str | None:
        """The text of the spec, if the function returns the one output of one kernel as it is."""
        (form, *more) = self.lowered.results
        (step, *others) = self.steps(device)
        if more or others or not self.structure.is_leaf() or len(self.lowered.spec.outputs) > 1:
            return None
        return step.text if isinstance(form, ResultForm) and self._is_as_stored(form) else None

    def _is_as_stored(self, form: ResultForm) -> bool:
        shape = self._output_shape(form)
        if form.copied or form.shape != shape:
            return False
        strides, start = self.lowered.strides_of(form)
        return start == 0 and same_strides(strides, row_major(shape), shape)

    def run(self, call: BoundCall, run: Run = ops.region, into: RunInto = ops.region_out) -> Any:
        """What the function returns.

        Args:
            call: the tensors.
            run: runs a kernel.
            into: runs a kernel that writes its outputs into tensors that are given.
        """
        own: dict[int, Tensor] = {}  # results that are tensors of their own
        places: dict[int, Tensor] = {}  # outputs that lie in them
        for i, form in enumerate(self.lowered.results):
            if isinstance(form, OwnForm):
                own[i] = call.a.new_empty(form.shape, dtype=self._dtype(form.parts[0][0]))
                for index, dims in form.parts:
                    rows = self.lowered.arrangement_in(dims)
                    places[index] = rows.strided(own[i]).view(rows.shape)
        outputs = self._outputs(call, places, run, into)
        flat = [
            own[i] if isinstance(form, OwnForm) else self._result(form, outputs[form.index])
            for i, form in enumerate(self.lowered.results)
        ]
        return pytree.tree_unflatten(flat, self.structure)

    def _dtype(self, index: int) -> torch.dtype:
        return TORCH_DTYPES[self.lowered.spec.outputs[index].dtype]

    def _outputs(
        self, call: BoundCall, places: dict[int, Tensor], run: Run, into: RunInto
    ) -> dict[int, Tensor]:
        """The outputs of the whole spec, one kernel after the other."""
        tensors, scalars = iter(call.operands), iter(call.scalars)
        given = [next(scalars if o.space is Space.SCALAR else tensors) for o in self.lowered.spec.operands]
        stored: list[list[Tensor]] = []
        results: dict[int, Tensor] = {}
        for step in self.steps(call.a.device):
            stage = step.stage
            operands = [*call.b[1:]]
            numbers: list[float] = []
            for source, operand in zip(stage.operands, stage.spec.operands, strict=True):
                if operand.space is Space.SCALAR:
                    numbers.append(given[source.index])  # type: ignore[arg-type]
                else:
                    operands.append(self._of_stage(source, operand.space, given, stored))
            own = [places.get(-1 if whole is None else whole) for whole in stage.outputs]
            if all(place is None for place in own):
                found = run(step.text, call.a, call.b[0], operands, numbers)
            else:
                found = self._allocated(step.text, call.a, own)
                into(step.text, call.a, call.b[0], operands, numbers, found)
            stored.append(found)
            results |= {whole: y for whole, y in zip(stage.outputs, found, strict=True) if whole is not None}
        return results

    def _allocated(self, text: str, a: Tensor, own: Sequence[Tensor | None]) -> list[Tensor]:
        program = programs.parse(text)
        shapes = program.output_shapes(a.shape[:-1])
        return [
            a.new_empty(shape, dtype=dtype) if place is None else place
            for place, shape, dtype in zip(own, shapes, program.output_dtypes, strict=True)
        ]

    def _of_stage(
        self, source: Source, space: Space, given: Sequence[Any], stored: list[list[Tensor]]
    ) -> Tensor:
        if source.stage is None:
            return given[source.index]
        tensor = stored[source.stage][source.index]
        if tensor.dim():
            return tensor
        return tensor.expand(self.lowered.lead_shape if space is Space.COLUMN else (self.lowered.spec.n,))

    # --- results ------------------------------------------------------------------------------------

    def result_shapes(self) -> list[tuple[int, ...]]:
        return [form.shape for form in self.lowered.results]

    def _result(self, form: ResultForm, output: Tensor) -> Tensor:
        if self._is_as_stored(form):
            return output
        if form.copied:
            count_copy("a result", _COPIED)
            sizes, strides, start = self.lowered.atoms_of(form)
            view = output.as_strided(sizes, strides, output.storage_offset() + start)
            return view.reshape(form.shape).contiguous()
        strides, start = self.lowered.strides_of(form)
        return output.as_strided(form.shape, strides, output.storage_offset() + start)

    def _output_shape(self, form: ResultForm) -> tuple[int, ...]:
        low = self.lowered
        n, lead = low.spec.n, low.lead_shape
        if form.heads is not None:
            return (*lead[:-1], n // form.heads, lead[-1], form.heads)
        return {
            Space.TILE: (*lead, n),
            Space.GROUP: (*lead, n // (low.spec.group or 1)),
            Space.COLUMN: lead,
            Space.ROW: (n,),
            Space.SCALAR: (),
        }[form.space]
