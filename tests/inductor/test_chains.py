"""GEMMs back to back through the pass: which are joined, why others are not, and the numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import comfuse
from comfuse import fallbacks
from comfuse.generator.chain import ChainSpec
from comfuse.inductor import choose, log, measured
from comfuse.inductor.entrances import enable
from comfuse.inductor.hook import ComFusePass
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.policy import Policy
from comfuse.inductor.report import Report
from tests.inductor.chain_models import (
    MLP,
    MODELS,
    ROWS,
    D,
    EdgeBlock,
    GatedMLP,
    H,
    error,
    half,
    inputs,
    rows,
    weights,
)
from tests.inductor.graphs import Found, found, has_order, is_convex
from tests.inductor.interpreted import interpreted

OFF = "COMFUSE_CHAINS is 0, which turns off kernels of GEMMs back to back"


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    monkeypatch.setattr(measured, "ROWS", ())  # the planner alone says what pays
    log.clear()
    fallbacks.reset()
    yield
    assert fallbacks.counts() == {}


# --- which are joined -------------------------------------------------------------------------------------


def the_only(results: list[Found]) -> Found:
    (only,) = results
    return only


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_joined(kind: type[nn.Module], dynamic: bool) -> None:
    model = half(kind())
    graph = the_only(found(model, *inputs(model, 32, 128), dynamic=dynamic))
    chains = MODELS[kind]
    assert list(graph.regions) == ["+".join(links) for links in chains]
    assert graph.left == {}
    assert graph.new_guards == 0
    for candidate in graph.candidates:
        assert is_convex(candidate.nodes)
        assert tuple("+".join(a.name for a in link.anchors) for link in candidate.links) in chains
        region = lowered(candidate)
        assert region.dynamic == dynamic
        assert isinstance(region.lowered.spec, ChainSpec)
        assert len(region.lowered.spec.outputs) == len(candidate.outputs) == 1
    assert has_order(candidate.nodes[0].graph, graph.candidates)


@pytest.mark.parametrize("kind", [EdgeBlock, GatedMLP], ids=lambda kind: kind.__name__)
def test_apart_where_they_are_turned_off(kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_CHAINS", "0")
    model = half(kind())
    graph = the_only(found(model, *inputs(model, 32, 128)))
    assert list(graph.regions) == [*MODELS[kind][0]]
    first, second = graph.candidates
    for one, other in ((first, second), (second, first)):
        names = " and ".join(anchor.name for anchor in other.anchors)
        assert one.apart == f"no chain with {names}: {OFF}"


def test_a_chain_holds_what_is_not_worth_a_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias behind a GEMM is none, and is not left between two kernels of a chain."""

    def program(x: Tensor, w0: Tensor, w1: Tensor, b: Tensor) -> Tensor:
        return (F.relu(x @ w0.t()) @ w1.t()) + b

    args = (rows(ROWS), *weights(H, D), rows())
    graph = the_only(found(program, *args))
    assert graph.regions == {"mm+mm_1": "mm relu mm add"}
    monkeypatch.setenv("COMFUSE_CHAINS", "0")
    graph = the_only(found(program, *args))
    assert list(graph.regions) == ["mm"]
    assert graph.left["mm_1"].startswith("nothing to fuse behind it but a bias")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_chains_that_meet(force: bool, bias: bool) -> None:
    """What follows both goes to one of them."""

    def program(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, b: Tensor) -> Tensor:
        both = F.relu(x @ w0.t()) @ w1.t() + F.silu(x @ w2.t()) @ w3.t()
        return both + b if bias else both

    args = (rows(ROWS), *weights(H, D), *weights(H, D), rows())
    graph = the_only(found(program, *args, force=force))
    inside = [node for candidate in graph.candidates for node in candidate.nodes]
    assert len(inside) == len(set(inside))
    assert [len(candidate.links) for candidate in graph.candidates] == [2, 2]
    torch._dynamo.reset()
    with enable(force=force, gpu="h200"):
        y = torch.compile(program, backend=interpreted, fullgraph=True)(*args)
    exact = program(*(t.double() for t in args))
    assert error(y, exact) <= max(2 * error(program(*args), exact), 2**-8)


def test_a_chain_ends_where_the_front_end_does() -> None:
    """At an operand that no kernel reads."""

    def program(x: Tensor, w0: Tensor, w1: Tensor, scale: Tensor) -> Tensor:
        return F.relu(x @ w0.t()) @ w1.t() * scale

    graph = the_only(found(program, rows(ROWS), *weights(H, D), torch.ones(D, dtype=torch.float64)))
    assert graph.regions == {"mm+mm_1": "mm relu mm"}


# --- which are not ----------------------------------------------------------------------------------------


def reason_of(model: Callable[..., Any], *args: Tensor, train: bool = False) -> dict[str, str]:
    graph = found(model, *args, train=train)[0]
    assert not any(candidate.links for candidate in graph.candidates)
    apart = {anchor.name: c.apart for c in graph.candidates for anchor in c.anchors}
    return apart | {verdict.anchor: verdict.apart for verdict in graph.verdicts}


