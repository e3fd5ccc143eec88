"""Inputs and launches shared by the tests; what is compared with what is in compare.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bench import launch
from bench.launch import forced_plan, prepare
from comfuse import ops
from comfuse.generator import plan as planner
from comfuse.generator.passes.infer import spaces
from comfuse.generator.plan import KernelPlan
from comfuse.generator.spec import DType, FusedSpec, Major, Pair, Space
from comfuse.library import LoadedKernel
from tests.gpu.algebra import TORCH_DTYPES, Geometry, In, Program
from tests.gpu.kernels import Kernels
from tests.gpu.outputs import PATTERNS, Outputs, bits, picked

DEVICE = "cuda"

# Cooperative tiles of these widths take the same code as the others; test_widths.py is about what they do not
# share.  Elsewhere the others stand for them.
WIDTHS = tuple(f"cooperative-128x{n}" for n in (192, 224, 288, 320))
SCHEDULES = tuple(s for s in launch.SCHEDULES if s not in WIDTHS)


@dataclass(frozen=True)
class Case:
    """A program at one N and dtype, by the plan of the given schedule and tile, e.g. ``"pingpong-128x128"``.

    ``schedule`` None: what the planner chooses.  K is no part of a case: kernels serve every K.  ``m``: the
    rows to plan for, where the kernel serves only so many.  ``second``: the second product has an A of its
    own.
    """

    program: Program
    n: int
    dtype: DType = DType.BF16
    schedule: str | None = None
    k: int = 72
    cluster_n: int | None = None
    a_major: Major = Major.K
    b_major: Major = Major.K
    batched: bool = False
    m: int | None = None
    second: Pair | None = None

    def __str__(self) -> str:
        parts = [self.program.name, f"n{self.n}", self.dtype.value]
        if Major.MN in (self.a_major, self.b_major):
            parts.append(f"{self.a_major.value}-{self.b_major.value}")
        parts += ["batched"] if self.batched else []
        parts.append(self.schedule or "planned")
        parts += [f"c{self.cluster_n}"] if self.cluster_n else []
        parts += [f"m{self.m}"] if self.m else []
        if self.second is not None:
            parts.append(f"{self.second.a_major.value}-{self.second.b_major.value}-k{self.second.k}")
        return "-".join(parts)

    @property
    def spec(self) -> FusedSpec:
        return self.spec_of(self.k)

    @property
    def may_be_refused(self) -> bool:
        """A program need not fit every schedule, but the planner has to find one for it."""
        return self.schedule is not None

    def plan(self) -> KernelPlan:
        if self.schedule is None:
            return planner.plan(self.spec, m=self.m)
        return forced_plan(self.spec, self.schedule, self.cluster_n, self.m)

    def spec_of(self, k: int) -> FusedSpec:
        majors = (self.a_major, self.b_major)
        return self.program.spec(Geometry(self.n, k, self.dtype, *majors, self.batched, self.second))

    def text(self, k: int) -> str:
        """What the op calls this case: the text of its spec, with the schedule in an output's name, so that
        each schedule is served by its own kernel.
        """
        spec = self.spec_of(k)
        if self.schedule is None:
            return spec.text()
        suffix = f"_{self.schedule}_{self.cluster_n or 0}".replace("-", "_")
        first, *rest = spec.outputs
        return replace(spec, outputs=(replace(first, name=first.name + suffix), *rest)).text()


@dataclass
class Tensors:
    """The inputs of one launch, and its float64 reference.

    ``a`` (..., K) and ``b``, one for each product, (N, K); batched (batch, M, K) and (N, K) or
    (batch, N, K).  The second product's own A, if it has one, comes before its B.  ``operands`` in the shapes
    that the op takes.  ``rows``: those that are compared, all of them where a reduction runs over the rows.
    """

    case: Case
    a: Tensor
    b: tuple[Tensor, ...]
    operands: tuple[Tensor, ...]
    rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        m = self.m
        borders = (0, 1, 63, 64, 127, 128, 129, 255, 256, m - 129, m - 128, m - 2, m - 1)
        spread = range(0, m, max(1, m // 200))
        if any(node.op.startswith(("col_", "full_")) for node in self.case.spec.nodes):
            spread = range(m)
        self.rows = torch.tensor(sorted({r for r in (*borders, *spread) if 0 <= r < m}), device=self.a.device)

    @property
    def program(self) -> Program:
        return self.case.program

    @property
    def lead(self) -> tuple[int, ...]:
        return tuple(self.a.shape[:-1])

    @property
    def m(self) -> int:
        """Rows of a batch."""
        return self.a.shape[-2] if self.case.batched else self.lead_size

    @property
    def lead_size(self) -> int:
        return torch.Size(self.lead).numel()

    @property
    def n(self) -> int:
        return self.case.n

    @property
    def k(self) -> int:
        return self.a.shape[-1]

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.program.outputs)

    @property
    def output_spaces(self) -> tuple[Space, ...]:
        spec = self.case.spec
        return tuple(spaces(spec)[o.node] for o in spec.outputs)

    def outputs(self, layouts: Mapping[str, str] | None = None) -> Outputs:
        """Poisoned outputs for one launch: see Outputs for their layouts."""
        device = str(self.a.device)
        return Outputs(self.case.spec, self.output_spaces, self.lead, layouts, device)

    def reference(self, rows: Tensor | None = None) -> tuple[Tensor, ...]:
        """float64 results in the order of Outputs.tiles, on these rows, by default ``self.rows``."""
        rows = self.rows if rows is None else rows
        acc = [self._picked(a, rows) @ b.double().mT for a, b in self._pairs()]
        inputs = [o for o in self.program.operands if o.space is not Space.SCALAR]
        sampled = [self._sampled(o, x, rows) for o, x in zip(inputs, self.operands, strict=True)]
        results = self.program.reference(acc, sampled, rows, self.m)
        return tuple(
            self._shaped(result, space, acc[0].shape)
            for result, space in zip(results, self.output_spaces, strict=True)
        )

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        if self.case.second is None:
            return [(self.a, b) for b in self.b]
        first, own, second = self.b
        return [(self.a, first), (own, second)]

    def _picked(self, a: Tensor, rows: Tensor) -> Tensor:
        return (a if self.case.batched else a.reshape(-1, a.shape[-1])).index_select(-2, rows).double()

    def _sampled(self, operand: In, tensor: Tensor, rows: Tensor) -> Tensor:
        """An operand as the reference takes it: broadcast to (batches, rows, N), or (rows, N)."""
        batched, space = self.case.batched, operand.space
        if space is Space.ROW:
            return tensor if tensor.dim() != 2 or not batched else tensor[:, None, :]
        if not batched:
            tensor = tensor.reshape(-1, self.n if space is Space.TILE else 1)
        elif space is Space.COLUMN and tensor.dim() == 1:
            tensor = tensor[:, None]
        return picked(tensor, Space.TILE, rows)

    def _shaped(self, value: Tensor, space: Space, tile: torch.Size) -> Tensor:
        if space is Space.TILE:
            return value.expand(tile)
        if space is Space.GROUP:
            assert self.program.group is not None
            return value.expand(tile)[..., :: self.program.group]
        if space is Space.COLUMN:
            return value.expand(*tile[:-1], 1)[..., 0]
        return value.reshape(self.n if space is Space.ROW else ())


def make_tensors(
    case: Case,
    m: int | tuple[int, ...],
    k: int,
    *,
    seed: int = 0,
    integers: bool = False,
    row_offset: float = 0.0,
    shared: Collection[str] = (),
    device: str = DEVICE,
) -> Tensors:
    """Fresh random inputs: a GEMM of unit variance, tile operands whose rows have different means.

    Args:
        m: A's leading sizes; with the case batched, (batches, M).
        integers: small whole numbers, whose GEMM is exact in float32.
        row_offset: is added to the first tile operand.
        shared: of a batched case, the operands, and "b", that all batches share.  A strided operand repeats
            the rows of the last leading size.
    """
    lead = (m,) if isinstance(m, int) else m
    generator = torch.Generator(device).manual_seed(hash((lead, case.n, k, seed)) % 2**31)
    dtype, n = TORCH_DTYPES[case.dtype], case.n

    def random(*size: int) -> Tensor:
        if integers:
            return torch.randint(-2, 3, size, device=device, generator=generator).float()
        return torch.randn(*size, device=device, generator=generator)

    def value(o: In) -> Tensor:
        nonlocal row_offset
        of_all = case.batched and o.name in shared
        rows = lead[-1:] if of_all or o.strided else lead
        size = {Space.TILE: (*rows, n), Space.ROW: (n,), Space.COLUMN: rows}[o.space]
        if case.batched and not of_all:
            size = {Space.ROW: (lead[0], n), Space.COLUMN: (*rows, 1)}.get(o.space, size)
        element = TORCH_DTYPES[o.dtype or case.dtype]
        if element is torch.bool:
            return torch.rand(size, device=device, generator=generator) < 0.5
        if not element.is_floating_point:
            low, high = (0, n) if o.space is Space.COLUMN else (0 if element is torch.uint8 else -8, 9)
            return torch.randint(low, high, size, device=device, generator=generator).to(element)
        if o.space is Space.TILE:
            drawn = random(*size) + (0 if integers else 3 * random(*size[:-1], 1)) + row_offset
            row_offset = 0.0
        else:
            drawn = random(*size).abs() + 0.5 if o.space is Space.COLUMN else random(*size)
        drawn = drawn.to(element)
        return drawn.expand(*lead, n) if o.strided else drawn

    def of_rows(pair: Pair) -> Tensor:
        return first_factor(random(*lead, pair.k).to(dtype), pair.a_major, batched=case.batched)

    def of_columns(pair: Pair) -> Tensor:
        batches = (lead[0],) if case.batched and "b" not in shared else ()
        factor = random(*batches, n, pair.k)
        return laid_out((factor if integers else factor / pair.k**0.5).to(dtype), pair.b_major)

    spec = case.spec_of(k)
    a = of_rows(spec.pairs[0])
    b = [of_columns(spec.pair_of(product)) for product in range(case.program.products)]
    if spec.second is not None:
        b.insert(1, of_rows(spec.second))
    operands = tuple(value(o) for o in case.program.operands if o.space is not Space.SCALAR)
    return Tensors(case, a, tuple(b), operands)


def laid_out(x: Tensor, major: Major, extra: int = 0) -> Tensor:
    """The same values, the last dimension contiguous or the one before it; NaN between the rows.

    Rows are ``extra`` elements further apart than they have to be for TMA.
    """
    if major is Major.MN:
        return laid_out(x.mT, Major.K, extra).mT
    wide = x.new_full((*x.shape[:-1], -(-x.shape[-1] // 8) * 8 + extra), float("nan"))
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def first_factor(a: Tensor, major: Major, *, batched: bool) -> Tensor:
    """A laid out as a whole: its rows, or batched those of each batch, are one dimension."""
    if batched:
        return laid_out(a, major)
    return laid_out(a.reshape(-1, a.shape[-1]), major).unflatten(0, a.shape[:-1])


def launcher(kernel: LoadedKernel, t: Tensors, out: Outputs) -> Callable[[], None]:
    """A launch of the kernel alone, on a workspace of its own."""
    return prepare(kernel, t.case.spec_of(t.k), t.a, t.b, t.operands, out.tensors, t.program.scalars)


def caller(kernels: Kernels, t: Tensors, out: Outputs) -> Callable[[], None]:
    """A call of the op, into these outputs, that runs the case's kernel."""
    text, operands = t.case.text(t.k), [*t.b[1:], *t.operands]
    kernels.serve(t.case, text)
    return lambda: ops.region_out(text, t.a, t.b[0], operands, list(t.program.scalars), list(out.tensors))


