"""Emitted kernels: golden text, and a model of the device headers that runs them."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.emit import describe, emit
from comfuse.generator.emit.names import Namer, sanitise
from comfuse.generator.errors import PlanError
from comfuse.generator.interpret import interpret
from comfuse.generator.ops import AXES
from comfuse.generator.passes import normalize
from comfuse.generator.plan import SCHEDULES, KernelPlan, candidates, plan
from comfuse.generator.spec import DType, FusedSpec, Major, Space
from comfuse.generator.stages import stages

from . import cpp_model
from .chain_programs import CHAINS
from .programs import GOLDEN, ROWS, golden_plan
from .strategies import TAME, arguments, flat, specs

FOLDER = Path(__file__).parents[1] / "golden"
UPDATE = os.environ.get("COMFUSE_UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    """Refresh with COMFUSE_UPDATE_GOLDEN=1 and read the difference."""
    path = FOLDER / f"{name}.cu"
    text = emit(golden_plan(name)).text
    if UPDATE:
        path.write_text(text)
    assert path.exists(), "no golden file: run once with COMFUSE_UPDATE_GOLDEN=1"
    assert text == path.read_text(), "emitted text changed: if meant, run with COMFUSE_UPDATE_GOLDEN=1"


def test_no_stale_golden_files() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.cu")) == sorted({**GOLDEN, **CHAINS})


@pytest.mark.parametrize("name", GOLDEN)
def test_layout_is_that_of_clang_format(name: str) -> None:
    tool = shutil.which("clang-format") or shutil.which("clang-format", path=Path(sys.executable).parent)
    if tool is None:
        pytest.skip("clang-format is not installed")
    text = emit(golden_plan(name)).text
    style = "--style={BasedOnStyle: Google, ColumnLimit: 110}"
    formatted = subprocess.run([tool, style], input=text, capture_output=True, text=True, check=True)
    assert formatted.stdout == text


def split_operands(spec: FusedSpec, operands: list) -> tuple[list, list[float]]:
    """Tensors and scalars, each in order."""
    pairs = list(zip(spec.operands, operands, strict=True))
    tensors = [v for o, v in pairs if o.space is not Space.SCALAR]
    return tensors, [v for o, v in pairs if o.space is Space.SCALAR]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_emitted_kernel_computes_the_spec(data: st.DataObject) -> None:
    """Narrow programs, to be quick, of whole runs of eight columns and not; with groups, of two groups."""
    no_groups = ("row", "col", "full")
    n, group, axes = data.draw(st.sampled_from([(8, 8, no_groups), (6, 6, no_groups), (64, 32, tuple(AXES))]))
    spec = data.draw(specs(TAME, n=n, axes=axes, group=group, feedback=data.draw(st.booleans())))
    gemm, operands = data.draw(arguments(spec))
    try:
        source = emit(plan(spec, m=3))
    except PlanError:
        with suppress(PlanError):  # what no stages can run either
            assume(len(stages(spec)) > 1)
        return
    products = [gemm] if spec.products == 1 else gemm
    outputs = cpp_model.run(cpp_model.parse(source.text), spec.n, products, *split_operands(spec, operands))
    assert sorted(outputs) == list(range(len(spec.outputs)))
    for index, expected in enumerate(interpret(normalize(spec), gemm, operands)):
        want, got = flat(expected), flat(outputs[index])
        scale = max((abs(v) for v in want if math.isfinite(v)), default=1.0)
        for a, b in zip(got, want, strict=True):
            assert a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-4 * max(scale, 1.0)


@settings(max_examples=200, deadline=None)
@given(specs(max_nodes=30, n=64, group=32), st.data())
def test_text_is_well_formed_whatever_the_names(spec: FusedSpec, data: st.DataObject) -> None:
    odd = st.sampled_from(
        [
            "x",
            "int",
            "Phase0",
            "Groups1",
            "RowTail",
            "Kernel",
            "a b",
            "a_b",
            "A_B",
            "__x",
            "9",
            "é",
            "cf",
            "linux",
            "x",
        ]
    )
    nodes = tuple(dataclasses.replace(node, name=data.draw(odd)) for node in spec.nodes)
    operands = tuple(
        dataclasses.replace(o, name=f"{data.draw(odd)}_{i}") for i, o in enumerate(spec.operands)
    )
    spec = dataclasses.replace(spec, nodes=nodes, operands=operands)
    source = emit(plan(spec))
    assert source == emit(plan(dataclasses.replace(spec)))  # deterministic
    cpp_model.parse(source.text)  # every alias once, and before its use
    assert max(len(line) for line in source.text.splitlines()) <= 110
    assert source.text.isascii() or "é" in source.text
    assert not re.search(r"[ \t]$|\n\n\n", source.text, re.MULTILINE)


@pytest.mark.parametrize("name", GOLDEN)
def test_constants_of_the_kernel_are_those_of_the_plan(name: str) -> None:
    for chosen in candidates(GOLDEN[name], m=ROWS.get(name)):
        if not isinstance(chosen, KernelPlan):
            continue
        source = emit(chosen)
        numbers = cpp_model.parse(source.text).constants
        schedule = SCHEDULES[chosen.schedule]
        teams = [2] if chosen.schedule == "pingpong2" else []
        assert numbers[schedule.template] == [chosen.tile_m, chosen.tile_n, chosen.tile_k, *teams]
        assert numbers["Cluster"] == [1, chosen.cluster_n]
        assert numbers["Stages"] == [chosen.stages]
        assert numbers["TileSlots"] == [chosen.tile_slots]
        gemm = "Gemm" if chosen.spec.second is None else "TwoGemms"
        assert numbers[gemm] in ([chosen.spec.n], [chosen.spec.n, chosen.spec.products])
        assert source.text.startswith(f"// {source.name}\n")
        assert f"COMFUSE_EXPORT({source.name}, program::Kernel)\n" in source.text
        tile = f"{chosen.tile_m}x{chosen.tile_n}x{chosen.tile_k}_c1x{chosen.cluster_n}_{chosen.schedule}"
        assert re.fullmatch(rf"cf_sm90_gemm_[a-z0-9_]+_{tile}_[0-9a-f]{{8}}", source.name)


def test_names_tell_kernels_apart() -> None:
    found = [c for name, spec in GOLDEN.items() for c in candidates(spec, m=ROWS.get(name))]
    names = [emit(c).name for c in found if isinstance(c, KernelPlan)]
    assert len(set(names)) == len(names)


def test_what_the_shape_hint_changes_is_not_in_the_text() -> None:
    spec = GOLDEN["layernorm"]
    texts = {c.shape: emit(c).text for c in candidates(spec) if isinstance(c, KernelPlan)}
    for c in candidates(spec, "h100", 77):
        if isinstance(c, KernelPlan):
            assert emit(c).text == texts[c.shape]


def test_unused_operands_keep_their_place() -> None:
    b = SpecBuilder(64, 64, DType.BF16)
    b.load("unused", Space.ROW, DType.BF16)
    b.output("y", b.op("add", b.gemm(), b.load("bias", Space.ROW, DType.BF16)), DType.BF16)
    text = emit(plan(b.spec())).text
    assert "using bias = cf::RowVector<1, cf::bf16>;" in text
    assert "cf::Operands<unused, bias>" in text


def test_constants_beyond_float32_become_infinite() -> None:
    b = SpecBuilder(64, 64, DType.BF16)
    b.output("y", b.op("maximum", b.gemm(), b.const(-1e300, "low")), DType.BF16)
    assert "using low = cf::Imm<0xff800000>;  // -1e+300" in emit(plan(b.spec())).text


@pytest.mark.parametrize(
    "wanted, name",
    [
        ("x", "x"),
        ("int", "int_value"),
        ("layer.0/out", "layer_0_out"),
        ("__init__", "init"),
        ("2d", "v2d"),
        ("M_PI", "m_pi"),
        ("Phase12", "Phase12_value"),
        ("", "value"),
        ("X", "X"),
    ],
)
def test_sanitise(wanted: str, name: str) -> None:
    assert sanitise(wanted) == name


def test_namer_numbers_collisions() -> None:
    namer = Namer()
    assert [namer.unique(n) for n in ("x", "x", "x_2", "x")] == ["x", "x_2", "x_2_2", "x_3"]


def test_description_reads_like_mathematics() -> None:
    assert describe(normalize(GOLDEN["layernorm"])) == [
        "x = a @ b.T + bias + residual",
        "rstd = rsqrt(var(x) + eps)",
        "y = (x * rstd - mean(x) * rstd) * ln_weight + ln_bias",
    ]


def test_description_parenthesises_by_precedence() -> None:
    b = SpecBuilder(64, 64, DType.BF16)
    x, r = b.gemm(), b.load("r", Space.TILE, DType.BF16)
    y = b.op("sub", b.op("mul", b.op("add", x, r), r), b.op("sub", x, b.op("div", r, b.op("mul", x, r))))
    b.output("y", y, DType.BF16)
    assert describe(b.spec()) == ["y = (a @ b.T + r) * r - (a @ b.T - r / (a @ b.T * r))"]


def test_what_describes_other_shapes_of_programs() -> None:
    def lines(name: str) -> list[str]:
        return describe(normalize(GOLDEN[name]))

    assert lines("gated_swiglu") == ["y = silu(a @ b0.T) * (a @ b1.T)"]
    assert lines("attention_scores")[0] == "x = where(row >= column, a @ b.mT * scale, -inf)"
    assert lines("gelu_backward") == ["dx = gelu_backward(a @ b.T, x)", "dbias = col_sum(dx)"]
    assert lines("relu_sum") == ["total = full_sum(relu(a @ b.T))"]
    assert lines("head_rmsnorm")[0] == "rrms = rsqrt(group_sumsq(a @ b.T) * 0.0078125 + eps)"
    assert lines("qk_heads") == ["q = a @ b.T + bias", "q in heads of 128 columns"]
    assert lines("cross_entropy")[-1] == "lse = logsumexp(a @ b.T)"


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({}, "cf::Gemm<cf::bf16, /*N=*/64>"),
        ({"products": 2}, "cf::Gemm<cf::bf16, /*N=*/64, /*Products=*/2>"),
        ({"a_major": Major.MN}, "cf::Gemm<cf::bf16, /*N=*/64, 1, cf::MNMajor>"),
        ({"b_major": Major.MN}, "cf::Gemm<cf::bf16, /*N=*/64, 1, cf::KMajor, cf::MNMajor>"),
        ({"batched": True}, "cf::Gemm<cf::bf16, /*N=*/64, 1, cf::KMajor, cf::KMajor, /*Batched=*/true>"),
    ],
)
def test_trailing_defaults_of_the_gemm_are_left_out(arguments: dict[str, Any], text: str) -> None:
    b = SpecBuilder(64, 64, DType.BF16, **arguments)
    products = [b.gemm(i) for i in range(b.products)]
    b.output("y", b.op("add", products[0], products[-1]), DType.BF16)
    assert f"{text}," in emit(plan(b.spec())).text


@pytest.mark.parametrize("dtype", DType)
def test_every_element_type_has_a_name(dtype: DType) -> None:
    b = SpecBuilder(64, 64, DType.BF16)
    b.output("y", b.op("add", b.gemm(), b.load("x", Space.TILE, dtype)), dtype)
    text = emit(plan(b.spec())).text
    name = "boolean" if dtype is DType.BOOL else dtype.value
    assert f"using x = cf::Tile<0, cf::{name}>;" in text
    assert f"cf::TileStore<0, cf::{name}, y>" in text


def test_values_a_column_that_a_tail_shares_are_written_once() -> None:
    """However often they are read: the text cannot grow exponentially."""
    b = SpecBuilder(64, 64, DType.BF16)
    x = b.op("col_sum", b.gemm(), name="sums")
    for i in range(30):
        x = b.op("mul", x, x if i else b.load("weight", Space.ROW), name=f"x{i}")
        x = b.op("add", x, b.op("exp", x), name=f"y{i}")
    b.output("out", x, DType.FP32)
    text = emit(plan(b.spec())).text
    assert len(text) < 10_000
    cpp_model.parse(text)