def test_the_middle_is_read_twice() -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(x @ w0.t())
        return h @ w1.t(), h.sum(-1)

    apart = reason_of(program, rows(ROWS), *weights(H, D))
    assert apart["mm"].startswith("no chain with mm_1: relu has to be stored: ")
    assert apart["mm_1"].startswith("no chain with mm: relu has to be stored: ")


def test_the_middle_is_a_result() -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor) -> tuple[Tensor, Tensor]:
        h = F.relu(x @ w0.t())
        return h @ w1.t(), h

    apart = reason_of(program, rows(ROWS), *weights(H, D))
    assert apart["mm_1"] == (
        "no chain with mm: relu has to be stored: it is a result of the graph, as what a backward pass needs"
        " is"
    )


def test_training_keeps_the_middle() -> None:
    model = half(MLP()).requires_grad_(True)
    apart = reason_of(model, rows(ROWS), train=True)
    assert "has to be stored: it is a result of the graph" in apart["addmm"]
    assert "has to be stored: it is a result of the graph" in apart["addmm_1"]


@pytest.mark.parametrize(
    "n, reason",
    [
        (512, "N = 512; a tile has to hold whole rows, of at most 256 columns"),
        (36, "N = 36 must be a multiple of 8"),
    ],
)
def test_what_the_generator_has_no_kernel_for(n: int, reason: str) -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
        return F.relu(x @ w0.t()) @ w1.t()

    apart = reason_of(program, rows(ROWS), *weights(H, n))
    assert reason in apart["mm"]
    assert reason in apart["mm_1"]


