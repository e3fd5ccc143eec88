"""What happens to kernels that are not built when a graph is compiled: with builds that compile nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph

from comfuse import fallbacks
from comfuse.errors import BuildError, FallbackError, ToolchainError
from comfuse.inductor import background, choose, jit
from comfuse.inductor.candidate import Found
from comfuse.inductor.hook import ComFusePass
from comfuse.inductor.lowerer import lowered
from comfuse.inductor.policy import Policy
from comfuse.inductor.replace import replace
from comfuse.inductor.verdict import Verdict
from tests.inductor.interpreted import interpreted
from tests.inductor.kernels import Kernels, kernels
from tests.inductor.regions import behind, found, half, products

__all__ = ["kernels"]

aten = torch.ops.aten
FORCED = Policy(force=True, gpu="h200")


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x @ w, (w.shape[1],))


@pytest.fixture(scope="module")
def region() -> tuple[Found, Verdict]:
    it = found(norm, half(256, 64), half(64, 64))
    return it, choose.verdict(it, FORCED)


def settle(region: tuple[Found, Verdict], mode: str) -> Verdict:
    (verdict,) = settled([region], Policy(force=True, gpu="h200", jit=mode))
    return verdict


def settled(regions: list[tuple[Found, Verdict]], policy: Policy) -> list[Verdict]:
    """The verdicts where no bug shows."""
    return [answer for answer in jit.settle(regions, policy) if isinstance(answer, Verdict)]


# --- now ------------------------------------------------------------------------------------------------


def test_all_kernels_of_a_graph_are_built_at_once(
    kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFUSE_MAX_JOBS", "2")
    kernels.gate.clear()
    together = threading.Timer(0.01, lambda: _wait_for(lambda: len(kernels.begun) == 2, kernels.gate.set))
    together.start()
    verdicts = settled([region, region], Policy(jit="auto"))
    together.join()
    assert [verdict.fused for verdict in verdicts] == [True, True]
    assert sorted(kernels.begun) == ["one", "two"]  # each once, though two regions need them


def _wait_for(what: Callable[[], bool], then: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not what() and time.monotonic() < deadline:
        time.sleep(0.005)
    then()


def test_what_is_built_is_not_built_again(kernels: Kernels, region: tuple[Found, Verdict]) -> None:
    kernels.built |= {"one", "two"}
    for mode in ("auto", "require", "off", "background"):
        assert settle(region, mode) == region[1]
    assert kernels.begun == []


def test_off_leaves_what_is_not_built(
    kernels: Kernels,
    region: tuple[Found, Verdict],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "comfuse"):
        verdict = settle(region, "off")  # neither is built
    kernels.built.add("one")
    assert not verdict.fused
    assert verdict.reason == "one is not built, and COMFUSE_JIT is off"
    assert verdict.spec == region[1].spec
    assert kernels.begun == []
    assert fallbacks.counts() == {("torch.compile", verdict.reason): 1}
    assert caplog.messages == [f"torch.compile: not fused: {verdict.reason}"]
    (shown,) = jit.settle([region], Policy(jit="off"), build=False)
    assert isinstance(shown, Verdict)
    assert shown.reason == "two is not built, and COMFUSE_JIT is off"
    assert sum(fallbacks.counts().values()) == 1  # what is only shown does not run
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    with pytest.raises(FallbackError, match="two is not built"):
        settle(region, "off")


def test_the_mode_is_that_of_the_environment(
    kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFUSE_JIT", "off")
    assert not settled([region], Policy())[0].fused
    assert settled([region], Policy(jit="auto"))[0].fused


def test_a_failed_build_leaves_its_region_with_the_compilers_message(
    kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    kernels.errors["two"] = BuildError("two", tmp_path / "two.cu", tmp_path / "build.log", "error: no")
    verdict = settle(region, "auto")
    assert not verdict.fused
    assert "error: no" in verdict.reason
    assert kernels.built == {"one"}
    assert fallbacks.counts() == {("torch.compile", verdict.reason): 1}
    assert settle(region, "auto") == verdict
    assert sorted(kernels.begun) == ["one", "two"]  # what was refused is not tried again
    assert fallbacks.counts() == {("torch.compile", verdict.reason): 2}
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    with pytest.raises(FallbackError, match="error: no"):
        settle(region, "auto")


def test_require_raises_for_want_of_a_compiler(kernels: Kernels, region: tuple[Found, Verdict]) -> None:
    kernels.errors["one"] = ToolchainError("nvcc", ("PATH",), "install it")
    assert "nvcc not found" in settle(region, "auto").reason
    with pytest.raises(ToolchainError):
        settle(region, "require")


def test_kernels_that_cannot_be_registered_are_not_called(
    kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "_unregistered", lambda region: "the driver is too old")
    verdict = settle(region, "auto")
    assert (verdict.fused, verdict.reason) == (False, "the driver is too old")


def test_what_is_only_shown_counts_nothing(
    kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.built |= {"one", "two"}
    monkeypatch.setattr(jit, "_unregistered", lambda region: "the driver is too old")
    (shown,) = jit.settle([region], Policy(jit="off"), build=False)
    assert isinstance(shown, Verdict)
    assert shown.reason == "the driver is too old"
    assert not fallbacks.counts()
    assert settle(region, "off") == shown
    assert fallbacks.counts() == {("torch.compile", shown.reason): 1}


@pytest.mark.parametrize("step", ["tasks_of", "_unregistered", "build"])
def test_a_bug_stands_in_the_place_of_its_regions_verdict(
    step: str, kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("broken")

    other = changed(region[0], candidate=changed(region[0].candidate, stopped=(("mm", "another"),)))
    kernels.names_of = lambda found: ["one"] if found is region[0] else ["two"]
    if step == "build":
        monkeypatch.setattr(kernels, "_build", lambda n, p: kernels.built.add(n) if n == "one" else broken())
    else:
        then = getattr(jit, step)
        monkeypatch.setattr(jit, step, lambda found: then(found) if found is region[0] else broken())
    for mode in ("auto", "require"):
        bug, verdict = jit.settle([(other, region[1]), region], Policy(jit=mode))
        assert isinstance(bug, ZeroDivisionError)
        assert verdict == region[1]
    assert not fallbacks.counts()  # whoever reports the bug counts it


def test_regions_that_are_left_or_on_a_cpu_need_no_kernels(
    kernels: Kernels, region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, verdict = region
    left = Verdict(verdict.anchor, None, False, "no gain", verdict.shape)
    assert jit.settle([(it, left)], FORCED) == [left]
    monkeypatch.setattr(jit, "runs_on_gpu", lambda region: False)
    assert jit.settle([region], Policy(jit="off")) == [verdict]
    assert kernels.begun == []


def test_what_a_library_has_is_not_built(
    region: tuple[Found, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    shelf: list[object] = []

    def shelved(spec: str, rows: int, device: int) -> object:
        asked.append((spec, rows))
        return shelf[0] if shelf else None

    monkeypatch.setattr(jit, "_index", lambda found: 0)
    monkeypatch.setattr(jit.resolver, "planner_gpu", lambda device: "h200")
    monkeypatch.setattr(jit.resolver, "shelved", shelved)
    (source,) = jit.sources(region[0])
    assert source.name.startswith("cf_sm90_gemm")
    assert asked == [(region[0].lowered.spec.text(), 512)]  # 256 rows
    shelf.append(object())
    assert jit.sources(region[0]) == []


def test_caches_hold_what_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("COMFUSE_CACHE_DIR", str(tmp_path))
    before = {
        mode: ComFusePass(Policy(gpu="h200", jit=mode)).uuid() for mode in ("auto", "off", "background")
    }
    assert before["background"] is None  # from a cache, a graph would wait for ever
    (tmp_path / "kernels" / "one").mkdir(parents=True)
    after = {mode: ComFusePass(Policy(gpu="h200", jit=mode)).uuid() for mode in ("auto", "off")}
    assert after["auto"] == before["auto"]
    assert after["off"] != before["off"]


# --- in the background ----------------------------------------------------------------------------------


class Program:
    """A function compiled with every region fused that may be, and what became of its graphs."""

    def __init__(self, function: Callable[..., Any], mode: str = "background") -> None:
        torch._dynamo.reset()
        self.fused: list[bool] = []  # for each graph, in the order of compilation
        self._policy = Policy(force=True, gpu="h200", jit=mode)
        self._compiled = torch.compile(function, backend=interpreted)

    def __call__(self, *args: Any) -> Any:
        with torch._inductor.config.patch(post_grad_custom_pre_pass=self._change):
            return self._compiled(*args)

    def backward(self, loss: Tensor) -> None:
        with torch._inductor.config.patch(post_grad_custom_pre_pass=self._change):
            loss.backward()

    def _change(self, graph: Graph) -> None:
        region = lowered(behind(graph, products(graph)[-1]))
        (verdict,) = settled([(region, choose.verdict(region, self._policy))], self._policy)
        if verdict.fused:
            replace(graph, region)
        self.fused.append(verdict.fused)


def test_a_function_is_compiled_again_when_its_kernels_are_built(kernels: Kernels) -> None:
    kernels.gate.clear()
    program = Program(norm)
    x, w = half(256, 64), half(64, 64)
    expected = norm(x.double(), w.double())
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(program(x, w).double(), expected, rtol=0, atol=0.05)
        assert program.fused == [False]
        assert background.under_way() == 2
        kernels.gate.set()
        assert background.wait(10)
        for _ in range(3):
            torch.testing.assert_close(program(x, w).double(), expected, rtol=0, atol=0.05)
    assert program.fused == [False, True]
    assert sorted(kernels.begun) == ["one", "two"]


def test_a_function_that_waits_for_nothing_keeps_its_code(kernels: Kernels) -> None:
    kernels.gate.clear()
    waiting = Program(norm)
    with torch.no_grad():
        waiting(half(256, 64), half(64, 64))
        kernels.names = ["three"]
        kernels.built.add("three")
        other = Program.__new__(Program)
        other.__dict__ = {**waiting.__dict__, "fused": []}
        other._compiled = torch.compile(lambda x, w: F.rms_norm(x @ w, (64,)), backend=interpreted)
        other(half(256, 64), half(64, 64))
        assert other.fused == [True]
        kernels.gate.set()
        assert background.wait(10)
        other(half(256, 64), half(64, 64))
        assert other.fused == [True]


def test_a_build_that_fails_in_the_background_is_counted_and_not_tried_again(
    kernels: Kernels, tmp_path: Any
) -> None:
    for name in kernels.names:
        kernels.errors[name] = BuildError(name, tmp_path / "a.cu", tmp_path / "build.log", "error: no")
    program = Program(norm)
    x, w = half(256, 64), half(64, 64)
    with torch.no_grad():
        program(x, w)
        assert background.wait(10)
        program(x, w)
    assert program.fused == [False]  # nothing was gained by compiling it again
    assert sum(fallbacks.counts().values()) == 2
    region = found(norm, x, w)
    reason = settle((region, choose.verdict(region, FORCED)), "background").reason
    assert "error: no" in reason
    assert len(kernels.begun) == 2


def test_backward_passes_wait_too(kernels: Kernels) -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return F.silu(x @ w).float().square().sum()

    program = Program(loss)
    x, w = half(256, 64), half(64, 64).requires_grad_()
    program(x, w)  # its forward pass waits for the kernels, which are built at once
    assert background.wait(10)
    kernels.names = ["three"]
    kernels.gate.clear()
    value = program(x, w)
    assert program.fused == [False, False]  # the kernel is another
    kernels.gate.set()
    assert background.wait(10)
    value = program(x, w)
    assert program.fused == [False, False, True]
    kernels.names = ["four"]
    program.backward(value)
    assert program.fused == [False, False, True, False]
    assert background.wait(10)
    value = program(x, w)  # compiled again for the sake of its backward pass
    program.backward(value)
    assert program.fused == [False, False, True, False, True, True]
    assert w.grad is not None


def test_threads_that_compile_at_once_share_the_builds(kernels: Kernels) -> None:
    kernels.gate.clear()
    tasks = [one for one in kernels.tasks_of(None).values() if one is not None]  # type: ignore[arg-type]
    threads = [threading.Thread(target=background.start, args=(tasks,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert background.under_way() == 2
    assert not background.wait(0.01)
    kernels.gate.set()
    assert background.wait(10)
    assert sorted(kernels.begun) == ["one", "two"]
