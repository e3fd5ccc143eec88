"""Column reductions that tiles of the same kernel read: BatchNorm in training, for rows that run at once."""

from __future__ import annotations

import pytest
import torch

from comfuse.errors import LaunchError
from tests.gpu.compare import check, check_exact, same_bits
from tests.gpu.feedback import ALL_WAYS, BATCH_NORM, COLUMN_SOFTMAX
from tests.gpu.support import Case, caller, launcher, make_tensors, run, run_kernel

pytestmark = pytest.mark.gpu

MS = (1, 127, 128, 2048)
SCHEDULES = ("cooperative-128x64", "cooperative-128x128", "cooperative-128x256")
# 200: a last tile that is clipped; 600: in clusters of two a phantom beside one.
CASES = tuple(
    Case(p, n, schedule=s, cluster_n=c, m=1)
    for p in (BATCH_NORM, COLUMN_SOFTMAX, ALL_WAYS)
    for n in (200, 600)
    for s in SCHEDULES
    for c in (1, 2)
)
PLANNED = tuple(Case(p, 512, m=2048) for p in (BATCH_NORM, COLUMN_SOFTMAX, ALL_WAYS))


def most_rows(case: Case) -> int:
    most = case.plan().max_m
    assert most is not None
    return most


def all_ms(case: Case) -> list[int]:
    most = most_rows(case)
    return [*(m for m in MS if m < most), most - 1, most]


@pytest.mark.parametrize("case", [*CASES, *PLANNED], ids=str)
def test_against_float64(case: Case, kernels) -> None:
    kernels(case)  # skips what does not fit
    for m in all_ms(case):
        t = make_tensors(case, m, 72, row_offset=2.0)
        check(t, run_kernel(kernels, t), f"M = {m}")


@pytest.mark.parametrize("case", [c for c in (*CASES, *PLANNED) if c.program is ALL_WAYS], ids=str)
def test_whole_numbers_are_exact(case: Case, kernels) -> None:
    kernels(case)
    for m in all_ms(case):
        t = make_tensors(case, m, 72, integers=True)
        t.a[..., 2:] = 0
        check_exact(t, run_kernel(kernels, t), f"M = {m}")


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_more_rows_than_run_at_once_are_refused(case: Case, kernels) -> None:
    t = make_tensors(case, most_rows(case) + 1, 72)
    with pytest.raises(LaunchError, match="cannot hold all tiles at once"):
        launcher(kernels(case), t, t.outputs())()


@pytest.mark.parametrize("case", [Case(BATCH_NORM, 200, schedule=s, m=1) for s in SCHEDULES], ids=str)
def test_nan_spoils_its_column_alone(case: Case, kernels) -> None:
    t = make_tensors(case, 1000, 72)
    before = run_kernel(kernels, t)
    t.operands[0][700, 131] = float("nan")
    after = run_kernel(kernels, t)
    others = torch.arange(200, device=t.a.device) != 131
    for x, y in zip(before, after, strict=True):
        assert bool(torch.isnan(y[..., 131]).all())
        assert same_bits(x[..., others], y[..., others])


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_twenty_launches_give_the_same_bits(case: Case, kernels) -> None:
    """Also under graph replay: the words' tag alternates, so odd and even launches take turns."""
    t = make_tensors(case, most_rows(case) - 3, 72)
    out = t.outputs()
    launch = launcher(kernels(case), t, out)
    launch()
    torch.cuda.synchronize()
    first = [x.clone() for x in out.tensors]

    def check_again(what: str) -> None:
        torch.cuda.synchronize()
        out.check_guards()
        for x, wanted in zip(out.tensors, first, strict=True):
            assert same_bits(x, wanted), what

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
        out.poison()
        launch()
        check_again(f"the launch after replay {i + 1}")


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_back_to_back_on_one_workspace(case: Case, kernels) -> None:
    """Other inputs at each launch, so that a word of the launch before would show."""
    ms = (1000, 1024, 897, 1000)  # as many row blocks each: the op has one workspace for them
    inputs = [make_tensors(case, m, 72, seed=i) for i, m in enumerate(ms)]
    outs = [t.outputs() for t in inputs]
    calls = [caller(kernels, t, out) for t, out in zip(inputs, outs, strict=True)]
    for _ in range(10):
        for call in calls:
            call()
    torch.cuda.synchronize()
    for t, out in zip(inputs, outs, strict=True):
        out.check_guards()
        check(t, out.tiles)


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_m_changes_on_one_kernel(case: Case, kernels) -> None:
    ms = (1000, 1024, 897, 130, 256, 1, 2048)
    inputs = {m: make_tensors(case, m, 72) for m in ms}
    outs = {m: t.outputs() for m, t in inputs.items()}
    calls = {m: caller(kernels, t, outs[m]) for m, t in inputs.items()}
    for m in (*ms, 1024, 1000, 897, 1000, 1, 130, 256, 2048, 1024):
        outs[m].poison()
        calls[m]()
        torch.cuda.synchronize()
        outs[m].check_guards()
        check(inputs[m], outs[m].tiles, f"M = {m}")


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_two_streams_at_once(case: Case, kernels) -> None:
    """Two launches that each need most of the GPU: one has to wait, neither may hold a part of it."""
    kernel = kernels(case)
    inputs = [make_tensors(case, most_rows(case), 72, seed=i) for i in range(2)]
    alone = [run(kernel, t) for t in inputs]
    outs = [t.outputs() for t in inputs]
    launches = [launcher(kernel, t, out) for t, out in zip(inputs, outs, strict=True)]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        for launch, stream in zip(launches, streams, strict=True):
            with torch.cuda.stream(stream):
                launch()
    torch.cuda.synchronize()
    for out, wanted in zip(outs, alone, strict=True):
        for x, y in zip(out.tiles, wanted, strict=True):
            assert same_bits(x, y)
