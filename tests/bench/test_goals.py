"""Goals: what is compared, and how it is said."""

from __future__ import annotations

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import goals
from bench.goals import Goal
from bench.models import report as models_report
from bench.report import Row, goal_of, summarise
from bench.workloads import POSTNORM, Target
from bench.workloads.models import MODEL_WORKLOADS

FASTER, SHORTER = Target(1.12, "inductor"), Target(1.12, "mm")


@pytest.mark.parametrize(
    "target, ratio, outcome",
    [
        (FASTER, 1.12, "met by a hair, 1.120"),
        (FASTER, 1.1161, "MISSED by a hair, 1.116"),
        (FASTER, 1.2, "met"),
        (FASTER, 1.1149, "MISSED"),
        (SHORTER, 1.1239, "MISSED by a hair, 1.124"),
        (SHORTER, 1.1152, "met by a hair, 1.115"),
        (SHORTER, 1.2, "MISSED"),
        (SHORTER, None, "not measured"),
    ],
)
def test_what_is_compared_is_not_rounded(target: Target, ratio: float | None, outcome: str) -> None:
    goal = Goal(target, ratio)
    assert goal.outcome == outcome
    assert goal.met is (None if ratio is None else outcome.startswith("met"))


def test_a_ratio_that_only_rounds_to_its_goal_misses_it_in_every_table() -> None:
    bert = next(w for w in MODEL_WORKLOADS if w.target == FASTER)
    rows = [Row(bert.name, "inductor", 0, us=111.6), Row(bert.name, "comfuse", 0, us=100.0)]
    assert "≥ 1.12x MISSED by a hair, 1.116" in models_report.table(rows)
    norm = next(w for w in POSTNORM if w.target == SHORTER)
    (summary,) = summarise([Row(norm.name, "mm", 0, us=100.0), Row(norm.name, "comfuse", 0, us=112.4)])
    goal = goal_of(summary)
    assert goal is not None
    assert (goal.met, goal.outcome) == (False, "MISSED by a hair, 1.124")


def test_families_without_goals_have_none() -> None:
    assert goals.of_family("narrow", {}, {}) == ()
