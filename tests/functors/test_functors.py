"""The functors of csrc/include/comfuse/functors.hpp, compiled for the host, against the op table."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from comfuse.generator.ops import ELEMENTWISE

HEADER = Path(__file__).parents[2] / "csrc" / "include" / "comfuse" / "functors.hpp"
INF, NAN = math.inf, math.nan
SMALLEST, LARGEST = 2.0**-126, 3.4e38  # normal float32

# Largest relative error, where it is not a few float32 ulp (one is 2^-24 = 6e-8); see the header.
TOLERANCE = {"gelu": 8e-6, "gelu_tanh": 8e-6, "exp": 1e-5, "silu": 1e-5, "sigmoid": 1e-5, "softplus": 1e-5}
DEFAULT_TOLERANCE = 4e-7
ARITY = {name: op.arity for name, op in ELEMENTWISE.items()}


def test_table_and_header_agree() -> None:
    text = HEADER.read_text()
    functors = re.findall(r"^struct (\w+) \{$", text, re.MULTILINE)
    assert sorted(functors) == sorted(op.functor for op in ELEMENTWISE.values())
    aliases = re.findall(r"template <([^>]*)>\nusing (\w+) = Map<fn::(\w+), ([^>]*)>;", text)
    assert sorted(name for _, name, _, _ in aliases) == sorted(functors)
    for parameters, name, functor, arguments in aliases:
        op = next(op for op in ELEMENTWISE.values() if op.functor == name)
        assert functor == name
        assert [f"class {x}" for x in arguments.split(", ")] == parameters.split(", ")
        assert len(parameters.split(", ")) == op.arity


@pytest.fixture(scope="module")
def functors(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """``functors(op, *arrays)``: a functor applied element by element, in float32."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler for the host")
    lines = [f'#include "{HEADER}"', "namespace fn = comfuse::fn;"]
    for op in ELEMENTWISE.values():
        parameters = ", ".join(f"const float* x{i}" for i in range(op.arity))
        arguments = ", ".join(f"x{i}[n]" for i in range(op.arity))
        lines.append(f'extern "C" void cf_{op.name}(long count, float* y, {parameters}) {{')
        lines.append(f"  for (long n = 0; n < count; ++n) y[n] = fn::{op.functor}::apply({arguments});")
        lines.append("}")
    folder = tmp_path_factory.mktemp("functors")
    source, library = folder / "functors.cpp", folder / "functors.so"
    source.write_text("\n".join(lines))
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))

    def apply(name: str, *arrays: np.ndarray) -> np.ndarray:
        pointer = ctypes.POINTER(ctypes.c_float)
        inputs = [np.ascontiguousarray(a, np.float32) for a in arrays]
        result = np.empty_like(inputs[0])
        function = getattr(loaded, f"cf_{name}")
        function.argtypes = [ctypes.c_long] + [pointer] * (1 + len(inputs))
        function.restype = None
        function(result.size, *(a.ctypes.data_as(pointer) for a in (result, *inputs)))
        return result

    return apply


def values() -> np.ndarray:
    """Ordinary numbers, tiny ones, huge ones."""
    rng = np.random.default_rng(0)
    ordinary = np.concatenate([np.linspace(-12, 12, 1201), rng.normal(0, 3, 400)])
    sizes = 10.0 ** np.linspace(-37, 38, 151)
    return np.concatenate([ordinary, sizes, -sizes]).astype(np.float32)


SPECIAL = np.array(
    [
        NAN,
        INF,
        -INF,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        -3.0,
        88.0,
        -88.0,
        20.0,
        -20.0,
        1e30,
        -1e30,
        SMALLEST,
        LARGEST,
    ],
    np.float32,
)


def expected(name: str, *arrays: np.ndarray) -> np.ndarray:
    op = ELEMENTWISE[name]
    with np.errstate(over="ignore"):
        exact = [op.evaluate(*(float(x) for x in element)) for element in zip(*arrays, strict=True)]
        return np.array(exact, np.float64)


def check(name: str, got: np.ndarray, exact: np.ndarray, *inputs: np.ndarray) -> None:
    tolerance = TOLERANCE.get(name, DEFAULT_TOLERANCE)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
        # Results below the normal range may be flushed to zero; gelu's tail has an absolute bound.
        floor = 1e-9 if name in ("gelu", "gelu_tanh") else SMALLEST
        fine = np.abs(got.astype(np.float64) - exact) <= tolerance * np.abs(exact) + floor
    fine |= (rounded == got) | (np.isnan(rounded) & np.isnan(got))
    # Next to the largest float32 either side of infinity is right.
    fine |= np.isinf(got) & (np.abs(exact) > LARGEST) & (np.sign(got) == np.sign(exact))
    bad = np.flatnonzero(~fine)
    shown = [(*(float(x[i]) for x in inputs), float(got[i]), float(exact[i])) for i in bad[:5]]
    assert bad.size == 0, f"{name}: {bad.size} wrong; inputs, got, expected: {shown}"


@pytest.mark.parametrize("name", [name for name, arity in ARITY.items() if arity == 1])
def test_unary(name: str, functors: Callable[..., np.ndarray]) -> None:
    for x in (values(), SPECIAL):
        if name in ("sin", "cos"):  # libm's own business beyond
            x = x[~(np.abs(x) > 1e5) | np.isinf(x)]
        check(name, functors(name, x), expected(name, x), x)


@pytest.mark.parametrize("name", [name for name, arity in ARITY.items() if arity == 2])
def test_binary(name: str, functors: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    ordinary = values()
    for a, b in (
        (ordinary, rng.permutation(ordinary)),
        tuple(g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL)),
    ):
        check(name, functors(name, a, b), expected(name, a, b), a, b)


@pytest.mark.parametrize("name", [name for name, arity in ARITY.items() if arity == 3])
def test_ternary(name: str, functors: Callable[..., np.ndarray]) -> None:
    a, b, c = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL, SPECIAL))
    check(name, functors(name, a, b, c), expected(name, a, b, c), a, b, c)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_propagates_from_either_side(name: str, functors: Callable[..., np.ndarray]) -> None:
    nan, one = np.array([NAN], np.float32), np.array([1.0], np.float32)
    assert np.isnan(functors(name, nan, one)).all()
    assert np.isnan(functors(name, one, nan)).all()


NOT_A_NUMBER_OUT = [
    name for name, arity in ARITY.items() if arity == 1 and name not in ("sign", "logical_not")
]


@pytest.mark.parametrize("name", NOT_A_NUMBER_OUT)
def test_nan_propagates(name: str, functors: Callable[..., np.ndarray]) -> None:
    assert np.isnan(functors(name, np.array([NAN], np.float32))).all()


def test_gelu_has_no_cancellation_where_erf_has(functors: Callable[..., np.ndarray]) -> None:
    x = np.linspace(-5, -1, 4001).astype(np.float32)
    error = np.abs(functors("gelu", x) / expected("gelu", x) - 1)
    assert error.max() < TOLERANCE["gelu"]