def run(kernel: LoadedKernel, t: Tensors) -> tuple[Tensor, ...]:
    """The results of one launch, in the order of Outputs.tiles, checked for what was and was not written."""
    out = t.outputs()
    launcher(kernel, t, out)()
    torch.cuda.synchronize()
    out.check_guards()
    out.check_finite()
    return out.tiles


def written(launch: Callable[[], None], out: Outputs) -> tuple[Tensor, ...]:
    """The results of two launches, in the order of Outputs.tiles, whose outputs started from different bytes:
    the same bits both times, and nothing around them.  For values and dtypes without a NaN to tell.
    """
    results = []
    for pattern in PATTERNS:
        out.poison(pattern)
        launch()
        torch.cuda.synchronize()
        out.check_guards(pattern)
        results.append([x.clone() for x in out.tiles])
    for slot, first, second in zip(out.slots, *results, strict=True):
        differ = bits(first) != bits(second)
        assert not bool(differ.any()), (
            f"{slot.name}: {int(differ.sum())} of {differ.numel()} elements unwritten, or other bits the"
            f" second time; the first at {differ.nonzero()[0].tolist()}"
        )
    return tuple(results[0])


def run_op(kernels: Kernels, t: Tensors, layouts: Mapping[str, str] | None = None) -> tuple[Tensor, ...]:
    """Results of the op, in the order of Outputs.tiles: see written and, for the layouts, Outputs."""
    out = t.outputs(layouts)
    return written(caller(kernels, t, out), out)


def run_kernel(kernels: Kernels, t: Tensors) -> tuple[Tensor, ...]:
    """Results of the kernel alone, in the order of Outputs.tiles: see written."""
    out = t.outputs()
    return written(launcher(kernels(t.case), t, out), out)
