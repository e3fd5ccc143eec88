"""Which of several is the fastest, from as few times as it takes: successive elimination.

In every round each one that is left is timed once, so that a drift of the clocks meets all of them.  After
certain rounds the one of the lowest median leads, and a sign test holds each other one against it.  Its
hypothesis: in a round, the other is faster by more than :data:`INDIFFERENCE` with a probability of at least
one half (that is, the median of the ratio of their times is below that).  Where rounds that say so are so few
that this has a probability below ALPHA / (others x looks), the other one is dropped.

Nothing is assumed of how times are distributed, only that rounds are alike.  All tests of a race together
drop one against the hypothesis with a probability of at most :data:`ALPHA`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from comfuse.rounds import order

#: Probability that a race drops one that is faster than its leader by more than :data:`INDIFFERENCE`.
ALPHA = 0.05
#: What a faster one may be worth for it to be dropped, as a part of the time.
INDIFFERENCE = 0.005
#: The rounds after which some may be dropped; the last one ends the race.
LOOKS = (12, 18, 24, 36, 48)
WARM_UP_ROUNDS = 3


@dataclass(frozen=True)
class Race:
    """How a race went.

    Attributes:
        samples: the times of each, in the order of the rounds; of one that was dropped those before.
        dropped: after how many rounds one was dropped.
        winner: of those that are left, the one of the lowest median.
    """

    samples: dict[str, tuple[float, ...]]
    dropped: dict[str, int]
    winner: str

    def us(self, name: str) -> float:
        """The median of one's times."""
        return median(self.samples[name])

    def ratio(self, name: str) -> float:
        """One's time over the winner's: the median over the rounds that had both."""
        pairs = zip(self.samples[name], self.samples[self.winner], strict=False)
        return median(own / best for own, best in pairs)

    @property
    def order(self) -> tuple[str, ...]:
        """All names: the winner, then by how much slower they are."""
        others = sorted((n for n in self.samples if n != self.winner), key=self.ratio)
        return (self.winner, *others)


def race(
    timers: Mapping[str, Callable[[], float]], looks: Sequence[int] = LOOKS, *, eliminate: bool = True
) -> Race:
    """Times the callables in turn, each round in another order (:func:`comfuse.rounds.order`).

    Args:
        timers: each gives one time.
        looks: after these rounds some may be dropped; the last one ends the race, if none is left but one or
            none is dropped any more.
        eliminate: False: all are timed in all rounds.

    Raises:
        ValueError: there are no timers.
    """
    if not timers:
        raise ValueError("a race has at least one timer")
    left = list(timers)
    samples: dict[str, list[float]] = {name: [] for name in left}
    dropped: dict[str, int] = {}
    for number in range(-WARM_UP_ROUNDS, looks[-1]):
        for name in order(left, number):
            us = timers[name]()
            if number >= 0:
                samples[name].append(us)
        count = number + 1
        if not eliminate or count not in looks:
            continue
        level = ALPHA / max(1, (len(timers) - 1) * len(looks))
        leader = min(left, key=lambda name: median(samples[name]))
        out = [n for n in left if n != leader and not _may_win(samples[n], samples[leader], level)]
        dropped |= dict.fromkeys(out, count)
        left = [name for name in left if name not in out]
        if len(left) == 1:
            break
    winner = min(left, key=lambda name: median(samples[name]))
    return Race({name: tuple(times) for name, times in samples.items()}, dropped, winner)


def _may_win(times: Sequence[float], leader: Sequence[float], level: float) -> bool:
    """Whether it may still be that one is faster than the leader by more than the indifference."""
    slower = sum(own > (1 - INDIFFERENCE) * best for own, best in zip(times, leader, strict=True))
    return _tail(len(times), slower) >= level


def _tail(rounds: int, at_least: int) -> float:
    """The probability of so many heads, or more, of fair coins."""
    return sum(math.comb(rounds, k) for k in range(at_least, rounds + 1)) / 2**rounds
