"""Inputs, tolerances and launches shared by the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.launch import prepare
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.library import LoadedKernel
from tests.gpu.programs import TORCH_DTYPES, Program

DEVICE = "cuda"
GUARD_ROWS = 130  # rows behind an output that must stay as they were: more than a tile's


@dataclass(frozen=True)
class Case:
    """A program at one N and dtype, by the plan of the given schedule and tile, e.g. ``"pingpong-128x128"``.

    ``schedule`` None: what the planner chooses.  K is no part of a case: kernels serve every K.
    """

    program: Program
    n: int
    dtype: DType = DType.BF16
    schedule: str | None = None
    k: int = 72
    cluster_n: int | None = None

    def __str__(self) -> str:
        tail = self.schedule or "planned"
        cluster = f"-c{self.cluster_n}" if self.cluster_n else ""
        return f"{self.program.name}-n{self.n}-{self.dtype.value}-{tail}{cluster}"

    @property
    def spec(self) -> FusedSpec:
        return self.program.spec(self.n, self.k, self.dtype)


@dataclass
class Tensors:
    """The inputs of one launch, and its float64 reference on some of the rows."""

    program: Program
    a: Tensor
    b: Tensor
    operands: tuple[Tensor, ...]
    output_dtypes: tuple[torch.dtype, ...]
    output_spaces: tuple[Space, ...]
    rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        m = self.a.shape[0]
        borders = (0, 1, 63, 64, 127, 128, 129, 255, 256, m - 129, m - 128, m - 2, m - 1)
        spread = range(0, m, max(1, m // 200))
        self.rows = torch.tensor(sorted({r for r in (*borders, *spread) if 0 <= r < m}), device=self.a.device)

    @property
    def m(self) -> int:
        return self.a.shape[0]

    @property
    def n(self) -> int:
        return self.b.shape[0]

    def reference(self, rows: Tensor | None = None) -> tuple[Tensor, ...]:
        """float64 results on these rows, by default ``self.rows``."""
        rows = self.rows if rows is None else rows
        acc = self.a[rows].double() @ self.b.double().t()
        sampled = []
        spaces = [space for _, space, _ in self.program.operands if space is not Space.SCALAR]
        for tensor, space in zip(self.operands, spaces, strict=True):
            sampled.append(tensor if space is Space.ROW else tensor[rows])
        return self.program.reference(acc, tuple(sampled))


def make_tensors(
    case: Case, m: int, k: int, *, seed: int = 0, integers: bool = False, row_offset: float = 0.0
) -> Tensors:
    """Fresh random inputs: a GEMM of unit variance, tile operands whose rows have different means.

    ``integers``: small whole numbers, whose GEMM is exact in float32.  ``row_offset`` is added to the first
    tile operand.
    """
    generator = torch.Generator(DEVICE).manual_seed(1_000_003 * m + 1_009 * case.n + 17 * k + seed)
    spec, dtype = case.spec, TORCH_DTYPES[case.dtype]

    def random(*size: int) -> Tensor:
        if integers:
            return torch.randint(-2, 3, size, device=DEVICE, generator=generator).float()
        return torch.randn(*size, device=DEVICE, generator=generator)

    a, b = random(m, k).to(dtype), random(case.n, k)
    b = (b if integers else b / k**0.5).to(dtype)
    operands = []
    for o in spec.operands:
        if o.space is Space.TILE:
            value = random(m, case.n) + (0 if integers else 3 * random(m, 1)) + row_offset
            row_offset = 0.0
        elif o.space is Space.ROW:
            value = random(case.n)
        elif o.space is Space.COLUMN:
            value = random(m).abs() + 0.5
        else:
            continue
        operands.append(value.to(TORCH_DTYPES[o.dtype]))
    dtypes = tuple(TORCH_DTYPES[o.dtype] for o in spec.outputs)
    return Tensors(case.program, a, b, tuple(operands), dtypes, _output_spaces(spec))


def _output_spaces(spec: FusedSpec) -> tuple[Space, ...]:
    """Spaces of the outputs: a value is a tile if it reads one other than through a row reduction."""
    spaces: list[Space] = []
    for node in spec.nodes:
        if node.op == "gemm":
            spaces.append(Space.TILE)
        elif node.op == "load":
            assert node.operand is not None
            spaces.append(spec.operands[node.operand].space)
        elif node.op.startswith("row_") or node.op == "field":
            spaces.append(Space.COLUMN)
        else:
            joined = Space.SCALAR
            for i in node.inputs:
                joined = joined.join(spaces[i])
            spaces.append(joined)
    return tuple(spaces[o.node] for o in spec.outputs)


class Outputs:
    """Output tensors of one launch: NaN before it, and followed by rows that must not be written."""

    def __init__(self, t: Tensors) -> None:
        self._guarded = []
        for dtype, space in zip(t.output_dtypes, t.output_spaces, strict=True):
            size = (t.m + GUARD_ROWS, t.n) if space is Space.TILE else (t.m + GUARD_ROWS,)
            self._guarded.append(torch.full(size, float("nan"), device=DEVICE, dtype=dtype))
        self.tensors = tuple(g[: t.m] for g in self._guarded)

    def poison(self) -> None:
        for g in self._guarded:
            g.fill_(float("nan"))

    def check_guards(self) -> None:
        """Nothing was written behind the last row, and nothing before it was left out."""
        for g, t in zip(self._guarded, self.tensors, strict=True):
            assert bool(torch.isnan(g[t.shape[0] :]).all()), "a row behind the output was written"
            assert not bool(torch.isnan(t).any()), (
                f"{int(torch.isnan(t).sum())} elements are NaN or unwritten"
            )


def launcher(kernel: LoadedKernel, t: Tensors, out: Outputs) -> Callable[[], None]:
    return prepare(kernel, t.a, t.b, t.operands, out.tensors, t.program.scalars)


def run(kernel: LoadedKernel, t: Tensors) -> tuple[Tensor, ...]:
    """One launch into poisoned outputs, checked for what was and was not written."""
    out = Outputs(t)
    launcher(kernel, t, out)()
    torch.cuda.synchronize()
    out.check_guards()
    return out.tensors


def tolerance(dtype: torch.dtype, count: int) -> float:
    """Relative Frobenius error allowed for ``count`` elements: one rounding to ``dtype``, and float32's share.

    A rounding errs by at most half a unit in the last place, 2^-8 of a bf16 value; over many values the
    root of the mean square stays below half of that.
    """
    rounding = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float32: 0.0}[dtype]
    return rounding / (2 if count >= 256 else 1) + 4e-5


def relative_error(output: Tensor, reference: Tensor) -> float:
    return float((output.double() - reference).norm() / reference.norm())


def check(t: Tensors, outputs: tuple[Tensor, ...], where: str = "") -> None:
    """Outputs against float64 on the sampled rows."""
    for (name, _), output, reference in zip(t.program.outputs, outputs, t.reference(), strict=True):
        error, allowed = relative_error(output[t.rows], reference), tolerance(output.dtype, reference.numel())
        assert error <= allowed, f"{where} {name}: error {error:.2e} against float64, {allowed:.2e} allowed"


def poison_allocator(*likes: Tensor, copies: int = 4) -> None:
    """Leave NaN in memory that the caching allocator hands out next for tensors of these sizes."""
    held = [torch.full_like(t, float("nan")) for t in likes for _ in range(copies)]
    torch.cuda.synchronize()
    del held


def bits(t: Tensor) -> Tensor:
    """The bit patterns: NaNs compare equal too."""
    return t.contiguous().view({2: torch.int16, 4: torch.int32}[t.element_size()])


def same_bits(a: Any, b: Any) -> bool:
    return bool(torch.equal(bits(a), bits(b)))
