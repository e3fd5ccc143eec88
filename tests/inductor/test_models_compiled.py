"""Models through all of TorchInductor, its CPU code included: dropout, sizes that change, threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs the dev extra")

from bench.models import MODELS, without_dropout
from bench.models.step import Step, allowed, beyond, distances, truth
from comfuse.inductor import log
from comfuse.inductor.entrances import backend


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled yet, and nothing comes from a cache: a graph from there has no verdicts."""
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._dynamo.reset()
    log.clear()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch.backends.mha.set_fastpath_enabled(before)


def _compile(module: torch.nn.Module, **options: Any) -> Any:
    options = {"dynamic": False, **options}
    return torch.compile(module, backend=backend, options={"force": True}, fullgraph=True, **options)


def _fused() -> int:
    return sum(v.fused for v in log.verdicts())


class FeedForward(nn.Module):
    """The half of a BERT layer behind its attention, which alone takes a minute of C++ to compile."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.intermediate, self.output = layer.intermediate, layer.output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.intermediate(x), x)


@pytest.mark.slow
def test_dropout_draws_what_inductor_alone_draws() -> None:
    """From the same seed.

    Each may be as far from float64 as is allowed without dropout; between them twice as much.
    """
    model = MODELS["bert_large"]
    whole = Step.of(model, model.small, training=True)
    step = Step(FeedForward(whole.module), whole.inputs, True, whole.gradient)
    plain = step.copy()
    without_dropout(plain.module)
    bounds = {n: 2 * b for n, b in allowed(plain.copy().results(), truth(plain)).items()}

    def results(compile_module: Any) -> dict[str, torch.Tensor]:
        torch._dynamo.reset()
        own = step.copy()
        compiled = compile_module(own.module)
        torch.manual_seed(5)
        return own.results(compiled)

    fused = results(_compile)
    assert _fused() == 4
    unfused = results(lambda module: torch.compile(module, fullgraph=True, dynamic=False))
    exact = {n: x.double() for n, x in unfused.items()}
    assert beyond(distances(fused, exact), bounds) == []


def test_one_compiled_model_serves_any_number_of_rows_and_two_threads() -> None:
    """One graph for all numbers of rows."""
    model = MODELS["graph_network"]
    step = Step.of(model, model.small, training=False)
    (edges,) = step.inputs
    compiled = _compile(step.module, dynamic=True)
    rows = (48, 2, 5, 97, 3)
    exact, bounds = {}, {}
    for m in rows:
        part = Step(step.module, (edges[:m],), False)
        exact[m] = truth(part)
        bounds[m] = allowed(part.results(), exact[m])

    def wrong(m: int) -> list[str]:
        return beyond(
            distances(Step(step.module, (edges[:m],), False).results(compiled), exact[m]), bounds[m]
        )

    assert wrong(rows[0]) == []
    compiles = len(log.compiles())
    assert _fused() == 2
    barrier = Barrier(2)

    def many(order: tuple[int, ...]) -> list[str]:
        barrier.wait()
        return [text for _ in range(10) for m in order for text in wrong(m)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(many, (rows, rows[::-1]))) == [[], []]
    assert len(log.compiles()) == compiles, "another number of rows was compiled anew"


def test_two_threads_compile_at_once() -> None:
    model = MODELS["dlrm_mlp"]
    step = Step.of(model, model.small, training=False)
    exact = truth(step)
    bounds = allowed(step.results(), exact)
    compiled = _compile(step.module)
    barrier = Barrier(2)

    def first_call(_: int) -> list[str]:
        barrier.wait()
        with torch._inductor.config.patch(
            force_disable_caches=True
        ):  # another thread's patch may not hold here
            return beyond(distances(step.results(compiled), exact), bounds)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(first_call, range(2))) == [[], []]
    assert _fused() >= 4
