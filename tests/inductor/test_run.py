"""The pass over one graph: its verdicts, and what a bug in one of its steps costs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from comfuse import fallbacks
from comfuse.errors import FallbackError
from comfuse.inductor import choose, contest, jit, log, lowerer, run
from comfuse.inductor.candidate import Found
from comfuse.inductor.hook import ComFusePass
from comfuse.inductor.policy import Policy
from comfuse.inductor.verdict import Verdict
from tests.inductor.interpreted import interpreted

Tensor = torch.Tensor


def blocks(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Two regions: what is between them is read twice."""
    h = F.softmax(F.linear(x, w), -1)
    return F.layer_norm(F.linear(h, v).relu() + h, (64,))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fallbacks.reset()
    log.clear()
    torch._dynamo.reset()
    yield
    fallbacks.reset()


def compiled() -> str:
    """Compiles and runs ``blocks``, checks its result, and gives the graph's text."""
    torch.manual_seed(0)
    x, w, v = (torch.randn(64, 64, dtype=torch.bfloat16) for _ in range(3))
    texts = []
    ours = ComFusePass(Policy(force=True, gpu="h200"))

    def change(graph: torch.fx.Graph) -> None:
        ours(graph)
        texts.append(str(graph))

    with torch._inductor.config.patch(post_grad_custom_pre_pass=change), torch.no_grad():
        found = torch.compile(blocks, backend=interpreted, fullgraph=True)(x, w, v)
    exact = blocks(x.double(), w.double(), v.double())
    allowed = 2 * (blocks(x, w, v).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= allowed
    return texts[0]


def test_each_gemm_has_its_verdict() -> None:
    assert compiled().count("comfuse.region_1") == 2
    assert [(v.fused, v.shape) for v in log.verdicts()] == [(True, (64, 64, 64))] * 2
    assert all(v.location.startswith(f"{__file__}:") for v in log.verdicts())
    assert not fallbacks.counts()


@pytest.mark.parametrize("module, step", [(lowerer, "lowered"), (choose, "verdict"), (run, "replace")])
def test_a_bug_costs_one_region(
    module: object, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_once(module, step, monkeypatch)
    with caplog.at_level(logging.ERROR, "comfuse"):
        assert compiled().count("comfuse.region_1") == 1
    ((where, reason),) = fallbacks.counts()
    assert where == "torch.compile"
    assert "a bug in ComFuse at mm: ZeroDivisionError: broken" in reason
    (message,) = caplog.messages
    assert "aten.mm.default" in message
    assert "COMFUSE_STRICT=1" in message
    assert sorted(v.fused for v in log.verdicts()) == [False, True]


def test_a_bug_in_the_finder_costs_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    break_once(contest, "find", monkeypatch)
    assert "comfuse" not in compiled()
    ((_, reason),) = fallbacks.counts()
    assert "looking for regions: ZeroDivisionError" in reason


def test_a_bug_in_looking_for_kernels_costs_all_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    break_once(jit, "settle", monkeypatch)
    assert "comfuse" not in compiled()
    assert len(fallbacks.counts()) == 2
    assert [v.fused for v in log.verdicts()] == [False, False]


def test_a_bug_in_looking_for_a_kernel_costs_one_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "runs_on_gpu", lambda found: True)
    monkeypatch.setattr(jit, "tasks_of", lambda found: {})
    monkeypatch.setattr(jit, "_unregistered", lambda found: "")
    break_once(jit, "tasks_of", monkeypatch)
    assert compiled().count("comfuse.region_1") == 1
    ((_, reason),) = fallbacks.counts()
    assert "a bug in ComFuse at mm: ZeroDivisionError: broken" in reason
    assert sorted(v.fused for v in log.verdicts()) == [False, True]


def test_a_bug_raises_where_nothing_may_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    break_once(choose, "verdict", monkeypatch)
    with pytest.raises(Exception, match="a bug in ComFuse at mm") as raised:
        compiled()
    assert isinstance(raised.value.__cause__ or raised.value.inner_exception, FallbackError)


def test_a_calibration_that_cannot_be_read_costs_the_regions_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "h200.json").write_text("{no")
    monkeypatch.setenv("COMFUSE_CALIBRATION", str(tmp_path))
    assert "comfuse" not in compiled()
    (((where, reason), count),) = fallbacks.counts().items()
    assert (where, count) == ("torch.compile", 2)
    assert reason.startswith(f"{tmp_path / 'h200.json'}: ")
    assert [v.reason for v in log.verdicts()] == [reason, reason]
    torch._dynamo.reset()
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    with pytest.raises(Exception, match="comfuse calibrate"):
        compiled()


