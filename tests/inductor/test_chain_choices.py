"""Which pairs of GEMMs become one kernel: where it is clearly faster by the model, and is there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comfuse import fallbacks
from comfuse.errors import PlanError
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec, parse_program
from comfuse.generator.plan.chain import MARGIN, plan_chain
from comfuse.generator.plan.gpus import find
from comfuse.generator.spec import DType
from comfuse.inductor import choose, estimate, jit, log, measured
from comfuse.inductor.candidate import Found
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.measured import Kind, Row
from comfuse.inductor.policy import Policy
from comfuse.inductor.verdict import Verdict
from comfuse.ops import resolver
from tests.generator.chain_programs import edge_network
from tests.inductor.chain_models import (
    MLP,
    ROWS,
    D,
    EdgeBlock,
    H,
    half,
    inputs,
    rows,
    weights,
)
from tests.inductor.graphs import found


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    log.clear()
    fallbacks.reset()
    yield
    assert fallbacks.counts() == {}


def verdicts_of(model: Callable[..., Any], *args: Any, policy: Policy | None = None) -> list[Verdict]:
    from comfuse.inductor.report import explain_model

    report = explain_model(model, *args, policy=policy or Policy(gpu="h200"))
    return [row.verdict for row in report.rows]


def test_it_pays_by_the_model() -> None:
    first, second = verdicts_of(half(MLP()), rows(65536))
    assert (first.fused, first.chain, second.chain) == (True, ("addmm_1",), ("addmm",))
    assert (first.shape, second.shape) == ((65536, H, D), (65536, D, H))
    assert first.spec == second.spec
    assert isinstance(parse_program(first.spec), ChainSpec)
    assert first.predicted_us is not None
    assert first.unfused_us is not None
    assert first.predicted_us < MARGIN * first.unfused_us


@pytest.mark.parametrize(
    "m, k, h, n, reason",
    [
        (65536, 128, 256, 128, ""),
        (4096, 64, 128, 64, ""),
        (
            128,
            256,
            1024,
            256,
            "a kernel for each GEMM is faster: predicted",
        ),  # few blocks of rows share the weights
        (65536, 1024, 1024, 256, "no shape fits: "),
        (65536, 128, 128, 512, "N = 512; a tile has to hold whole rows, of at most 256 columns"),
    ],
)
def test_by_default(m: int, k: int, h: int, n: int, reason: str) -> None:
    model = nn.Sequential(nn.Linear(k, h), nn.GELU(), nn.Linear(h, n)).bfloat16().eval().to("meta")
    with torch.no_grad():
        first, second = verdicts_of(model, rows(m, columns=k).to("meta"))
    assert (first.chain, second.chain) == (((), ()) if reason else (("addmm_1",), ("addmm",)))
    for one, other in ((first, "addmm_1"), (second, "addmm")):
        assert one.apart.startswith(f"no chain with {other}: ") == bool(reason)
        assert reason in one.apart


def test_a_pair_that_no_kernel_runs_keeps_no_other_from_it() -> None:
    """Though what is between its GEMMs is the wider."""
    layers = nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 64)
    model = nn.Sequential(*layers).bfloat16().eval().to("meta")
    with torch.no_grad():
        first, second, third = verdicts_of(model, rows(65536, columns=1024).to("meta"))
    assert [v.chain for v in (first, second, third)] == [(), ("addmm_2",), ("addmm_1",)]
    assert first.apart.startswith("no chain with addmm_1: no shape fits: ")
    assert (second.apart, third.apart) == ("", "")


@pytest.mark.parametrize("slow, chained", [((), "110"), ((H,), "011"), ((D, H), "000")])
def test_a_pair_that_does_not_pay_keeps_no_other_from_it(
    slow: tuple[int, ...], chained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = choose.verdict

    def verdict(region: Found, policy: Policy) -> Verdict:
        decided = decide(region, Policy(force=True, gpu="h200"))
        links = region.lowered.links
        is_slow = len(links) > 2 or (len(links) > 1 and links[0].spec.n in slow)
        return replace(decided, fused=False, reason="too slow") if is_slow else decided

    monkeypatch.setattr(choose, "verdict", verdict)

    def program(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return F.relu(F.relu(F.relu(x @ w0.t()) @ w1.t()) @ w2.t())

    verdicts = verdicts_of(program, rows(ROWS), *weights(H, D, D))
    assert "".join(str(int(bool(v.chain))) for v in verdicts) == chained
    said = [v.apart.removeprefix("no chain with ") for v in verdicts]
    if not slow:
        assert said == ["", "", "mm and mm_1: mm and mm_1 are one; too slow"]
    elif chained == "011":
        assert said == ["mm_1: too slow", "", ""]
    else:
        assert said[0] == "mm_1: too slow"
        assert said[2] == "mm_1: too slow"
        assert said[1].endswith(": too slow")


def test_links_alone_where_they_are_faster() -> None:
    """Each block of rows would read large weights again."""

    def program(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x @ w0.t()) @ w1.t(), (256,))

    first, second = verdicts_of(program, rows(128, columns=256), *weights(8192, 256, k=256))
    assert "no chain with mm_1: a kernel for each GEMM is faster: predicted" in first.apart
    assert "no chain with mm: a kernel for each GEMM is faster: predicted" in second.apart
    assert (first.chain, second.chain) == ((), ())
    assert (first.shape, second.shape) == ((128, 8192, 256), (128, 256, 8192))


def test_a_chain_is_compared_with_the_better_of_each_link() -> None:
    (graph,) = found(half(MLP()), rows(65536))
    region = lowered(graph.candidates[0])
    times = choose._estimate(region, "h200")
    assert times.kind is Kind.CHAIN
    gemm = measured.correction(find("h200"), Kind.CHAIN, H, D, D).gemm
    apart = [lowered(link).lowered.spec for link in graph.candidates[0].links]
    each = [estimate._of_one(link, 65536, find("h200"), False, 0.0, gemm) for link in apart]  # type: ignore[arg-type]
    assert times.unfused_us == pytest.approx(sum(min(e.fused_us, e.unfused_us) for e in each))


@pytest.mark.parametrize("shape, share", [((12, 1, 1, 512), 1 / 8192), ((16, 512, 512), 1 / 12), (None, 1)])
def test_masks_cost_what_is_there_of_them(shape: tuple[int, ...] | None, share: float) -> None:
    def scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * 0.125 + mask, -1)

    q, mask = torch.randn(12, 16, 512, 64).bfloat16(), torch.randn(shape or (12, 16, 512, 512)).bfloat16()
    (graph,) = found(scores, q, q, mask)
    region, whole = lowered(graph.candidates[0]), 12 * 16 * 512 * 512 * 2
    assert choose._repeated(region, 12 * 16 * 512) == [pytest.approx((1 - share) * whole)]
    times, read = (
        choose._estimate(region, find("h200")),
        estimate.estimate(region.lowered.spec, 12 * 16 * 512),
    )
    assert (times.fused_us < read.fused_us) == (times.unfused_us < read.unfused_us) == (share < 1)


def test_a_chain_s_floor_is_without_what_repeats() -> None:
    chain, m = catalog.attention(64, 64, 512, DType.BF16, bias=DType.BF16), 192 * 512
    whole, once = (estimate.estimate(chain, m, repeated=[r, 0.0]) for r in (0.0, 2.0 * m * 512))
    assert once.plans[0].floor_us < whole.plans[0].floor_us
    assert once.fused_us < whole.fused_us
    assert once.unfused_us < whole.unfused_us


def test_three_gemms_are_compared_with_two_of_them_and_one() -> None:
    chain = edge_network()
    times = estimate.estimate(chain, 1000000)
    pairs = [
        (estimate.estimate(ChainSpec(chain.links[:2]), 1000000), estimate.estimate(chain.last, 1000000)),
        (estimate.estimate(chain.links[0], 1000000), estimate.estimate(ChainSpec(chain.links[1:]), 1000000)),
    ]
    for parts in pairs:
        assert times.unfused_us <= sum(min(part.fused_us, part.unfused_us) for part in parts)
    alone = [estimate.estimate(link, 1000000) for link in chain.links]
    assert times.unfused_us < sum(min(part.fused_us, part.unfused_us) for part in alone)
    assert times.fused_us < MARGIN * times.unfused_us


@pytest.mark.parametrize("k", [64, 128, 256])
@pytest.mark.parametrize("m", [4096, 65536])
def test_no_chain_is_expected_to_be_slower_than_its_links(m: int, k: int) -> None:
    """Those that ComFuse would run, as they are predicted where no chain is in question."""
    for h, n, norm in itertools.product((64, 256, 1024), (64, 128, 256), (None, "layernorm")):
        chain = catalog.mlp(n, k, h, DType.BF16, b0=DType.BF16, b1=DType.BF16, norm=norm)
        try:
            times = estimate.estimate(chain, m)
        except PlanError:
            continue
        if times.fused_us < MARGIN * times.unfused_us:
            apart = sum(estimate.estimate(link, m).fused_us for link in chain.links)
            assert times.fused_us < MARGIN * apart, (h, n, norm)


def test_it_has_to_be_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(65536).to("meta")
    model = half(MLP()).to("meta")
    for share in (0.9, 1.1):
        monkeypatch.setattr(measured, "ROWS", ())
        monkeypatch.setattr(measured, "ROWS", (row(share),))
        first, second = verdicts_of(model, x)
        assert bool(first.chain) == bool(second.chain) == (share < 1)
        if share > 1:
            assert re.fullmatch(
                r"no chain with addmm_1: predicted to take ([\d.]+) us, and ([\d.]+) us apart", first.apart
            )
            assert first.shape == (65536, H, D)


def row(share: float) -> Row:
    """Of MLP's class: such that its kernel takes this share of what would be allowed."""
    chain = catalog.mlp(D, D, H, DType.BF16, b0=DType.BF16, b1=DType.BF16)
    links = [estimate.estimate(link, 65536) for link in chain.links]
    gemm = [estimate._library_us(link, 65536, find("h200")) for link in chain.links]
    times = [min(e.fused_us, e.unfused_us) for e in links]
    predicted = plan_chain(chain, "h200", 65536).predicted_us
    fused = share * MARGIN * sum(times)
    return Row(f"b2b-65536x{D}x{H}x{D}", Kind.CHAIN, sum(gemm), fused, None, sum(gemm), predicted)