def test_a_part_in_one_chain_alone() -> None:
    """Of four GEMMs in a row the three around the wider middles."""

    def program(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        return F.relu(F.relu(F.relu(F.relu(x @ w0.t()) @ w1.t()) @ w2.t()) @ w3.t())

    graph = the_only(found(program, rows(ROWS), *weights(D, H, H, D)))
    assert list(graph.regions) == ["mm", "mm_1+mm_2+mm_3"]
    assert graph.candidates[0].apart.startswith(
        "no chain with mm_1 and mm_2 and mm_3: mm_1 and mm_2 and mm_3"
    )
    assert "4 links; chains of at most 3 can be one kernel" in graph.candidates[0].apart
    assert graph.candidates[1].apart == ""


@pytest.mark.parametrize("widths", [(D, D, D), (H, D, D), (D, H, D)])
def test_three_pay_where_no_two_do(widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return F.relu(F.relu(F.relu(x @ w0.t()) @ w1.t()) @ w2.t())

    def verdict(part: Any, policy: Policy) -> Any:
        result = choose_verdict(part, policy)
        short = len(part.candidate.anchors) == 2
        return dataclasses.replace(result, fused=False, reason="too short") if short else result

    choose_verdict = choose.verdict
    monkeypatch.setattr(choose, "verdict", verdict)
    graph = the_only(found(program, rows(ROWS), *weights(*widths)))
    assert list(graph.regions) == ["mm+mm_1+mm_2"]


def test_a_third_that_does_not_fit_is_left() -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return F.relu(F.relu(F.relu(x @ w0.t()) @ w1.t()) @ w2.t())

    graph = the_only(found(program, rows(ROWS), *weights(H, D, 512)))
    assert list(graph.regions) == ["mm+mm_1", "mm_2"]
    assert "mm and mm_1 are one; " in graph.candidates[1].apart
    assert "N = 512; a tile has to hold whole rows" in graph.candidates[1].apart


def test_a_reduction_between_later_gemms_ends_a_chain() -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return F.relu(F.layer_norm(F.relu(x @ w0.t()) @ w1.t(), (D,)) @ w2.t())

    graph = the_only(found(program, rows(ROWS), *weights(H, D, D)))
    assert list(graph.regions) == ["mm+mm_1", "mm_2"]
    assert "a reduction between the GEMMs of a chain of more than two" in graph.candidates[1].apart


def test_a_transposed_middle_is_no_chain() -> None:
    def program(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
        return F.relu(x @ w0).t() @ w1

    assert set(reason_of(program, rows(ROWS), rows(D, columns=H), rows(ROWS)).values()) == {""}


# --- what is said of it -----------------------------------------------------------------------------------


def test_the_report_says_it() -> None:
    model = half(EdgeBlock())
    args = [x.to("meta") for x in inputs(model, 65536)]
    report = comfuse.explain(model.to("meta"), *args, gpu="h200")
    assert isinstance(report, Report)
    assert report.fused == 2
    assert "fused (chain with addmm_1)" in str(report)
    assert "fused (chain with addmm)" in str(report)


def test_the_report_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_CHAINS", "0")
    model = half(EdgeBlock())
    args = [x.to("meta") for x in inputs(model, 65536)]
    report = comfuse.explain(model.to("meta"), *args, gpu="h200")
    assert isinstance(report, Report)
    assert [row.verdict.fused for row in report.rows] == [True, True]
    assert f"fused; no chain with addmm_1: {OFF}" in str(report)


def test_torch_s_caches_know_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with_chains = ComFusePass(Policy(gpu="h200")).uuid()
    monkeypatch.setenv("COMFUSE_CHAINS", "0")
    assert ComFusePass(Policy(gpu="h200")).uuid() != with_chains


# --- whether it is right ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_values(kind: type[nn.Module], dynamic: bool) -> None:
    torch._dynamo.reset()
    model = half(kind())
    exact = half(kind()).double()
    calls: list[str] = []

    def note(graph: torch.fx.Graph) -> None:
        calls.extend(str(node.target) for node in graph.nodes)

    with enable(force=True), torch._inductor.config.patch(post_grad_custom_post_pass=note):
        compiled = torch.compile(model, backend=interpreted, fullgraph=True, dynamic=dynamic)
        for lead in ((3, 40), (2, 9), (5, 16)) if dynamic else ((3, 40),):
            args = inputs(model, *lead)
            y, wanted = compiled(*args), exact(*(x.double() for x in args))
            assert (y.shape, y.dtype, y.is_contiguous()) == (wanted.shape, torch.bfloat16, True)
            assert error(y, wanted) <= max(2 * error(model(*args), wanted), 2**-8)
    assert all(verdict.chain for verdict in log.verdicts())
    assert len(log.compiles()) == 1
    assert sum("comfuse" in call for call in calls) == len(MODELS[kind])


@pytest.mark.parametrize("name, chained", [("graph_network", 2), ("dlrm_mlp", 3), ("llama3_8b", 3)])
def test_published_models(name: str, chained: int) -> None:
    """As test_models.py has them, which runs them without chains."""
    pytest.importorskip("transformers", reason="needs the dev extra")
    from bench.models import MODELS as PUBLISHED
    from bench.models.step import Step, allowed, beyond, distances, truth

    torch._dynamo.reset()
    step = Step.of(PUBLISHED[name], PUBLISHED[name].small, training=False, dropout=False)
    exact = truth(step)
    bounds = allowed(step.copy().results(), exact)
    with enable(force=True):
        own = step.copy()
        found = own.results(torch.compile(own.module, backend=interpreted, fullgraph=True, dynamic=False))
    assert beyond(distances(found, exact), bounds) == []
    assert sum(bool(verdict.chain) for verdict in log.verdicts()) == chained


def test_through_the_code_generator() -> None:
    """TorchInductor's C++ around the op, from its cache as well."""
    torch._dynamo.reset()
    model = half(EdgeBlock())
    exact = half(EdgeBlock()).double()
    compiled = torch.compile(model, options=comfuse.options(force=True), dynamic=False)
    args = inputs(model, 256)
    y, wanted = compiled(*args), exact(*(x.double() for x in args))
    assert error(y, wanted) <= 2 * error(model(*args), wanted)


def test_gradients() -> None:
    """The links are fused apart where a backward pass needs what is between them."""
    torch._dynamo.reset()
    model, exact = half(MLP()).requires_grad_(True), half(MLP()).double().requires_grad_(True)
    x = rows(3, 40)
    with enable(force=True):
        torch.compile(model, backend=interpreted, fullgraph=True)(x).float().sum().backward()
    exact(x.double()).sum().backward()
    for own, wanted in zip(model.parameters(), exact.parameters(), strict=True):
        assert own.grad is not None
        assert wanted.grad is not None
        assert error(own.grad, wanted.grad) <= 2e-2
    assert not any(verdict.chain for verdict in log.verdicts())


def kept(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
    return F.gelu(x @ w0.t()) @ w1.t()


def computed_again(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
    return checkpoint(kept, x, w0, w1, use_reentrant=False)


def without_activation(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
    return x @ w0.t() @ w1.t()


def turned(x: Tensor, w0: Tensor, w1: Tensor) -> Tensor:
    """With weights (K, N), which the backward pass reads along K."""
    return F.gelu(x @ w0) @ w1


@pytest.mark.parametrize(
    "function, trained, forward, backward",
    [
        (kept, True, False, False),
        (computed_again, True, True, False),  # weights that meet in the backward pass lie the other way
        (without_activation, False, True, False),
        (without_activation, True, False, False),
        (kept, False, False, False),  # GELU's derivative needs the first result
        (turned, False, False, True),
        (turned, True, False, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_training(function: Callable[..., Tensor], trained: bool, forward: bool, backward: bool) -> None:
    """Joined is what no backward pass reads; gradients are right either way."""
    torch._dynamo.reset()
    own = [w.t().contiguous() if function is turned else w for w in weights(H, D)]
    args = [rows(120).requires_grad_(True), *(w.requires_grad_(trained) for w in own)]
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in args]
    with enable(force=True):
        torch.compile(function, backend=interpreted, fullgraph=True)(*args).float().sum().backward()
    function(*exact).sum().backward()
    for own, wanted in zip(args, exact, strict=True):
        assert (own.grad is None) == (wanted.grad is None)
        if own.grad is not None and wanted.grad is not None:
            assert error(own.grad, wanted.grad) <= 2e-2
    joined = [any(v.chain for v in verdicts) for verdicts in log.compiles()]
    assert joined == [forward, backward]
