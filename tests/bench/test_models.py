"""The models' definitions, and how a step of one is checked."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("transformers", reason="needs the dev or the bench extra")

from bench.models import MODELS, Model, without_dropout
from bench.models.step import Step, allowed, beyond, distances, truth


@pytest.fixture(autouse=True)
def _no_fast_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


ALL = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@ALL
def test_a_step_without_dropout_is_deterministic_and_one_with_it_is_not(model: Model) -> None:
    step = Step.of(model, model.small, training=True, dropout=False)
    first, second = step.copy().results(), step.copy().results()
    assert all(torch.equal(first[name], second[name]) for name in first)

    drawing = Step.of(model, model.small, training=True)
    outputs = [drawing.copy().results()["output"] for _ in range(2)]
    assert torch.equal(*outputs) != model.dropout


@ALL
def test_results_are_named_and_have_the_shapes_of_what_they_belong_to(model: Model) -> None:
    step = Step.of(model, model.small, training=True, dropout=False)
    results = step.results()
    assert results["gradient of the input"].shape == step.inputs[0].shape
    for name, parameter in step.module.named_parameters():
        assert results[f"gradient of {name}"].shape == parameter.shape
    assert Step.of(model, model.small, training=False).names == ["output"]


@ALL
def test_every_scale_and_shift_is_drawn(model: Model) -> None:
    """Ones and zeros would hide whether they are applied."""
    vectors = [p for p in model.module(model.small).parameters() if p.dim() == 1 and p.numel() > 1]
    assert vectors
    assert all(p.unique().numel() > 1 for p in vectors)


@ALL
def test_published_sizes_are_consistent(model: Model) -> None:
    for size in (model.small, model.middle, model.real):
        with torch.device("meta"):
            built = model.build(size)
        assert any(p.shape[-1] == size.width or p.shape[0] == size.width for p in built.parameters())
    assert model.small.rows < model.middle.rows < model.real.rows


def test_published_numbers_of_parameters() -> None:
    """By hand, of one layer: 12.6 million in BERT-large, 218.1 in Llama-3 8B, 202.4 in OLMo-2 7B."""
    counts = {}
    for name in ("bert_large", "llama3_8b", "olmo2_7b"):
        with torch.device("meta"):
            counts[name] = sum(p.numel() for p in MODELS[name].build(MODELS[name].real).parameters())
    bert = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    llama = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    olmo = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 4 * 4096
    assert counts == {"bert_large": bert, "llama3_8b": llama, "olmo2_7b": olmo}


@ALL
def test_an_eager_step_is_within_its_own_bounds_and_a_wrong_gradient_is_not(model: Model) -> None:
    step = Step.of(model, model.small, training=True, dropout=False)
    exact, eager = truth(step), step.copy().results()
    bounds = allowed(eager, exact)
    assert beyond(distances(eager, exact), bounds) == []
    for name in eager:
        wrong = dict(eager)
        wrong[name] = eager[name] * 1.5 + 8 * bounds[name]
        assert [text.split(": error")[0] for text in beyond(distances(wrong, exact), bounds)] == [name]


def test_what_is_not_finite_is_infinitely_wrong() -> None:
    exact = {"output": torch.ones(2, dtype=torch.float64)}
    assert distances({"output": torch.tensor([1.0, math.nan])}, exact) == {"output": math.inf}
    with pytest.raises(ValueError, match="output"):
        distances({}, exact)


def test_dropout_of_attention_is_taken_out_too() -> None:
    model = MODELS["bert_large"]
    module = without_dropout(model.module(model.small))
    (x,) = model.arguments(model.small)
    assert torch.equal(module(x), module(x))
