"""The record of what became of all GEMMs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from comfuse.inductor import log
from comfuse.inductor.verdict import Verdict


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    log.clear()
    yield
    log.clear()


def verdict(anchor: str, reason: str = "", fused: bool = True) -> Verdict:
    return Verdict(anchor, None, fused, reason, (1, 2, 3))


def test_verdicts_are_kept_by_graph_and_counted_by_reason() -> None:
    first = [verdict("mm"), verdict("mm_1", "no gain", fused=False)]
    second = [verdict("bmm", "no gain", fused=False), verdict("addmm", "fp32 factors", fused=False)]
    log.record(first)
    log.record([])
    log.record(second)
    assert log.compiles() == [tuple(first), (), tuple(second)]
    assert log.verdicts() == [*first, *second]
    assert log.counts() == {"fused": 1, "left: no gain": 2, "left: fp32 factors": 1}
    log.clear()
    assert log.verdicts() == []
    assert log.counts() == {}


def test_a_list_that_is_changed_later_does_not_change_the_record() -> None:
    given = [verdict("mm")]
    log.record(given)
    given.clear()
    assert len(log.verdicts()) == 1


def test_threads_lose_nothing() -> None:
    def work(number: int) -> None:
        for i in range(200):
            log.record([verdict(f"mm_{number}_{i}"), verdict(f"mm_{number}_{i}", "no gain", fused=False)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.compiles()) == 800
    assert log.counts() == {"fused": 800, "left: no gain": 800}
    assert all(a.anchor == b.anchor for a, b in log.compiles())


def test_the_record_is_bounded_and_the_counts_go_on() -> None:
    limit = log._COMPILES.maxlen
    assert limit is not None
    for _ in range(limit + 10):
        log.record([verdict("mm")])
    assert len(log.compiles()) == limit
    assert log.counts() == {"fused": limit + 10}
