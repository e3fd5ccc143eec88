"""Random programs as test cases: plan, inputs, comparison with float64.

python -m tests.gpu.random_programs SEED...    print programs, and the lines to keep in regressions.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.launch import prepare
from comfuse import ops, reference
from comfuse.generator import plan as planner
from comfuse.generator.errors import PlanError
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Operand, Space
from comfuse.library import LoadedKernel
from tests.gpu.algebra import TORCH_DTYPES
from tests.gpu.compare import relative_error, stored, tolerance, weighty
from tests.gpu.outputs import Outputs, ordered
from tests.gpu.random_draw import Range, draw
from tests.gpu.support import first_factor, laid_out

SEEDS = range(240)
REGRESSIONS = Path(__file__).with_name("regressions.jsonl")


@dataclass(frozen=True)
class RandomCase:
    """A program, its plan's number among those that fit, and what to run it on: see random_draw.Drawn."""

    name: str
    text: str
    choice: int
    exact: bool
    ranges: tuple[Range, ...]
    scalars: tuple[float, ...]
    leads: tuple[tuple[int, ...], ...]
    shared: tuple[str, ...]

    may_be_refused = True  # there are enough others

    def __str__(self) -> str:
        return self.name

    @cached_property
    def spec(self) -> FusedSpec:
        return FusedSpec.parse(self.text)

    @property
    def output_spaces(self) -> tuple[Space, ...]:
        return tuple(spaces(self.spec)[o.node] for o in self.spec.outputs)

    def plan(self) -> planner.KernelPlan:
        found = planner.candidates(self.spec)
        plans = [p for p in found if isinstance(p, planner.KernelPlan)]
        if not plans:
            raise PlanError("; ".join(f"{r.shape.label}: {r.reason}" for r in found))
        return plans[self.choice % len(plans)]

    def inputs(self, lead: tuple[int, ...], device: str = "cuda") -> RandomInputs:
        return RandomInputs(self, lead, device)


