"""Programs that read column or full reductions in their tiles, as several kernels."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.errors import PlanError
from comfuse.generator.interpret import Value, interpret
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases import split
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.generator.stages import Source, Stage, stages

from .strategies import TAME, agree, arguments, is_stable, specs

BF16, FP32 = DType.BF16, DType.FP32


def run(spec: FusedSpec, cut: tuple[Stage, ...], gemm, operands: list[Value]) -> list[Value]:
    """The outputs of the whole, stage by stage."""
    stored: list[list[Value]] = []
    whole: dict[int, Value] = {}
    for stage in cut:
        given = []
        for operand, source in zip(stage.spec.operands, stage.operands, strict=True):
            value = operands[source.index] if source.stage is None else stored[source.stage][source.index]
            if isinstance(value, float) and operand.space is not Space.SCALAR:
                rows = len(gemm) if spec.products == 1 else len(gemm[0])
                value = [value] * (spec.n if operand.space is Space.ROW else rows)
            given.append(value)
        stored.append(interpret(stage.spec, gemm, given))
        for value, output in zip(stored[-1], stage.outputs, strict=True):
            if output is not None:
                whole[output] = value
    return [whole[o] for o in range(len(spec.outputs))]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_stages_mean_what_the_whole_means(data: st.DataObject) -> None:
    spec = data.draw(specs(TAME, max_nodes=25, feedback=True))
    try:
        cut = stages(spec)
    except PlanError as e:
        assert e.node  # noqa: PT017
        assume(False)
    for stage in cut:
        split(stage.spec)  # each is one kernel
        assert normalize(stage.spec) == stage.spec
        assert {o.name for o in stage.spec.outputs if o.dtype is not FP32} <= {o.name for o in spec.outputs}
    assert sorted(o for s in cut for o in s.outputs if o is not None) == list(range(len(spec.outputs)))
    gemm, operands = data.draw(arguments(spec))
    if not agree(interpret(spec, gemm, operands), run(spec, cut, gemm, operands)):
        assume(is_stable(spec, gemm, operands))
        pytest.fail("the stages mean something else")


@settings(max_examples=100, deadline=None)
@given(specs())
def test_without_feedback_there_is_one_stage(spec: FusedSpec) -> None:
    (stage,) = stages(spec)
    assert stage.spec == normalize(spec)
    assert stage.operands == tuple(Source(None, i) for i in range(len(spec.operands)))
    assert stage.outputs == tuple(range(len(spec.outputs)))


def batch_norm(b: SpecBuilder, x: int) -> int:
    stats = b.op("col_welford", x, name="stats")
    mean = b.field(stats, "mean")
    rstd = b.op("rsqrt", b.op("add", b.field(stats, "var"), b.const(1e-5)), name="rstd")
    return b.op("mul", b.op("sub", x, mean), rstd)


def test_batch_norm_is_two_kernels() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.op("add", b.gemm(), b.load("bias", Space.ROW, BF16), name="x")
    y = batch_norm(b, x)
    b.output("y", b.op("mul", y, b.load("weight", Space.ROW, BF16)), BF16)
    first, second = stages(b.spec())
    assert [(o.name, o.dtype) for o in first.spec.outputs] == [("mean", FP32), ("rstd", FP32)]
    assert first.outputs == (None, None)
    assert [o.name for o in first.spec.operands] == ["bias"]
    assert [(o.name, o.space) for o in second.spec.operands] == [
        ("bias", Space.ROW), ("mean", Space.ROW), ("rstd", Space.ROW), ("weight", Space.ROW),
    ]  # fmt: skip
    assert second.operands == (Source(None, 0), Source(0, 0), Source(0, 1), Source(None, 1))
    assert second.outputs == (0,)
    assert not any(node.op.startswith("col_") for node in second.spec.nodes)


def test_a_chain_of_batch_norms_is_as_many_kernels_and_one() -> None:
    b = SpecBuilder(64, 64, BF16)
    b.output("y", batch_norm(b, b.op("relu", batch_norm(b, b.gemm()))), BF16)
    cut = stages(b.spec())
    assert len(cut) == 3
    assert [s.stage for s in cut[2].operands] == [0, 0, 1, 1]
    assert len({o.name for o in cut[2].spec.operands}) == 4


def test_what_the_first_stage_completes_it_stores() -> None:
    """The running statistics of BatchNorm are outputs beside what the second stage reads."""
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    mean = b.op("div", b.op("col_sum", x, name="total"), b.row_count(), name="mean")
    b.output("y", b.op("sub", x, mean), BF16)
    b.output("mean", mean, FP32)
    b.output("peak", b.op("row_max", x), FP32)
    first, second = stages(b.spec())
    assert (first.outputs, second.outputs) == ((1, 2, None), (0,))
    assert [o.name for o in first.spec.outputs] == ["mean", "peak", "mean_2"]


@pytest.mark.parametrize(
    "reduction, space", [(None, Space.ROW), ("row_sum", Space.COLUMN), ("group_max", Space.COLUMN)]
)
def test_a_number_comes_as_a_vector_of_its_readers_kind(reduction: str | None, space: Space) -> None:
    b = SpecBuilder(64, 64, BF16, group=32)
    x = b.gemm()
    scale = b.op("full_max", b.op("abs", x), name="amax")
    b.output("y", b.op("mul", x if reduction is None else b.op(reduction, x), scale), FP32)
    first, second = stages(b.spec())
    assert spaces(first.spec)[first.spec.outputs[0].node] is Space.SCALAR
    assert [(o.name, o.space) for o in second.spec.operands] == [("amax", space)]
    assert spaces(second.spec)[second.spec.outputs[0].node] is spaces(b.spec())[b.spec().outputs[0].node]


def test_what_no_stage_can_store_is_refused() -> None:
    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    b.output("y", b.op("mul", b.load("w", Space.ROW), b.op("full_sum", x), name="scaled"), FP32)
    with pytest.raises(PlanError, match="combine them outside") as caught:
        stages(b.spec())
    assert caught.value.node == "scaled"

    b = SpecBuilder(64, 64, BF16)
    x = b.gemm()
    first = b.op("full_sum", x)
    second = b.op("full_sum", b.op("square", b.op("mul", x, first)))
    b.output("y", b.op("div", second, first, name="ratio"), FP32)
    with pytest.raises(PlanError, match="complete at different times") as caught:
        stages(b.spec())
    assert caught.value.node == "ratio"


def test_the_catalogue_is_one_kernel_each() -> None:
    for spec in (catalog.layernorm(64, 64, BF16), catalog.gemma_block(64, 64, BF16)):
        assert len(stages(spec)) == 1
