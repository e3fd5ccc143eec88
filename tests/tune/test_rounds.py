"""The order in which candidates are timed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest

from comfuse.rounds import order


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("begin", [-3, 0, 5])
def test_each_follows_each_other_equally_often(n: int, begin: int) -> None:
    names = "abcdefg"[:n]
    rounds = [order(names, number) for number in range(begin, begin + 2 * n)]
    assert all(sorted(r) == sorted(names) for r in rounds)
    followed = Counter(pair for r in rounds for pair in pairwise(r))
    assert followed == dict.fromkeys(permutations(names, 2), 2)
    assert Counter(r[0] for r in rounds) == dict.fromkeys(names, 2)
