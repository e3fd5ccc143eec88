"""One class of calls of a region: the steps from its arguments to tensors of the op, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from comfuse import ops
from comfuse.frontend.arguments import Arrangement, converted, count_copy
from comfuse.frontend.axes import row_major, same_strides
from comfuse.frontend.forms import OwnForm, ResultForm
from comfuse.frontend.lowered import Lowered, Read
from comfuse.generator.chain import ChainSpec
from comfuse.generator.kernels import kernels
from comfuse.generator.plan import Gpu
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.generator.stages import Source
from comfuse.ops import programs
from comfuse.ops.resolver import calibrated_gpu
from comfuse.reference import TORCH_DTYPES

Tensor = torch.Tensor
_COPIED = "torch makes it contiguous, in an order that no kernel stores"
# What runs one kernel: as comfuse.ops.region, with the text of the spec.
Run = Callable[[str, Tensor, Tensor, Sequence[Tensor], Sequence[float]], list[Tensor]]
RunInto = Callable[[str, Tensor, Tensor, Sequence[Tensor], Sequence[float], Sequence[Tensor]], None]


class BoundCall(NamedTuple):
    """The tensors and scalars of one call, as :func:`comfuse.ops.region` takes them behind the text."""

    a: Tensor
    b: Tensor
    operands: list[Tensor]
    scalars: list[float]


@dataclass(frozen=True)
class Step:
    """One kernel of a region.

    Attributes:
        text: of ``spec``.
        spec: what it computes.
        operands, outputs: where they come from and what they are of the whole, as of
            :class:`~comfuse.generator.stages.Stage`; of a chain those of all links.
    """

    text: str
    spec: FusedSpec | ChainSpec
    operands: tuple[Source, ...]
    outputs: tuple[int | None, ...]


def steps(spec: FusedSpec | ChainSpec, gpu: str | Gpu = "h200", m: int | None = None) -> tuple[Step, ...]:
    """The kernels of a region for ``m`` rows, or any number of them, in the order in which they run."""
    found = () if isinstance(spec, ChainSpec) else kernels(spec, gpu, m)
    if len(found) > 1:
        return tuple(Step(one.spec.text(), one.spec, one.operands, one.outputs) for one in found)
    # As it was traced, with the user's names.
    sources = tuple(Source(None, i) for i in range(len(spec.operands)))
    return (Step(spec.text(), spec, sources, tuple(range(len(spec.outputs)))),)


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
    def _arranged(self) -> list[tuple[Read, Arrangement]]:
        return list(zip(self.lowered.reads, self.lowered.arrangements(), strict=True))

    @cached_property
    def _program(self) -> programs.Program:
        return programs.parse(self.lowered.spec.text())

    def factor_majors(self) -> list[tuple[Read, Arrangement, Major]]:
        """Each factor with its arrangement, and which of its dimensions the kernel wants contiguous."""
        arranged = iter(self._arranged)
        found = [(*next(arranged), self.lowered.links[0].spec.a_major)]
        for link in self.lowered.links:
            found += [(*next(arranged), link.spec.b_major) for _ in link.b]
            for _ in link.operands:
                next(arranged)
        return found

    def notes(self, args: Sequence[Any]) -> tuple[str, ...]:
        """What a call with these arguments does beside the kernels: copies and conversions, with reasons."""
        said = []
        for read, arrangement in self._arranged:
            name = self.names[read.position]
            if read.cast is not None:
                said.append(f"{name} is converted to {read.cast} at each call")
            reason = arrangement.reason_to_copy(args[read.position])
            if reason:
                said.append(f"{name} is copied at each call: {reason}")
        for number, form in enumerate(self.lowered.results):
            if isinstance(form, ResultForm) and form.copied:
                said.append(f"result {number} is copied at each call: {_COPIED}")
        return tuple(dict.fromkeys(said))

    @cached_property
    def tensors(self) -> Callable[[Sequence[Any]], BoundCall]:
        """From arguments, which have been checked, to the call's tensors as the op takes them."""
        (first, a), (second, b), *operands = [
            (read.position, self._read(read.position, read.cast, arrangement))
            for read, arrangement in self._arranged
        ]
        scalars = self.lowered.scalars

        def unpack(args: Sequence[Any]) -> BoundCall:
            return BoundCall(
                args[first] if a is None else a(args[first]),
                args[second] if b is None else b(args[second]),
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
        if more or others or not self.structure.is_leaf() or len(step.outputs) > 1:
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
        return TORCH_DTYPES[self.lowered.last.outputs[index].dtype]

    def _outputs(
        self, call: BoundCall, places: dict[int, Tensor], run: Run, into: RunInto
    ) -> dict[int, Tensor]:
        """The outputs of the whole program, one kernel after the other."""
        factors, rest = self._program.split(call.b, call.operands)
        tensors, scalars = iter(rest), iter(call.scalars)
        given = [next(scalars if o.space is Space.SCALAR else tensors) for o in self.lowered.spec.operands]
        stored: list[list[Tensor]] = []
        results: dict[int, Tensor] = {}
        for step in self.steps(call.a.device):
            rest, numbers = [], []
            for source, operand in zip(step.operands, step.spec.operands, strict=True):
                if operand.space is Space.SCALAR:
                    numbers.append(given[source.index])
                else:
                    rest.append(self._of_stage(source, operand.space, given, stored))
            program = programs.parse(step.text)
            b, operands = program.joined(factors, rest)
            own = [places.get(-1 if whole is None else whole) for whole in step.outputs]
            if all(place is None for place in own):
                found = run(step.text, call.a, b, operands, numbers)
            else:
                found = self._allocated(program, call.a, own)
                into(step.text, call.a, b, operands, numbers, found)
            stored.append(found)
            results |= {whole: y for whole, y in zip(step.outputs, found, strict=True) if whole is not None}
        return results

    def _allocated(self, program: programs.Program, a: Tensor, own: Sequence[Tensor | None]) -> list[Tensor]:
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
        return tensor.expand(self.lowered.lead_shape if space is Space.COLUMN else (self.lowered.last.n,))

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
        last, lead = self.lowered.last, self.lowered.lead_shape
        n = last.n
        if form.heads is not None:
            return (*lead[:-1], n // form.heads, lead[-1], form.heads)
        return {
            Space.TILE: (*lead, n),
            Space.GROUP: (*lead, n // (last.group or 1)),
            Space.COLUMN: lead,
            Space.ROW: (n,),
            Space.SCALAR: (),
        }[form.space]
