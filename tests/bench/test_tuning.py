"""The tuner's choice against all plans, on a GPU that is none."""

from __future__ import annotations

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import tuning
from comfuse.generator import catalog
from comfuse.generator.spec import DType
from comfuse.tune import Target
from tests.tune.fake import FakeGpu

TARGET = Target("linear", catalog.linear(1024, 512, DType.BF16), (300,))


def test_the_choice_is_held_against_the_best_of_all() -> None:
    """The cost model prunes the one that is the fastest here: the record says what that costs."""
    considered = TARGET.candidates("h200")
    kept, pruned = considered.kept[1].label, considered.pruned[0].label
    us = {p.label: 20.0 for p in (*considered.kept, *considered.pruned)}
    record, quick, full = tuning.compare(TARGET, FakeGpu({**us, kept: 11.0, pruned: 10.0}))
    assert (record["choice"], record["best"]) == (kept, pruned)
    assert record["ratio"] == pytest.approx(1.1, abs=0.01)
    assert record["ratio_of_model"] == pytest.approx(2.0, abs=0.02)
    assert record["timed"] == len(considered.kept) < record["plans"]
    assert record["samples"] < record["samples_of_all"]
    assert (quick.entry.exhaustive, full.entry.exhaustive) == (False, True)
    assert f"| {kept} " in (text := tuning.table([record]))
    assert f" {record['ratio']:.3f} " in text


def test_all_eight_shapes_are_compared() -> None:
    found = tuning.targets("postnorm", [])
    assert [t.m for t in found] == [16384] * 4 + [8192] * 2 + [327680, 65536]
    assert not tuning.targets("b2b", [])
