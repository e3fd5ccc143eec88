"""What the attention bench times is one program, whoever computes it."""

from __future__ import annotations

import dataclasses
import math

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import attention
from bench.launch import raw_launch
from comfuse import timing
from comfuse.library import abi

TIMING = timing.Timing(1.0, 1.0, 1.0)
SMALL = [dataclasses.replace(c, heads=3, length=64, d=16) for c in attention.CASES[:3]]


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_all_compute_the_same(case: attention.Case) -> None:
    inputs = attention.make_inputs(case, device="cpu")
    found = attention.calls(case, inputs)
    for name in ("sdpa", "comfuse"):
        y = found[name]()
        assert attention.error(case, inputs, y) < 6e-3
        assert attention.error(case, inputs, y.roll(1, 1)) > 0.1


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_arguments_of_a_launch(case: attention.Case) -> None:
    q, k, v, *bias = attention.make_inputs(case, device="cpu")
    plan = attention.plans(case)[0]
    kernel = dataclasses.make_dataclass("Kernel", [("launch", int, 1)])()
    kernel.workspace_bytes = lambda m, batches: 0
    _, _, args = raw_launch(kernel, plan.spec, q, [k, v.mT], bias, [q.clone()], [0.25])
    assert (args.m, args.k, args.batches, args.abi_version) == (64, 16, 3, abi.ABI_VERSION)
    assert [(b.data, b.stride, b.batch_stride) for b in args.b[:2]] == [
        (t.data_ptr(), 16, 64 * 16) for t in (k, v)
    ]
    if bias:
        assert (args.operands[0].data, args.operands[0].batch_stride) == (bias[0].data_ptr(), 0)


def test_cases_are_those_of_the_goal() -> None:
    assert attention.CASES[0].name == "192x512x64"
    assert {(c.length, c.d) for c in attention.CASES} == {(512, 64), (8192, 128)}
    assert all(attention.plans(c) for c in attention.CASES)


def test_what_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what is not a number, which is below no bound and above none."""
    case = SMALL[0]
    inputs = attention.make_inputs(case, device="cpu")
    found = {"sdpa": attention.calls(case, inputs)["sdpa"], "nan": lambda: inputs[0] * math.nan}
    monkeypatch.setattr(attention, "make_inputs", lambda case: inputs)
    monkeypatch.setattr(attention, "calls", lambda *_: found)
    monkeypatch.setattr(attention, "plans", lambda case: [])
    monkeypatch.setattr(timing, "capture", lambda call: call)
    monkeypatch.setattr(timing, "time_interleaved", lambda graphs, rounds: dict.fromkeys(graphs, TIMING))
    sdpa, nan = attention.measure(case, rounds=1)
    assert sdpa["us"] == 1.0
    assert "us" not in nan
    assert "error nan against float64" in nan["failure"]


def test_table() -> None:
    records = [
        {"case": "a", "provider": "flash", "us": 10.0, "error": 1e-3},
        {"case": "a", "provider": "comfuse", "us": 15.0, "error": 1e-3},
        {"case": "b", "provider": "comfuse", "failure": "no"},
    ]
    lines = attention.table(records).splitlines()
    assert " 1.50 " in lines[3] or " 1.5 " in lines[3]
    assert lines[4].count(" - ") == 4
