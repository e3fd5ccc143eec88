"""What ``explain`` says of programs of every shape."""

from __future__ import annotations

import pytest

from comfuse import explain
from comfuse.errors import ArgumentError
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog import chains
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.spec import DType, FusedSpec, Major, Pair, Space

BF16, FP32 = DType.BF16, DType.FP32


def text(spec: FusedSpec | ChainSpec, m: int = 8192) -> list[str]:
    return [line.strip() for line in str(explain(spec, m)).split("\n")]


@pytest.mark.parametrize("keywords", [{}, {"training": True}])
def test_what_is_no_program_is_an_error(keywords):
    with pytest.raises(ArgumentError, match="explain: program is of type int; allowed: a function, a"):
        explain(3, **keywords)


def test_tails_say_who_stores_what():
    b = SpecBuilder(4096, 1024, BF16)
    x = b.op("relu", b.gemm(), name="x")
    b.output("total", b.op("row_sum", x), FP32)
    b.output("sums", b.op("col_sum", x), FP32)
    b.output("loss", b.op("full_sum", x), FP32)
    said = text(b.spec())
    behind = said.index("behind them, without waiting")
    assert said[behind + 1 : behind + 4] == [
        "the last tile of each row block stores total",
        "the last tile of each block of columns stores sums",
        "the last tile of all stores loss",
    ]
    assert "reduces x by col_sum" in said
    assert (
        "reductions along rows: by the last tile of a row block, from partials in a workspace in L2" in said
    )


def test_groups_layouts_products_and_strides():
    b = SpecBuilder(1024, 1024, BF16, products=2, group=64, a_major=Major.MN, b_major=Major.MN)
    gate, up = b.gemm(0, "gate"), b.gemm(1, "up")
    h = b.op("add", b.op("mul", gate, up), b.load("position", Space.TILE, BF16, strided=True), name="h")
    y = b.op("mul", h, b.op("rsqrt", b.op("group_sumsq", h, name="squares"), name="rrms"))
    b.output("y", b.op("add", y, b.load("residual", Space.TILE, BF16)), BF16)
    said = text(b.spec())
    assert (
        "M = 8192, N = 1024, K = 1024, bf16, 2 products, A contiguous along M, B contiguous along N" in said
    )
    assert "h = a @ b0.T * (a @ b1.T) + position" in said
    assert "position: (M, N) bf16, rows at any strides" in said
    assert "reads position from global memory" in said
    assert "streams residual through shared memory" in said
    assert "per row and 64 columns, in registers: rrms" in said
    assert "gate and up share A and accumulate side by side" in said


def test_a_second_a_and_its_layout():
    b = SpecBuilder(1024, 512, BF16, products=2, second=Pair(256, Major.MN, Major.MN))
    b.output("y", b.op("mul", b.gemm(0, "gate"), b.gemm(1, "up")), BF16)
    said = text(b.spec())
    assert (
        "M = 8192, N = 1024, K = 512, bf16, 2 products, K1 = 256, A1 contiguous along M, B1 contiguous"
        " along N" in said
    )
    assert "y = a0 @ b0.T * (a1 @ b1.T)" in said
    assert "gate and up have an A each and accumulate side by side, one after the other" in said


def test_feedback_of_a_column_is_shown_as_two_kernels():
    b = SpecBuilder(1024, 512, BF16)
    x = b.gemm()
    stats = b.op("col_welford", x, name="stats")
    b.output("y", b.op("sub", x, b.field(stats, "mean"), name="centred"), BF16)
    explanation = explain(b.spec(), 8192)
    assert explanation.plan is None
    assert "all of them have to run at once; M <= 4224 fits, planned for M = 8192" in explanation.refused
    assert len(explanation.stages) == 2
    said = text(b.spec())
    assert "2 kernels, one after the other, not one: " + explanation.refused in said
    assert "the last tile of each block of columns stores mean" in said
    assert said.index("kernel 1 of 2") < said.index("kernel 2 of 2") < said.index("y = a @ b.T - mean")


def test_feedback_of_a_column_is_one_kernel_for_as_many_rows_as_run_at_once():
    b = SpecBuilder(1024, 512, BF16)
    x = b.gemm()
    mean = b.field(b.op("col_welford", x, name="stats"), "mean", name="mean")
    b.output("y", b.op("sub", x, mean, name="centred"), BF16)
    b.output("mean", mean, FP32)
    explanation = explain(b.spec(), 4224)
    assert explanation.plan is not None
    assert explanation.stages == ()
    said = text(b.spec(), 4224)
    assert "rows       at most 4224: all tiles run at once" in said
    assert "stats: the tiles of a block of columns exchange partials and wait for each other's" in said
    assert "the first tile of each block of columns stores mean" in said


@pytest.mark.parametrize("gpu", ["h200", "h100:114"])
def test_any_gpu_of_the_planner(gpu):
    b = SpecBuilder(1024, 512, BF16)
    b.output("y", b.gemm(), BF16)
    assert f"kernel for {gpu}" in str(explain(b.spec(), gpu=gpu))


def test_a_chain_says_what_happens_between_its_gemms():
    chain = chains.mlp(128, 64, 256, BF16, b0=BF16, residual=BF16)
    explanation = explain(chain, 100_000)
    assert isinstance(explanation.plan, ChainPlan)
    said = text(chain, 100_000)
    assert said[:2] == ["a chain", "M = 100000, K = 64, H = 256, N = 128, bf16"]
    assert {"middle = gelu(a @ w0.T + b0)", "y = middle @ w1.T + residual"} <= set(said)
    assert {"b0: (H,) bf16", "residual: (M, N) bf16"} <= set(said)
    between = next(i for i, line in enumerate(said) if line.startswith("between the GEMMs"))
    assert said[between + 1 : between + 3] == ["accumulators hold acc", "hands on middle"]
    assert "weights    all stay in shared memory" in said
    assert f"name       {explanation.kernel}" in said
    assert len(explanation.considered) == 8


def test_a_chain_that_is_not_one_kernel_is_shown_as_two():
    chain = chains.mlp(512, 128, 256, BF16)
    explanation = explain(chain, 100_000)
    assert explanation.plan is None
    assert explanation.refused == "N = 512; a tile has to hold whole rows, of at most 256 columns"
    assert [p.spec.n for p in explanation.stages] == [256, 512]
    assert "2 kernels, one after the other, not one: " + explanation.refused in text(chain, 100_000)
