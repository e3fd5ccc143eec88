"""Published models through ``torch.compile`` with ComFuse on the GPU, against float64.

Their kernels are built by `python -m tests.gpu.build`, or else by the first compile that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the dev or the bench extra")

from bench.models import MODELS, ahead
from bench.models.step import Step, allowed, beyond, distances, truth
from comfuse import fallbacks
from comfuse.generator.emit import KernelSource
from comfuse.inductor import log
from comfuse.inductor.entrances import backend
from comfuse.library.rows import hints
from comfuse.library.source import source_of
from comfuse.ops import programs
from tests.inductor.distributed import Run, check, curves, reference

# One worker runs them all: what a first compile costs, each worker would pay.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("models")]


@dataclass(frozen=True)
class Case:
    """A model, and the fewest of its GEMMs, forward and backward, that have to be fused."""

    model: str
    training: bool
    fused: int

    def __str__(self) -> str:
        return f"{self.model}-{'training' if self.training else 'inference'}"

    def step(self, *, device: str = "cuda", dropout: bool = False) -> Step:
        model = MODELS[self.model]
        return Step.of(model, model.middle, training=self.training, device=device, dropout=dropout)


CASES = (
    Case("encoder_layer", False, 3), Case("encoder_layer", True, 6),
    Case("graph_network", False, 2), Case("graph_network", True, 4),
    Case("dlrm_mlp", False, 4), Case("dlrm_mlp", True, 7),
    Case("bert_large", False, 3), Case("bert_large", True, 6),
    Case("olmo2_7b", False, 6), Case("olmo2_7b", True, 9),
    Case("gemma2_9b", False, 4), Case("gemma2_9b", True, 7),
    Case("llama3_8b", False, 4), Case("llama3_8b", True, 7),
    Case("gpt2", False, 3), Case("gpt2", True, 6),
)  # fmt: skip
BERT, BERT_TRAINING = CASES[6], CASES[7]
NETWORK, NETWORK_TRAINING = CASES[2], CASES[3]


def sources_ahead() -> list[KernelSource]:
    gpu = ahead.planned_gpu()
    reports = {}
    for case, dropout in (*((case, False) for case in CASES), (BERT_TRAINING, True)):
        model = MODELS[case.model]
        step = ahead.step_of(model, model.middle, training=case.training, dropout=dropout)
        reports[case, dropout] = ahead.explained(step, force=True)
    of_any_rows = [programs.parse(text).spec for text, _ in reports[NETWORK, False].kernels]
    return [
        *(source for report in reports.values() for source in ahead.kernels_of(report, gpu)),
        *(source_of(spec, gpu, rows) for spec in of_any_rows for rows in hints(spec, gpu)),
    ]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled, and no graph comes from a cache: it would have no verdicts."""
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._dynamo.reset()
    log.clear()
    fallbacks.reset()
    uncached = torch._functorch.config.patch(enable_autograd_cache=False)
    with torch._inductor.config.patch(fx_graph_cache=False), uncached:
        yield
    assert fallbacks.counts() == {}
    torch.backends.mha.set_fastpath_enabled(before)


def _compile(module: torch.nn.Module, **options: Any) -> Any:
    options = {"dynamic": False, **options}
    return torch.compile(module, backend=backend, options={"force": True}, fullgraph=True, **options)


def _inductor(module: torch.nn.Module, **options: Any) -> Any:
    return torch.compile(module, fullgraph=True, **{"dynamic": False, **options})


def _results(step: Step, compile_module: Callable[[torch.nn.Module], Any]) -> dict[str, torch.Tensor]:
    torch._dynamo.reset()
    own = step.copy()
    return own.results(compile_module(own.module))


def _fused() -> int:
    return sum(v.fused for v in log.verdicts())


def _said() -> str:
    return "\n".join(
        f"{v.anchor} {v.shape} {'fused' if v.fused else 'left'}: {v.reason}" for v in log.verdicts()
    )