def test_a_gemm_that_is_left_is_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_STRICT", "1")

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    x = torch.randn(8, 8, dtype=torch.float64)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=ComFusePass()):
        found = torch.compile(fn, backend=interpreted)(x, x)
    torch.testing.assert_close(found, fn(x, x))
    (verdict,) = log.verdicts()
    assert not verdict.fused
    assert "float64" in verdict.reason


def test_what_does_not_pay_is_offered_again_without_its_last_reduction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chain(x: Tensor, w: Tensor, residual: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        h = residual + F.rms_norm(F.linear(x, w), (64,), v, 1e-6)
        return h, F.rms_norm(h, (64,), v, 1e-6)

    decide = choose.verdict

    def refuse_two_reductions(found: Found, policy: Policy) -> Verdict:
        verdict = decide(found, Policy(force=True))
        return verdict if verdict.reductions < 2 else replace(verdict, fused=False, reason="too slow")

    monkeypatch.setattr(choose, "verdict", refuse_two_reductions)
    torch.manual_seed(0)
    x, w, residual = (torch.randn(64, 64, dtype=torch.bfloat16) for _ in range(3))
    arguments = (x, w, residual, torch.randn(64, dtype=torch.bfloat16))
    ours = ComFusePass()
    with torch._inductor.config.patch(post_grad_custom_pre_pass=ours), torch.no_grad():
        found = torch.compile(chain, backend=interpreted, fullgraph=True)(*arguments)
    (verdict,) = log.verdicts()
    assert (verdict.fused, verdict.reductions, verdict.outputs) == (True, 1, 1)
    for result, eager, exact in zip(
        found, chain(*arguments), chain(*(a.double() for a in arguments)), strict=True
    ):
        assert (result.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max()


@pytest.mark.parametrize("pays", [True, False])
def test_what_does_not_pay_as_a_pair_is_offered_as_two(pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    decide = choose.verdict

    def refuse_pairs(found: Found, policy: Policy) -> Verdict:
        verdict = decide(found, Policy(force=True))
        anchors = len(found.candidate.anchors)
        fused = pays and anchors == 1
        return replace(verdict, fused=fused, reason=f"{anchors} at once")

    monkeypatch.setattr(choose, "verdict", refuse_pairs)
    torch.manual_seed(0)
    arguments = tuple(torch.randn(64, 64, dtype=torch.bfloat16) for _ in range(3))
    with torch._inductor.config.patch(post_grad_custom_pre_pass=ComFusePass()), torch.no_grad():
        result = torch.compile(gated, backend=interpreted, fullgraph=True)(*arguments)
    exact, eager = gated(*(a.double() for a in arguments)), gated(*arguments)
    assert (result.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max()
    reasons = {v.anchor: v.reason for v in log.verdicts()}
    if pays:  # the second activates the first's result where it reads it
        assert reasons.pop("mm").endswith("it is fused with another matrix product")
        assert reasons == {"mm_1": "1 at once"}
    else:
        assert reasons == {"mm": "2 at once", "mm_1": "2 at once"}


def break_once(module: object, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first call of a step fail."""
    then = getattr(module, step)
    calls = []

    def broken(*args: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            raise ZeroDivisionError("broken")
        return then(*args)

    monkeypatch.setattr(module, step, broken)
