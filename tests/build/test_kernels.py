"""Kernels of every schedule and layout: what the compilers say of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from comfuse import library
from comfuse.build import build
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.emit import emit
from comfuse.generator.plan import SCHEDULES, KernelPlan, TileShape, candidates, force, plan
from comfuse.generator.spec import DType, FusedSpec, Major, Space

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compilers")]

BF16 = DType.BF16


def layernorm() -> FusedSpec:
    """Keeps much alive."""
    return catalog.layernorm(1024, 1024, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)


def gated() -> FusedSpec:
    b = SpecBuilder(1024, 1024, BF16, products=2)
    b.output("y", b.op("mul", b.op("silu", b.gemm()), b.gemm(1)), BF16)
    return b.spec()


def affine(n: int = 1024, a: Major = Major.K, b: Major = Major.K, batched: bool = False) -> FusedSpec:
    builder = SpecBuilder(n, 1024, BF16, a_major=a, b_major=b, batched=batched)
    y = builder.op("add", builder.gemm(), builder.load("bias", Space.ROW, BF16))
    y = builder.op("add", y, builder.load("residual", Space.TILE, BF16))
    builder.output("y", y, BF16)
    return builder.spec()


def column_feedback() -> FusedSpec:
    """BatchNorm in training, its statistics outputs too, beside an exchange of rows."""
    b = SpecBuilder(1000, 1024, BF16)
    x = b.op("add", b.gemm(), b.load("residual", Space.TILE, BF16))
    stats = b.op("col_welford", x)
    mean, rstd = b.field(stats, "mean"), b.op("rsqrt", b.field(stats, "var"))
    y = b.op("mul", b.op("mul", b.op("sub", x, mean), rstd), b.load("weight", Space.ROW, BF16))
    b.output("y", b.op("sub", y, b.op("row_max", x)), BF16)
    b.output("mean", mean, DType.FP32)
    b.output("rstd", rstd, DType.FP32)
    return b.spec()


ROWS = 128  # few enough for all tiles to run at once
PROGRAMS: dict[str, Callable[[], FusedSpec]] = {
    "layernorm": layernorm,
    "two-products": gated,
    "two-factors": lambda: catalog.middle_gradient(
        1024, 1024, 512, BF16, b0=BF16, activation="gelu", sums=True
    ),
    "mn-major": lambda: affine(a=Major.MN, b=Major.MN),
    "mn-major-a": lambda: affine(a=Major.MN),
    "batched": lambda: affine(batched=True),
    "unaligned": lambda: affine(n=1003),
    "column-feedback": column_feedback,
    "unaligned-batched-mn-major": lambda: affine(n=1003, a=Major.MN, b=Major.MN, batched=True),
}


def plans() -> list[object]:
    """Of each program and schedule the largest tiles, which hold most registers."""
    chosen: list[object] = []
    for name, spec in PROGRAMS.items():
        found = [plan for plan in candidates(spec(), m=ROWS) if isinstance(plan, KernelPlan)]
        for schedule in SCHEDULES:
            of_schedule = [plan for plan in found if plan.schedule == schedule]
            if of_schedule:
                plan = max(of_schedule, key=lambda p: (p.tile_n, p.cluster_n))
                name_of = f"{name}-{schedule}-{plan.tile_m}x{plan.tile_n}"
                chosen.append(pytest.param(plan, id=name_of))
    # The widest single wgmma; a width whose quarter, by which Welford's sums divide, is no power of two.
    for n, width in ((1024, 256), (1152, 288)):
        spec = catalog.layernorm(n, 1024, BF16, bias=BF16, residual=BF16, ln_weight=BF16, ln_bias=BF16)
        chosen.append(pytest.param(force(spec, TileShape("cooperative", 128, width, 2)), id=f"{n}-{width}"))
    # Halves of B to both CTAs of a cluster: in groups of 32 columns, and in blocks of 64.
    for name in ("layernorm", "mn-major", "two-products", "column-feedback"):
        spec = PROGRAMS[name]()
        shape = TileShape("cooperative", 128, 128 if spec.products > 1 else 256, 1, cluster_m=2)
        chosen.append(pytest.param(force(spec, shape, m=2 * ROWS), id=f"{name}-along-m"))
    return chosen


@pytest.mark.parametrize("plan", plans())
def test_kernels_do_not_spill(plan: KernelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does nvcc warn of anything.  In the user's own cache: these compile for seconds each."""
    monkeypatch.setenv("COMFUSE_NVCC_FLAGS", "-Werror=all-warnings")
    built = build(emit(plan))
    facts = built.info["ptxas"]
    assert facts["functions"] == 1
    assert facts["spill_bytes"] == 0
    assert built.info["plan"]["schedule"] == plan.schedule
    assert built.info["spec"] == plan.spec.text()
    assert library.load(built).workspace_bytes(1) >= 0


def test_values_may_be_called_what_cuda_calls_its_functions() -> None:
    b = SpecBuilder(128, 64, BF16)
    y = b.gemm()
    for op in ("sqrt", "exp", "rsqrt"):
        y = b.op(op, y, name=op)
    b.output("y", y, BF16)
    build(emit(plan(b.spec())))
