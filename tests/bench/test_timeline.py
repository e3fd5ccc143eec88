"""What the timeline makes of a kernel's clocks."""

from __future__ import annotations

import re

from bench import timeline
from bench.environment import ROOT

NAMES = timeline.steps(1)


def clocks(tiles: list[list[int]]) -> timeline.Clocks:
    """One team of one CTA; what was not reached is 0."""
    padded = [tile + [0] * (timeline.STEPS - len(tile)) for tile in tiles]
    return [[padded + [[0] * timeline.STEPS] * (timeline.TILES - len(tiles)), []]]


def tile(start: int, *lengths: int) -> list[int]:
    times = [start]
    for length in lengths:
        times.append((times[-1] + length) % 2**32)
    return times


def test_the_buffer_is_as_large_as_the_device_says() -> None:
    header = (ROOT / "csrc" / "include" / "comfuse" / "sm90" / "timeline.hpp").read_text()
    numbers = dict(re.findall(r"kTimeline(\w+) = (\d+)", header))
    assert {name: int(n) for name, n in numbers.items()} == {
        "Ctas": timeline.CTAS,
        "Teams": timeline.TEAMS,
        "Tiles": timeline.TILES,
        "Steps": timeline.STEPS,
    }


def test_first_and_last_tiles_stand_apart() -> None:
    assert NAMES == ("turn", "multiply", "drain", "slots", "sweep 0", "publish 0", "wait 0")
    lengths = (1, 100, 2, 3, 50, 4, 20)
    tiles = [tile(10, *[9] * 7), tile(1000, *lengths), tile(1300, *lengths), tile(1700, *[8] * 7)]
    found = timeline.summary(clocks(tiles), 1)
    assert [found[name]["first"] for name in NAMES] == [9] * 7
    assert [found[name]["between"] for name in NAMES] == list(lengths)
    assert [found[name]["last"] for name in NAMES] == [8] * 7
    assert found["whole"] == {"median": 1746, "longest": 1746}
    assert "| multiply" in timeline.table({"workload": "w", "plan": "p", "steps": found})


def test_clocks_wrap_round() -> None:
    lengths = (1, 100, 2, 30, 50, 4, 20)
    found = timeline.durations([tile(2**32 - 120, *lengths)], 1)
    assert [found[name] for name in NAMES] == [[length] for length in lengths]


def test_one_tile_gives_nothing() -> None:
    found = timeline.summary(clocks([tile(5, *[9] * 7)]), 1)
    assert not any(found.values())
    assert "-" in timeline.table({"workload": "w", "plan": "p", "steps": found})