def _check(step: Step, least: int) -> None:
    """Right against float64, with at least so many GEMMs fused."""
    exact = truth(step)
    bounds = allowed(step.copy().results(), exact)
    errors = distances(_results(step, _compile), exact)
    assert _fused() >= least, _said()
    if beyond(errors, bounds):
        inductor = distances(_results(step, _inductor), exact)
        bounds = {name: max(bound, 1.1 * inductor[name]) for name, bound in bounds.items()}
    assert beyond(errors, bounds) == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: Case) -> None:
    _check(case.step(), case.fused)


def test_dropout_draws_what_inductor_alone_draws() -> None:
    """From the same seed.

    Each may be as far from float64 as is allowed without dropout; between them twice as much.
    """
    plain = BERT_TRAINING.step()
    bounds = {n: 2 * b for n, b in allowed(plain.copy().results(), truth(plain)).items()}
    step = BERT_TRAINING.step(dropout=True)

    def seeded(compile_module: Any, *seeds: int) -> Iterator[dict[str, torch.Tensor]]:
        torch._dynamo.reset()
        compiled = compile_module(step.module)
        for seed in seeds:
            torch.manual_seed(seed)
            yield step.results(compiled)

    (inductor,) = seeded(_inductor, 5)
    exact = {n: x.double() for n, x in inductor.items()}
    same, other = seeded(_compile, 5, 6)
    assert beyond(distances(same, exact), bounds) == []
    assert _fused() >= BERT_TRAINING.fused, _said()
    assert beyond(distances(other, exact), bounds) != []


def test_one_graph_serves_all_numbers_of_rows() -> None:
    """Also with the kernels for few rows, which the launch chooses.

    Where TorchInductor alone compiles again, so may it with ComFuse: no guard is ours.
    """
    step = NETWORK.step()
    (edges,) = step.inputs
    parts = [Step(step.module, (edges[:m],), False) for m in (20_000, 3, 130, 511, 4097, 2)]
    graphs = {}
    for name, compile_module in (("inductor", _inductor), ("comfuse", _compile)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = compile_module(step.module, dynamic=True)
        for part in parts:
            exact = truth(part)
            errors = distances(part.results(compiled), exact)
            assert beyond(errors, allowed(part.results(), exact)) == [], (name, part.inputs[0].shape)
        graphs[name] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs["comfuse"] == graphs["inductor"]
    assert _fused() >= 2, _said()


@pytest.mark.parametrize("case", [BERT, BERT_TRAINING], ids=str)
def test_replays_of_a_cuda_graph_follow_their_inputs(case: Case) -> None:
    step = case.step()
    call = step.call(_compile(step.module))
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = call()
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            step.inputs[0].copy_(torch.randn_like(step.inputs[0]))
        graph.replay()
        found = [x.clone() for x in replayed]
        expected = call()
        for name, x, y in zip(step.names, found, expected, strict=True):
            # Sums over all rows, of weights' gradients, may run in another order in cuBLAS.
            assert (x.double() - y.double()).norm() <= 2.0**-8 * y.double().norm(), name
    assert _fused() >= case.fused, _said()


def test_two_streams_at_once() -> None:
    """The exchange between the CTAs of a row group must not meet that of another stream."""
    steps = [BERT.step(), NETWORK.step()]
    calls = [step.call(_compile(step.module)) for step in steps]
    expected = [call()[0].clone() for call in calls]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results: list[tuple[int, torch.Tensor]] = []
    for _ in range(10):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((i % 2, calls[i % 2]()[0]))
    torch.cuda.synchronize()
    for i, result in results:
        assert torch.equal(result, expected[i])


two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs two GPUs, has {torch.cuda.device_count()}"
)


@two_gpus
@pytest.mark.parametrize("case", [BERT, NETWORK_TRAINING], ids=str)
def test_on_another_device_than_the_current_one(case: Case) -> None:
    with torch.cuda.device(0):
        _check(case.step(device="cuda:1"), case.fused)


@two_gpus
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_losses_follow_those_of_the_unfused_model(wrapper: Any, tmp_path: Path) -> None:
    runs = [Run(wrapper, fused, "cuda", interpreted=False, middle=True) for fused in (False, True)]
    eager, fused = curves(runs, tmp_path)
    check(fused, eager, reference(Run(None, device="cuda", middle=True)))
