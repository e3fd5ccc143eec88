"""Published models through ``torch.compile`` with ComFuse: what is fused, and whether it is right.

Torch's own operators run the graphs, so that no C++ is compiled; test_models_compiled.py has the rest.
Correct is: no tensor further from float64 than twice the eager program in the same dtype, or than 1.1 times
what TorchInductor's passes make of it without ComFuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("transformers", reason="needs the dev extra")

from bench.models import MODELS
from bench.models.step import Step, allowed, beyond, distances, truth
from comfuse.inductor import log
from comfuse.inductor.entrances import enable
from tests.inductor.interpreted import interpreted


@dataclass(frozen=True)
class Case:
    """A model, and how many of the GEMMs of each of its graphs are fused, of how many."""

    model: str
    training: bool
    fused: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{self.model}-{'training' if self.training else 'inference'}"


# Left are: products of weight gradients, whose K is the tokens; what only attention reads; N or K of 1.
CASES = (
    Case("encoder_layer", False, ((3, 4),)),
    Case("encoder_layer", True, ((3, 4), (3, 8))),
    Case("graph_network", False, ((2, 2),)),
    Case("graph_network", True, ((2, 2), (2, 4))),
    Case("dlrm_mlp", False, ((4, 5),)),
    Case("dlrm_mlp", True, ((4, 5), (3, 10))),
    Case("bert_large", False, ((3, 6),)),
    Case("bert_large", True, ((3, 6), (3, 12))),
    Case("olmo2_7b", False, ((6, 7),)),
    Case("olmo2_7b", True, ((6, 7), (3, 14))),
    Case("gemma2_9b", False, ((4, 7),)),
    Case("gemma2_9b", True, ((4, 7), (3, 14))),
    Case("llama3_8b", False, ((4, 7),)),
    Case("llama3_8b", True, ((4, 7), (3, 14))),
    Case("gpt2", False, ((3, 4),)),
    Case("gpt2", True, ((3, 4), (3, 8))),
)


@pytest.fixture(autouse=True)
def _no_fast_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In inference nn.TransformerEncoderLayer is one opaque operator unless told otherwise."""
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    log.clear()
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def _run(step: Step) -> dict[str, torch.Tensor]:
    """The results of a copy of the step through TorchInductor's passes, those on the hook among them."""
    torch._dynamo.reset()
    own = step.copy()
    return own.results(torch.compile(own.module, backend=interpreted, fullgraph=True, dynamic=False))


def _fused() -> tuple[tuple[int, int], ...]:
    return tuple((sum(v.fused for v in graph), len(graph)) for graph in log.compiles())


def _unclear() -> list[str]:
    """Verdicts whose reason is none, or a bug."""
    return [str(v) for v in log.verdicts() if not v.reason or "\n" in v.reason or "bug" in v.reason]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: Case) -> None:
    step = Step.of(MODELS[case.model], MODELS[case.model].small, training=case.training, dropout=False)
    exact = truth(step)
    bounds = allowed(step.copy().results(), exact)
    with enable(force=True):
        errors = distances(_run(step), exact)
    assert _fused() == case.fused, "\n".join(f"{v.anchor}: {v.reason}" for v in log.verdicts())
    assert _unclear() == []
    if beyond(errors, bounds):
        inductor = distances(_run(step), exact)
        bounds = {name: max(bound, 1.1 * inductor[name]) for name, bound in bounds.items()}
    assert beyond(errors, bounds) == []


@pytest.mark.parametrize("case", [c for c in CASES if not c.training], ids=str)
def test_without_force_every_gemm_is_fused_or_left_for_a_reason(case: Case) -> None:
    step = Step.of(MODELS[case.model], MODELS[case.model].small, training=False)
    with enable():
        _run(step)
    ((_, gemms),) = case.fused
    assert len(log.verdicts()) == gemms
    assert _unclear() == []


# Those without relu: where its argument is near zero a gradient jumps, and here few elements are summed.
@pytest.mark.parametrize("name", ["bert_large", "gpt2"])
def test_dropout_draws_what_inductor_alone_draws(name: str) -> None:
    """From the same seed, in any case.

    Each may be as far from float64 as is allowed without dropout; between them twice as much.
    """
    model = MODELS[name]
    plain = Step.of(model, model.small, training=True, dropout=False)
    bounds = {n: 2 * b for n, b in allowed(plain.copy().results(), truth(plain)).items()}
    step = Step.of(model, model.small, training=True)
    torch.manual_seed(5)
    expected = {n: x.double() for n, x in _run(step).items()}
    log.clear()
    with enable(force=True):
        torch.manual_seed(5)
        fused = _run(step)
        torch.manual_seed(6)
        others = _run(step)
    assert sum(v.fused for v in log.verdicts()) >= 2 * 4
    assert beyond(distances(fused, expected), bounds) == []
    assert beyond(distances(others, expected), bounds) != []  # other masks are told apart


def test_batches_first_in_the_encoder_layer_are_right() -> None:
    """Attention turns its rows round and back: less is fused."""
    model = MODELS["encoder_layer"]
    size = model.small
    module = torch.nn.TransformerEncoderLayer(size.width, size.heads, size.inner, 0.0, batch_first=True)
    inputs = tuple(x.bfloat16() for x in model.arguments(size))
    step = Step(module.bfloat16(), inputs, True, torch.randn_like(inputs[0]))
    exact = truth(step)
    bounds = allowed(step.copy().results(), exact)
    with enable(force=True):
        assert beyond(distances(_run(step), exact), bounds) == []
    assert sum(v.fused for v in log.verdicts()) >= 4
    assert _unclear() == []
