"""The statistics: who wins, who is dropped when, how often that is wrong."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from comfuse.tune import race as module
from comfuse.tune.race import ALPHA, INDIFFERENCE, LOOKS, WARM_UP_ROUNDS, race


def timers(us: dict[str, float], noise: float, seed: int) -> tuple[dict[str, Callable[[], float]], list[str]]:
    """Times with a one-sided noise, as interruptions make it, while all clocks drift by a tenth."""
    source, calls = random.Random(seed), []

    def time(name: str) -> float:
        calls.append(name)
        drift = 1 + 0.05 * math.sin(len(calls) / 30)
        return us[name] * drift * (1 + source.expovariate(1 / noise))

    return {name: lambda name=name: time(name) for name in us}, calls


@pytest.mark.parametrize("seed", range(40))
def test_the_fastest_wins_through_noise_and_drift(seed: int) -> None:
    us = {"a": 103.0, "b": 100.0, "c": 102.0, "d": 130.0}
    found = race(timers(us, 0.01, seed)[0])
    assert found.winner == "b"
    assert found.ratio("a") == pytest.approx(1.03, abs=0.015)
    assert found.order[0] == "b"
    assert found.order[-1] == "d"


def test_what_is_slower_is_dropped_at_the_first_look() -> None:
    time, calls = timers({"a": 100.0, **{str(i): 110.0 + i for i in range(11)}}, 0.002, 0)
    found = race(time)
    assert found.winner == "a"
    assert set(found.dropped.values()) == {LOOKS[0]}
    assert len(calls) == 12 * (LOOKS[0] + WARM_UP_ROUNDS) < 12 * LOOKS[-1] / 3


def test_equals_end_the_race_too() -> None:
    found = race(timers({"a": 100.0, "b": 100.0}, 0.0005, 1)[0])
    assert len(found.dropped) == 1
    assert len(found.samples[found.winner]) == LOOKS[0]


def test_without_elimination_all_run_all_rounds() -> None:
    found = race(timers({"a": 100.0, "b": 200.0}, 0.01, 0)[0], eliminate=False)
    assert {len(times) for times in found.samples.values()} == {LOOKS[-1]}
    assert not found.dropped


def test_the_best_is_dropped_no_more_often_than_alpha() -> None:
    """It is faster by two percent, which noise of four makes hard to see."""
    races = 300
    wrong = sum(
        "best" in race(timers({"a": 100.0, "best": 98.0, "b": 100.0, "c": 101.0}, 0.04, seed)[0]).dropped
        for seed in range(races)
    )
    assert wrong <= ALPHA * races


def test_a_choice_is_never_much_slower_than_the_best() -> None:
    for seed in range(100):
        us = {str(i): 100 + 0.4 * i for i in range(8)}
        assert us[race(timers(us, 0.005, seed)[0]).winner] <= 100 * (1 + 2 * INDIFFERENCE)


def test_rounds_are_in_different_orders() -> None:
    time, calls = timers(dict.fromkeys("abc", 100.0), 0.01, 0)
    race(time, (12,), eliminate=False)
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert {tuple(sorted(r)) for r in rounds} == {("a", "b", "c")}
    assert len({tuple(r) for r in rounds}) > 3
    assert {r[0] for r in rounds} == set("abc")


def test_the_tail_is_that_of_fair_coins() -> None:
    tosses = [sum(heads) for heads in itertools.product((0, 1), repeat=9)]
    for least in range(10):
        assert module._tail(9, least) == sum(t >= least for t in tosses) / 2**9


def test_a_race_of_none() -> None:
    with pytest.raises(ValueError, match="at least one"):
        race({})
