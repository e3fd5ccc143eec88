"""From a program to an entry of a table, on a GPU whose best plan is known."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse.errors import ArgumentError, TuneError
from comfuse.generator import catalog
from comfuse.generator.catalog import chains
from comfuse.generator.spec import DType
from comfuse.inductor.policy import Policy
from comfuse.inductor.report import explain_model
from comfuse.library import tuned
from comfuse.library.signature import signature
from comfuse.library.tuned.table import Entry, Timed
from comfuse.tune import Target, targets, tune
from comfuse.tune.race import LOOKS, WARM_UP_ROUNDS
from comfuse.tune.text import outcome_text
from tests.tune.fake import FakeGpu

BF16 = DType.BF16
TARGET = Target("linear", catalog.linear(512, 64, BF16, bias=BF16), (300,))
LABELS = [p.label for p in TARGET.candidates("h200").kept]
SLOW = {p.label: 20.0 for p in TARGET.candidates("h200", exhaustive=True).kept}


def double(y: Tensor) -> None:
    y.mul_(2)


@pytest.mark.parametrize("best", [LABELS[0], LABELS[-1]])
def test_the_fastest_is_chosen(best: str) -> None:
    gpu = FakeGpu({**SLOW, best: 17.0, LABELS[1]: 18.0})
    entry = tune(TARGET, gpu).entry
    assert entry.best.label == best
    assert entry.best.us == pytest.approx(17.0, rel=0.06)
    assert entry.second is not None
    assert entry.second.label == LABELS[1]
    assert entry.key == (signature(TARGET.spec), "h200", 512)
    assert (entry.m, entry.candidates, entry.device, entry.device_code) == (
        300,
        len(LABELS),
        "a fake",
        "none",
    )
    assert 0 < entry.error <= entry.allowed
    assert tuned.plan_of(entry, TARGET.spec, "h200", 512).label == best


def test_a_plan_that_is_wrong_never_wins_and_is_reported() -> None:
    gpu = FakeGpu({**SLOW, LABELS[0]: 5.0, LABELS[1]: 19.0}, spoil={LABELS[0]: double})
    outcome = tune(TARGET, gpu)
    assert outcome.entry.best.label == LABELS[1]
    assert gpu.timed[LABELS[0]] == 0
    (failure,) = outcome.wrong
    assert failure.plan.label == LABELS[0]
    assert any(line.startswith(f"  {LABELS[0]}: WRONG: output y: error") for line in outcome_text(outcome))


def test_a_plan_that_is_wrong_after_many_launches_never_wins() -> None:
    us = {**SLOW, LABELS[0]: 5.0, LABELS[1]: 18.0}
    outcome = tune(TARGET, FakeGpu(us, spoil_later={LABELS[0]: double}))
    assert outcome.entry.best.label == LABELS[1]
    assert LABELS[0] not in outcome.race.samples
    (failure,) = outcome.wrong
    assert failure.reason.startswith("after it was timed: output y: error")
    with pytest.raises(TuneError, match="after it was timed"):
        tune(TARGET, FakeGpu(us, spoil_later=dict.fromkeys(LABELS, double)))


def test_all_are_checked_before_one_is_timed() -> None:
    gpu = FakeGpu()
    tune(TARGET, gpu)
    assert gpu.checked == gpu.built == LABELS
    assert set(gpu.timed) == set(LABELS)


def test_nothing_is_chosen_where_all_are_wrong() -> None:
    with pytest.raises(TuneError, match=f"linear: nothing can be chosen: {LABELS[0]}: output y: error"):
        tune(TARGET, FakeGpu(spoil=dict.fromkeys(LABELS, double)))


def test_the_same_times_give_the_same_entry() -> None:
    one, other = (tune(TARGET, FakeGpu(seed=7)).entry for _ in range(2))
    assert one == other
    assert one.text() == other.text()


def test_losers_cost_few_rounds() -> None:
    quick, all_rounds = FakeGpu({**SLOW, LABELS[2]: 15.0}), FakeGpu({**SLOW, LABELS[2]: 15.0})
    assert tune(TARGET, quick).entry.best.label == LABELS[2]
    full = tune(TARGET, all_rounds, exhaustive=True)
    assert full.entry.best.label == LABELS[2]
    assert set(quick.timed.values()) == {LOOKS[0] + WARM_UP_ROUNDS}
    assert set(all_rounds.timed.values()) == {LOOKS[-1] + WARM_UP_ROUNDS}
    assert len(all_rounds.timed) > len(quick.timed)
    assert (full.entry.exhaustive, full.entry.rounds) == (True, LOOKS[-1])


def test_what_is_said_names_every_plan() -> None:
    outcome = tune(TARGET, FakeGpu({**SLOW, LABELS[1]: 15.0}))
    text = "\n".join(outcome_text(outcome))
    considered = outcome.candidates
    for name in (*LABELS, *(p.label for p in considered.pruned), *(r.shape.name for r in considered.refused)):
        assert f"  {name}" in text
    assert re.search(rf"the cost model would choose {LABELS[0]}, 3[23]\.\d % slower", text)
    assert f"dropped after {LOOKS[0]} rounds" in text


def test_an_entry_survives_its_text() -> None:
    import json

    entry = tune(TARGET, FakeGpu()).entry
    assert Entry.parse(json.loads(entry.text())) == entry
    alone = Entry.parse({**json.loads(entry.text()), "second": None, "rows": "many"})
    assert (alone.second, alone.rows, alone.best) == (None, None, Timed(**json.loads(entry.text())["best"]))


def test_targets_of_a_spec_are_its_classes() -> None:
    spec = TARGET.spec
    assert [t.m for t in targets.of_spec(spec, "h200")] == [128, 512, 2048, 16384]
    assert [t.lead for t in targets.of_spec(spec, "h200", (7, 9))] == [(7,), (9,)]
    batched = catalog.softmax(128, 64, BF16, layouts=catalog.Layouts(batched=True))
    assert [t.lead for t in targets.of_spec(batched, "h200", (256,))] == [(1, 256)]
    with pytest.raises(ArgumentError, match="spec is a chain"):
        targets.of_spec(chains.mlp(128, 64, 512, BF16), "h200")


def test_of_a_model_the_kernels_are_tuned_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few rows one kernel could do it; a compiled graph has two, whatever the number of rows."""

    def batch_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = F.linear(x, w)
        return (h - h.float().mean(0)) * h.float().var(0, correction=0).add(1e-5).rsqrt()

    tensors = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((512, 512), (512, 512))]
    report = explain_model(batch_norm, *tensors, policy=Policy(force=True, gpu="h200"))
    run = [text for row in report.rows for text, _ in row.verdict.kernels]
    monkeypatch.setattr(targets, "Policy", partial(Policy, force=True))
    found, left_out = targets.of_model(batch_norm, tensors, "h200")
    assert [t.spec.text() for t in found] == run
    assert len(targets.of_function(batch_norm, tensors, "h200")) != len(run)
    assert left_out == []


def test_chains_are_left_out_of_a_model_and_refused_else() -> None:
    def layers(x: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(F.gelu(F.linear(x, w0)), w1))

    sizes = ((512, 128), (512, 128), (128, 512))
    tensors = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes]
    found, left_out = targets.of_model(layers, tensors, "h200")
    assert found == []
    assert len(left_out) == 2
    assert all("the cost model alone plans chains" in line for line in left_out)
    with pytest.raises(ArgumentError, match="the cost model alone plans chains"):
        targets.of_function(layers, tensors, "h200")
