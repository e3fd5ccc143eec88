"""Times of several callables in one process: CUDA graphs, interleaved, medians.

A card's clocks drift by 5 to 20 % from one process to the next, so only ratios of times taken side by
side mean anything: every round replays the graph of each candidate once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median

import torch

from comfuse.rounds import order

LAUNCHES_PER_GRAPH = 10
WARM_UP_ROUNDS = 3
# Shorter rests let the clocks sink within a round, longer ones only cost time.
REST_SECONDS = 0.003


@dataclass(frozen=True)
class Timing:
    """Microseconds a launch: the median over rounds, the 10th and the 90th percentile."""

    us: float
    low: float
    high: float

    @staticmethod
    def of(samples: list[float]) -> Timing:
        ordered = sorted(samples)
        last = len(ordered) - 1
        return Timing(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])


@dataclass(frozen=True)
class Captured:
    """A CUDA graph and the callable that it was made of.

    Replays read and write the memory that the callable used, and a graph does not hold memory: whatever
    the callable alone keeps alive, an output buffer or a compiled function, has to live as long.
    """

    graph: torch.cuda.CUDAGraph
    call: Callable[[], object]

    def replay(self) -> None:
        self.graph.replay()


def capture(call: Callable[[], object], launches: int = LAUNCHES_PER_GRAPH) -> Captured:
    """A graph of that many calls in a row."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                call()
    torch.cuda.synchronize()
    return Captured(graph, call)


def sample(
    captured: Captured,
    launches: int = LAUNCHES_PER_GRAPH,
    around: AbstractContextManager[object] | None = None,
) -> float:
    """Replays a graph once, after a rest: microseconds of each of its launches.

    ``around`` is entered around the replay, outside of what is timed.
    """
    time.sleep(REST_SECONDS)
    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    with nullcontext() if around is None else around:
        begin.record()
        captured.replay()
        end.record()
    end.synchronize()
    return begin.elapsed_time(end) / launches * 1000


def time_interleaved(
    graphs: Mapping[str, Captured],
    rounds: int,
    launches: int = LAUNCHES_PER_GRAPH,
    around: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> dict[str, Timing]:
    """Replay the graphs in turn, each round in another order (:func:`comfuse.rounds.order`).

    ``around`` gets the name of each graph and is entered around each replay, outside of what is timed.
    """
    names = list(graphs)
    if not names:
        return {}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(WARM_UP_ROUNDS + rounds):
        for name in order(names, round_number):
            us = sample(graphs[name], launches, around(name))
            if round_number >= WARM_UP_ROUNDS:
                samples[name].append(us)
    return {name: Timing.of(s) for name, s in samples.items()}
