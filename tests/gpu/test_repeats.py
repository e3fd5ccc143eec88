"""Many launches of one kernel: the same bits every time, whatever else happens in between."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import reductions
from tests.gpu.compare import check, same_bits
from tests.gpu.programs import LAYERNORM, SOFTMAX, gemma_chain
from tests.gpu.reductions import ALL_AXES, COLUMN_FIELDS, FULL_FIELDS, WIDE_SCHEDULES
from tests.gpu.support import SCHEDULES, Case, launcher, make_tensors, run

pytestmark = pytest.mark.gpu

ROWS = tuple(
    Case(p, n, schedule=s)
    for p, n in ((LAYERNORM, 768), (LAYERNORM, 5376), (SOFTMAX, 1000), (gemma_chain(1152), 1152))
    for s in SCHEDULES
)
# Column and full reductions: partial results merged by whichever tile comes last.
MERGED = (
    *(Case(p, 200, schedule=s) for p in (ALL_AXES, COLUMN_FIELDS) for s in WIDE_SCHEDULES),
    *(Case(FULL_FIELDS, 200, schedule=s) for s in reductions.SCHEDULES),
)
CASES = (*ROWS, *MERGED)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_twenty_launches_give_the_same_bits(case: Case, kernels) -> None:
    """Also under graph replay.  The exchange's tag alternates, so odd and even launches take turns."""
    t = make_tensors(case, 16344, 72)
    out = t.outputs()
    launch = launcher(kernels(case), t, out)
    launch()
    torch.cuda.synchronize()
    out.check_guards()
    first = [o.clone() for o in out.tensors]

    def check_again(what: str) -> None:
        torch.cuda.synchronize()
        for o, f in zip(out.tensors, first, strict=True):
            assert same_bits(o, f), f"{what} differs in {int((o != f).sum())} elements"

    for i in range(20):
        out.poison()
        launch()
        check_again(f"launch {i + 2}")

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for i in range(5):
        out.poison()
        graph.replay()
        check_again(f"replay {i + 1}")
        launch()  # eager between replays, on the same workspace
        check_again(f"the launch after replay {i + 1}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_back_to_back_without_waiting(case: Case, kernels) -> None:
    """Launches that follow each other on the device, each with inputs and outputs of its own."""
    kernel = kernels(case)
    tensors = [make_tensors(case, m, 72, seed=i) for i, m in enumerate((1000, 129, 1000, 1000))]
    outs = [t.outputs() for t in tensors]
    launches = [launcher(kernel, t, out) for t, out in zip(tensors, outs, strict=True)]
    for _ in range(10):
        for launch in launches:
            launch()
    torch.cuda.synchronize()
    for t, out in zip(tensors, outs, strict=True):
        out.check_guards()
        check(t, out.tiles)


@pytest.mark.parametrize("case", [*ROWS[:5], *MERGED[::2]], ids=str)
def test_two_streams_at_once(case: Case, kernels) -> None:
    """Two launches with workspaces of their own, fighting for the same SMs."""
    kernel = kernels(case)
    tensors = [make_tensors(case, 4096, 72, seed=i) for i in range(2)]
    alone = [run(kernel, t) for t in tensors]
    outs = [t.outputs() for t in tensors]
    launches = [launcher(kernel, t, out) for t, out in zip(tensors, outs, strict=True)]
    streams = [torch.cuda.Stream() for _ in tensors]
    torch.cuda.synchronize()
    for _ in range(20):
        for launch, stream in zip(launches, streams, strict=True):
            with torch.cuda.stream(stream):
                launch()
    torch.cuda.synchronize()
    for out, expected in zip(outs, alone, strict=True):
        for o, e in zip(out.tensors, expected, strict=True):
            assert same_bits(o, e)