def test_what_was_slower_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(row(0.5), fused_us=20.0, unfused_us=19.0)
    monkeypatch.setattr(measured, "ROWS", (slow,))
    first, _ = verdicts_of(half(MLP()).to("meta"), rows(65536).to("meta"))
    assert first.chain == ()
    assert f"slower than TorchInductor in the bench of such a region, {slow.workload}" in first.apart


def test_any_number_of_rows_needs_a_kernel_for_each_class_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "ROWS", ())  # the planner alone

    def program(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
        return F.gelu(x @ w0.t()) @ w1.t()

    x, both = torch.empty(65536, 256, dtype=torch.bfloat16, device="meta"), weights(1024, 256, k=256)
    both = [w.to("meta") for w in both]
    static, _ = verdicts_of(program, x, *both)
    assert static.chain == ("mm_1",)
    torch._dynamo.mark_dynamic(x, 0)
    dynamic, _ = verdicts_of(program, x, *both)
    assert "a kernel for each GEMM is faster" in dynamic.apart


def test_its_kernel_is_that_of_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_index", lambda region: 0)
    monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
    monkeypatch.setattr(resolver, "shelved", lambda *call: None)
    (graph,) = found(half(EdgeBlock()), *inputs(EdgeBlock(), 32, 128))
    region = lowered(graph.candidates[0])
    (source,) = jit.sources(region)
    assert source.plan == plan_chain(region.lowered.spec, "h200", resolver.m_class(ROWS))  # type: ignore[arg-type]
    assert source.name.startswith("cf_sm90_chain_bf16_")
