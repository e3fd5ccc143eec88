"""What the training bench times is one step, whoever computes it."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")

import torch

from bench import training
from bench.launch import raw_launch
from comfuse import timing
from comfuse.ops.autograd import ways

TIMING = timing.Timing(1.0, 1.0, 1.0)
SMALL = [dataclasses.replace(c, m=200, k=64, h=96, n=32) for c in (training.CASES[0], training.CASES[3])]
every_case = pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)


@every_case
def test_all_compute_the_same(case: training.Case) -> None:
    inputs = training.make_inputs(case, device="cpu")
    found, wanted = training.steps(case, inputs), training.exact(case, inputs, backward=False)
    of_eager = training.errors(found["eager"](), wanted)
    for name in ("eager", *training.OURS):
        results = found[name]()
        assert len(results) == 6
        for error, eager in zip(training.errors(results, wanted), of_eager, strict=True):
            assert error <= max(2 * eager, 2.0**-9), name
        wrong = (results[0].roll(1, 0), *results[1:])
        assert training.errors(wrong, wanted)[0] > 0.1
    assert "COMFUSE_RECOMPUTE" not in os.environ


@every_case
def test_the_middle_is_kept_in_one_way_only(case: training.Case) -> None:
    inputs = training.make_inputs(case, device="cpu")
    calls = training.steps(case, inputs)
    kept = {name: training.kept_bytes(calls[name], inputs) for name in ("eager", "kept", "anew")}
    assert kept["anew"] == 0
    assert kept["kept"] >= 2 * 2 * case.m * case.h


@every_case
def test_what_comes_before_the_gemms(case: training.Case) -> None:
    inputs = training.make_inputs(case, device="cpu")
    wanted = training.exact(case, inputs, backward=True)
    assert [tuple(t.shape) for t in wanted] == [(case.m, case.h), (case.m, case.h), (case.h,)]
    gradients = training.exact(case, inputs, backward=False)
    assert torch.allclose(wanted[2], gradients[3])
    assert torch.allclose(wanted[0] @ inputs.leaves[1].detach().double(), gradients[1])


@every_case
def test_arguments_of_a_launch(case: training.Case) -> None:
    inputs = training.make_inputs(case, device="cpu")
    x, w0, b0, w1, _ = (t.detach() for t in inputs.leaves)
    plan = training.plans(case)[0]
    kernel = dataclasses.make_dataclass("Kernel", [("launch", int, 1)])()
    kernel.workspace_bytes = lambda m, batches: 0
    outputs = (x.new_empty(case.m, case.h), x.new_empty(case.m, case.h), x.new_empty(case.h))
    _, _, args = raw_launch(kernel, plan.spec, x, [w0, inputs.dy, w1.t()], [b0], outputs)
    assert (args.m, args.k, args.k1) == (case.m, case.k, case.n)
    assert (args.a.data, args.a1.data) == (x.data_ptr(), inputs.dy.data_ptr())
    assert [(b.data, b.stride) for b in args.b[:2]] == [(w0.data_ptr(), case.k), (w1.data_ptr(), case.h)]


def test_cases_are_those_of_the_goal() -> None:
    assert [c.name for c in training.CASES[:2]] == ["327680x128x512x128-gelu", "65536x256x1024x256-gelu"]
    assert all(training.plans(c) for c in training.CASES)
    assert training.CASES[0].predicted.way == ways.ANEW_CHAIN


@pytest.mark.parametrize("backward", [False, True])
def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch, backward: bool) -> None:
    """Nor what is not a number, which is below no bound and above none."""
    case = SMALL[0]
    inputs = training.make_inputs(case, device="cpu")
    eager = training.step(training.program(case), inputs)
    if backward:
        x, w0, b0, w1, _ = (t.detach() for t in inputs.leaves)
        run = training.before_the_gemms(case)
        eager = lambda: run(x, w0, b0, w1, inputs.dy)  # noqa: E731
    found = {"eager": eager, "nan": lambda: tuple(t * math.nan for t in eager())}
    monkeypatch.setattr(training, "make_inputs", lambda case: inputs)
    monkeypatch.setattr(training, "backwards" if backward else "steps", lambda *_: found)
    monkeypatch.setattr(timing, "capture", lambda call: call)
    monkeypatch.setattr(timing, "time_interleaved", lambda graphs, rounds: dict.fromkeys(graphs, TIMING))
    first, nan = training.measure(case, rounds=1, backward=backward)
    assert first["us"] == 1.0
    assert "us" not in nan
    assert "nan" in nan["failure"]


def test_table() -> None:
    records = [
        {"case": "a", "provider": "inductor", "us": 30.0, "error": 1e-3, "kept_mb": 2.0},
        {"case": "a", "provider": "anew", "us": 15.0, "error": 1e-3},
        {"case": "b", "provider": "anew", "failure": "no"},
    ]
    lines = training.table(records).splitlines()
    assert " 2 " in lines[3] or " 2.00 " in lines[3]
    assert lines[4].count(" - ") == 4