class RandomInputs:
    """Tensors for one launch of a case."""

    def __init__(self, case: RandomCase, lead: tuple[int, ...], device: str) -> None:
        self.case, self.lead = case, lead
        self._generator = torch.Generator(device).manual_seed(sum(lead) + case.choice)
        self._device = device
        spec, dtype = case.spec, TORCH_DTYPES[case.spec.dtype]
        drawn = self._factor(*lead, spec.k).to(dtype)
        self.a = first_factor(drawn, spec.a_major, batched=spec.batched)
        batches = lead[:1] if spec.batched and "b" not in case.shared else ()
        scale = 1.0 if case.exact else spec.k**-0.5
        self.b = [
            laid_out((scale * self._factor(*batches, spec.n, spec.k)).to(dtype), spec.b_major)
            for _ in range(spec.products)
        ]
        tensors = [o for o in spec.operands if o.space is not Space.SCALAR]
        self.operands = [self._operand(o, r) for o, r in zip(tensors, case.ranges, strict=True)]

    def _factor(self, *size: int) -> Tensor:
        if self.case.exact:
            return self._random(size, Range(2.0, 0))
        return self._random(size, Range(6.0, None))

    def _random(self, size: Sequence[int], r: Range) -> Tensor:
        if r.grain is None:
            drawn = torch.randn(size, device=self._device, generator=self._generator)
            return drawn.clamp(-r.bound, r.bound)
        most = int(r.bound * 2**r.grain)
        whole = torch.randint(-most, most + 1, size, device=self._device, generator=self._generator)
        return whole.float() / 2**r.grain

    def _operand(self, o: Operand, r: Range) -> Tensor:
        n, lead, dtype = self.case.spec.n, self.lead, TORCH_DTYPES[o.dtype]
        own = self.case.spec.batched and o.name not in self.case.shared
        of_all = self.case.spec.batched and not own
        rows = lead[-1:] if of_all or o.strided else lead
        size = {Space.TILE: (*rows, n), Space.ROW: (lead[0], n) if own else (n,), Space.COLUMN: rows}[o.space]
        if own and o.space is Space.COLUMN:
            size = (*rows, 1)
        drawn = self._random(size, r)
        drawn = drawn.abs() if dtype in (torch.bool, torch.uint8) else drawn
        drawn = drawn.to(dtype)
        return drawn.expand(*lead, n) if o.strided and not of_all else drawn

    def outputs(self) -> Outputs:
        """Strided ones by turns column-major and sliced."""
        strided = [o.name for o in self.case.spec.outputs if o.strided]
        layouts = {name: ("columns", "slice")[(i + self.case.choice) % 2] for i, name in enumerate(strided)}
        return Outputs(self.case.spec, self.case.output_spaces, self.lead, layouts, self._device)

    def launcher(self, kernel: LoadedKernel, out: Outputs) -> Callable[[], None]:
        """The kernel alone."""
        c = self.case
        return prepare(kernel, c.spec, self.a, self.b, self.operands, out.tensors, c.scalars)

    def caller(self, out: Outputs) -> Callable[[], None]:
        """The op."""
        c, operands = self.case, [*self.b[1:], *self.operands]
        return lambda: ops.region_out(c.text, self.a, self.b[0], operands, list(c.scalars), list(out.tensors))

    def evaluated(self, dtype: torch.dtype) -> list[Tensor]:
        """The reference in this dtype, unrounded, in the order of Outputs.tiles."""
        c = self.case
        results = reference.evaluate(
            c.spec, self.a, self.b, self.operands, c.scalars, dtype=dtype, round_outputs=False
        )
        slots = zip(results, c.output_spaces, c.spec.outputs, strict=True)
        batches = self.lead[0] if c.spec.batched else None
        return [ordered(x, space, batches, heads=o.heads is not None) for x, space, o in slots]

    def as_stored(self) -> list[Tensor]:
        """What a kernel whose arithmetic is torch's own float32 would store."""
        pairs = zip(self.evaluated(torch.float32), self.case.spec.outputs, strict=True)
        return [stored(x.double(), TORCH_DTYPES[o.dtype]) for x, o in pairs]

    def check(self, results: Sequence[Tensor], where: str) -> None:
        """Results, in the order of Outputs.tiles.  Of an exact program they have to be equal; else no worse
        than twice the float32 program's error, or one rounding.
        """
        exact = self.evaluated(torch.float64)
        if self.case.exact:
            for name, x, wanted in self._named(results, exact):
                _check_equal(f"{where} {name}", x, stored(wanted, x.dtype))
            return
        single = self.evaluated(torch.float32)
        for (name, x, wanted), eager in zip(self._named(results, exact), single, strict=True):
            eager_error = relative_error(eager.to(x.dtype), wanted)
            allowed = max(tolerance(x.dtype, weighty(wanted)), 2 * eager_error)
            error = relative_error(x, wanted)
            assert error <= allowed, f"{where} {name}: error {error:.2e}, {allowed:.2e} allowed"
            _check_each(f"{where} {name}", x, wanted, eager)

    def _named(
        self, results: Sequence[Tensor], exact: Sequence[Tensor]
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        names = (f"{o.name} ({o.dtype.value})" for o in self.case.spec.outputs)
        return zip(names, results, exact, strict=True)


def _check_equal(where: str, x: Tensor, wanted: Tensor) -> None:
    got, want = x.double(), wanted.double()
    differ = ~((got == want) | (got.isnan() & want.isnan()))
    if bool(differ.any()):
        at = tuple(differ.nonzero()[0].tolist())
        raise AssertionError(
            f"{where}: {int(differ.sum())} of {differ.numel()} wrong; at {at} {float(got[at])},"
            f" not {float(want[at])}"
        )


def _check_each(where: str, x: Tensor, wanted: Tensor, eager: Tensor) -> None:
    """No element is off by more than two roundings and eight times float32's largest error."""
    got, scale = x.double(), float(wanted.abs().max())
    slack = 8 * float((eager.double() - wanted).abs().max()) + 1e-5 * scale
    unit = tolerance(x.dtype, 1) * wanted.abs() + float(torch.finfo(x.dtype).smallest_normal)
    differ = (got - wanted).abs() > 2 * unit + slack
    assert not bool(differ.any()), (
        f"{where}: {int(differ.sum())} of {differ.numel()} elements are off; the first at"
        f" {differ.nonzero()[0].tolist()}"
    )


def of_seed(seed: int) -> RandomCase:
    drawn = draw(seed)
    text, choice = drawn.builder.spec().text(), random.Random(~seed).randrange(1000)
    kind = "exact" if drawn.exact else "smooth"
    return RandomCase(
        f"seed{seed}-{kind}",
        text,
        choice,
        drawn.exact,
        drawn.ranges,
        drawn.scalars,
        drawn.leads,
        drawn.shared,
    )


def record(case: RandomCase) -> str:
    """A line of regressions.jsonl: the program itself, whatever becomes of the drawing."""
    return json.dumps(asdict(case))


def restored(line: str) -> RandomCase:
    fields: dict[str, Any] = json.loads(line)
    fields["ranges"] = tuple(Range(**r) for r in fields["ranges"])
    fields["leads"] = tuple(map(tuple, fields["leads"]))
    return RandomCase(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def cases() -> list[RandomCase]:
    """The programs of all seeds, and those that failed once."""
    kept = REGRESSIONS.read_text().splitlines() if REGRESSIONS.exists() else []
    return [*map(of_seed, SEEDS), *map(restored, kept)]


if __name__ == "__main__":
    from comfuse.generator.emit.readable import describe

    for found in map(of_seed, map(int, sys.argv[1:])):
        print(f"{found}  leads {found.leads}", *describe(found.spec), record(found), sep="\n")
