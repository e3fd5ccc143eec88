"""Two GEMMs side by side with an A each: text, layouts, plans, the gradient of an MLP's middle."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from comfuse.generator import catalog
from comfuse.generator.catalog import DERIVATIVES
from comfuse.generator.chain import ChainSpec, verify_chain
from comfuse.generator.emit import describe, emit
from comfuse.generator.errors import PlanError, SpecError
from comfuse.generator.interpret import interpret
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.passes import normalize
from comfuse.generator.plan import (
    GPUS,
    SHAPES_OF_TWO,
    SHAPES_OF_TWO_A,
    KernelPlan,
    Refusal,
    TileShape,
    candidates,
    cost,
    force,
    memory,
    plan,
)
from comfuse.generator.spec import DType, FusedSpec, Major, Pair

from .cpp_types import parse
from .programs import GOLDEN

BF16 = DType.BF16
K, MN = Major.K, Major.MN
SHARED = GOLDEN["gated_swiglu"]


def own(second: Pair, **changes: object) -> FusedSpec:
    return dataclasses.replace(SHARED, second=second, **changes)  # type: ignore[arg-type]


# --- the spec ---


def test_each_product_has_a_pair_of_factors() -> None:
    assert SHARED.pairs == (Pair(4096),)
    assert [SHARED.pair_of(p) for p in (0, 1)] == [Pair(4096)] * 2
    spec = own(Pair(72, MN, MN))
    assert spec.pairs == (Pair(4096), Pair(72, MN, MN))
    assert [spec.pair_of(p) for p in (0, 1)] == [*spec.pairs]
    assert (SHARED.products_of_a, spec.products_of_a, GOLDEN["gemm"].products_of_a) == (2, 1, 1)


def test_text_of_a_shared_a_is_what_it_was() -> None:
    data = json.loads(SHARED.text())
    assert (data["version"], "second" in data) == (2, False)


def test_text_of_two_factors_is_of_a_version_that_others_refuse() -> None:
    spec = own(Pair(72, MN, K))
    data = json.loads(spec.text())
    assert (data["version"], data["second"]) == (3, [72, "mn", "k"])
    assert FusedSpec.parse(spec.text()) == spec
    for version, second in ((2, [72, "mn", "k"]), (4, [72, "mn", "k"])):
        text = json.dumps({**data, "version": version, "second": second})
        if version == 2:
            assert FusedSpec.parse(text).second is None
        else:
            with pytest.raises(ValueError, match="version 4"):
                FusedSpec.parse(text)
    del data["second"]
    with pytest.raises(ValueError, match="not the text"):
        FusedSpec.parse(json.dumps(data))


def test_links_of_a_chain_share_their_a() -> None:
    h = dataclasses.replace(SHARED, outputs=SHARED.outputs[:1], n=256, second=Pair(72))
    with pytest.raises(SpecError, match="link 0: all products of a link of a chain share its A"):
        verify_chain(ChainSpec((h, catalog.linear(128, 256, BF16))))


# --- plans ---


def test_shapes_are_those_whose_accumulators_fit() -> None:
    found = candidates(own(Pair(72)))
    assert tuple(c.shape for c in found) == SHAPES_OF_TWO_A
    assert set(SHAPES_OF_TWO_A) <= set(SHAPES_OF_TWO)


def test_a_stage_holds_one_tile_of_each_factor() -> None:
    shape = TileShape("cooperative", 128, 128, 1)
    assert memory.stage_bytes(own(Pair(72)), shape) == (128 + 128) * 128
    assert memory.stage_bytes(SHARED, shape) == (128 + 2 * 128) * 128
    assert force(own(Pair(72)), shape).stages > force(SHARED, shape).stages


def test_both_gemms_count() -> None:
    m, gpu = 8192, GPUS["h200"]
    spec, n = own(Pair(1024)), SHARED.n
    expected = 2 * ((m + n) * (4096 + 1024) + m * n)
    assert cost.traffic(spec, m) == expected
    flops = 2 * m * n * (4096 + 1024)
    assert cost.floor_us(spec, gpu, m) == pytest.approx(
        1e6 * max(flops / gpu.flops, expected / gpu.bandwidth)
    )
    short, long = (plan(own(Pair(k)), m=m).predicted_us for k in (64, 4096))
    assert short < long < 1.5 * plan(own(Pair(4096)), m=2 * m).predicted_us


@pytest.mark.parametrize("k, k1, second", [(63, 64, Pair(64)), (64, 63, Pair(63)), (64, 63, Pair(63, MN, K))])
def test_both_ks_are_aligned(k: int, k1: int, second: Pair) -> None:
    with pytest.raises(PlanError, match="K = 63 must be a multiple of 8"):
        plan(own(second, k=k))
    assert plan(own(Pair(63, MN, MN)))


def test_columns_are_permuted_in_both_or_in_neither() -> None:
    assert cost.loads_permuted(own(Pair(72)))
    assert not cost.loads_permuted(own(Pair(72, K, MN)))
    assert not cost.loads_permuted(own(Pair(72), b_major=MN))


def test_decisions_name_the_factors() -> None:
    said = "\n".join(plan(own(Pair(72, MN, MN))).decisions)
    assert "gate and up have an A each and accumulate side by side, one after the other" in said
    assert "A1 is contiguous along M" in said
    assert "B1 is contiguous along N" in said
    assert describe(own(Pair(72)))[0] == "y = silu(a0 @ b0.T) * (a1 @ b1.T)"
    assert describe(own(Pair(72), batched=True))[0] == "y = silu(a0 @ b0.mT) * (a1 @ b1.mT)"


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("majors", [(K, K), (MN, K), (K, MN), (MN, MN)])
def test_emitted_majors(majors: tuple[Major, Major], batched: bool) -> None:
    text = emit(plan(own(Pair(72, *majors), a_major=MN, batched=batched))).text
    kernel = parse(text)
    gemms = kernel.aliases["Gemms"]
    names = {K: "KMajor", MN: "MNMajor"}
    assert gemms.name == "TwoGemms"
    found = [tuple(t.name for t in majors.arguments) for majors in gemms.arguments[2:4]]
    assert found == [("MNMajor", "KMajor"), tuple(names[major] for major in majors)]
    assert [t.name for t in gemms.arguments[4:]] == ["true"] * batched
    assert all(len(line) <= 110 for line in text.splitlines())


# --- the gradient of an MLP's middle ---


def middle(activation: str | None, **options: object) -> FusedSpec:
    return catalog.middle_gradient(8, 64, 32, BF16, activation=activation, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", DERIVATIVES)
def test_gradient_is_that_of_the_middle(activation: str | None) -> None:
    """By differences, away from the edges of those that have some."""
    x = [-3.4, -2.2, -1.1, -0.3, 0.4, 1.2, 2.3, 3.6]
    grad, bias, step = [1.0, -2.0, 0.5, 3.0, -1.5, 2.5, 0.25, -0.75], [0.125] * 8, 1e-5
    spec = middle(activation, b0=DType.FP32, sums=True)
    assert normalize(spec) == normalize(normalize(spec))
    d_pre, y, sums = interpret(spec, [[x, x], [grad, grad]], [bias])
    f = (lambda v: v) if activation is None else ELEMENTWISE[activation].evaluate
    for i, (value, g) in enumerate(zip(x, grad, strict=True)):
        pre = value + 0.125
        slope = (f(pre + step) - f(pre - step)) / (2 * step)
        assert math.isclose(d_pre[0][i], g * slope, rel_tol=1e-6, abs_tol=1e-7)
        assert math.isclose(y[1][i], f(pre), rel_tol=1e-12)
        assert math.isclose(sums[i], 2 * d_pre[0][i], rel_tol=1e-12)


def test_what_is_not_wanted_is_not_stored() -> None:
    assert [o.name for o in middle("gelu", middle=False).outputs] == ["d_pre"]
    assert [o.name for o in middle("gelu").outputs] == ["d_pre", "middle"]
    assert [o.name for o in middle("gelu", middle=False, sums=True).outputs] == ["d_pre", "d_b0"]


def test_activations_without_a_derivative_are_refused() -> None:
    with pytest.raises(SpecError, match=re.escape("got 'exp', allowed: None, relu")):
        middle("exp")


@pytest.mark.parametrize("m, k, h, n", [(327680, 128, 512, 128), (65536, 256, 1024, 256)])
def test_every_shape_runs_it(m: int, k: int, h: int, n: int) -> None:
    spec = catalog.middle_gradient(h, k, n, BF16, b0=BF16, activation="gelu", sums=True)
    found = candidates(spec, m=m)
    assert not [c for c in found if isinstance(c, Refusal)]
    assert all(isinstance(c, KernelPlan) and c.floor_us <= c.predicted_us <= 4 * c.floor_us for c in found)
