"""The functors of csrc/include/comfuse/functors, compiled for the host, against the op table."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from comfuse.generator.ops import ELEMENTWISE, FAST
from comfuse.generator.ops.elementwise import PROPAGATES
from tests.functors.host import INCLUDE, compile_for_host
from tests.tanh_approx import largest_error

INF, NAN = math.inf, math.nan
SMALLEST, LARGEST = 2.0**-126, 3.4e38  # normal float32

# Largest error, where it is not a few float32 ulp (one is 2^-24 = 6e-8); see the headers.
RELATIVE = {
    **dict.fromkeys(("gelu", "gelu_tanh", "normal_cdf"), 8e-6),
    **dict.fromkeys(("exp", "silu", "sigmoid", "softplus", "quick_gelu", "softplus_backward", "mish"), 1e-5),
}
DEFAULT_RELATIVE = 4e-7
# As a part of the gradient, where the derivative's terms cancel.
OF_GRADIENT = {
    "gelu_backward": 3e-6,
    "gelu_tanh_backward": 1e-5,
    "silu_backward": 1e-6,
    "mish_backward": 1e-5,
    "hardswish_backward": 1e-7,
    "tanh_backward": 1.2e-7,
    "gelu_backward_of_double": 1.3e-4,
    "gelu_tanh_backward_of_double": 2e-5,
    "silu_backward_of_double": 2e-5,
    "gelu_backward_of_cdf": 9e-5,
}
# As a part of the argument, where 1 + tanh cancels; with the host's tanh.
OF_ARGUMENT = dict.fromkeys(("silu_of_double", "quick_gelu_of_double", "gelu_tanh_of_double"), 2.0**-22)
ABSOLUTE = {
    **dict.fromkeys(("gelu", "gelu_tanh", "normal_cdf"), 1e-9),
    "sigmoid_of_double": 2.0**-23,
    "half_gelu_of_quadruple": 1.3e-5,
}
ARITY = {name: op.arity for name, op in ELEMENTWISE.items()}


def test_table_and_headers_agree() -> None:
    text = "\n".join(
        header.read_text() for header in sorted((INCLUDE / "comfuse" / "functors").glob("*.hpp"))
    )
    functors = re.findall(r"^struct (\w+) \{$", text, re.MULTILINE)
    assert sorted(functors) == sorted(op.functor for op in ELEMENTWISE.values())
    nodes = re.findall(
        r"^CF_(UNARY|BINARY|TERNARY)\((\w+)\)$", (INCLUDE / "comfuse" / "functors.hpp").read_text(), re.M
    )
    arity = {"UNARY": 1, "BINARY": 2, "TERNARY": 3}
    assert sorted((name, arity[kind]) for kind, name in nodes) == sorted(
        (op.functor, op.arity) for op in ELEMENTWISE.values()
    )


@pytest.fixture(scope="module")
def functors(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """``functors(op, *arrays)``: a functor applied element by element, in float32."""
    lines = ['#include "comfuse/functors.hpp"', "namespace fn = comfuse::fn;"]
    for op in ELEMENTWISE.values():
        parameters = ", ".join(f"const float* x{i}" for i in range(op.arity))
        arguments = ", ".join(f"x{i}[n]" for i in range(op.arity))
        lines.append(f'extern "C" void cf_{op.name}(long count, float* y, {parameters}) {{')
        lines.append(f"  for (long n = 0; n < count; ++n) y[n] = fn::{op.functor}::apply({arguments});")
        lines.append("}")
    loaded = compile_for_host(tmp_path_factory.mktemp("functors"), "\n".join(lines))

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
    relative = RELATIVE.get(name, DEFAULT_RELATIVE)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
        # Results below the normal range may be flushed to zero.
        allowed = relative * np.abs(exact) + ABSOLUTE.get(name, SMALLEST)
        if name in OF_ARGUMENT:
            allowed += OF_ARGUMENT[name] * np.minimum(np.abs(inputs[0]), 20.0)  # beyond nothing is left
        if name in OF_GRADIENT:
            allowed = np.maximum(allowed, OF_GRADIENT[name] * np.abs(inputs[0].astype(np.float64)))
        fine = np.abs(got.astype(np.float64) - exact) <= allowed
    fine |= (rounded == got) | (np.isnan(rounded) & np.isnan(got))
    # Next to the largest float32 either side of infinity is right.
    fine |= np.isinf(got) & (np.abs(exact) > LARGEST) & (np.sign(got) == np.sign(exact))
    if name in OF_GRADIENT:
        # inf times a derivative that float32 takes for zero; tanh.approx does from 1e-6 on.
        derivative = expected(name, np.ones_like(inputs[0]), *inputs[1:])
        zero = 1e-6 if name in FAST else SMALLEST
        fine |= np.isnan(got) & np.isinf(inputs[0]) & (np.abs(derivative) < zero)
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
        if name in ("sigmoid_backward", "tanh_backward"):  # b is an output, at most 1: its square is finite
            usual = ~(np.abs(b) > 1e15) | np.isinf(b)
            a, b = a[usual], b[usual]
        check(name, functors(name, a, b), expected(name, a, b), a, b)


def test_where(functors: Callable[..., np.ndarray]) -> None:
    a, b, c = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL, SPECIAL))
    check("where", functors("where", a, b, c), expected("where", a, b, c), a, b, c)


def test_gelu_backward_of_what_gelu_computes(functors: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(2)
    for grad, x in (
        (np.ones(240_001, np.float32), np.linspace(-12, 12, 240_001).astype(np.float32)),
        (rng.permutation(values()), values()),
        tuple(g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL)),
    ):
        got = functors("gelu_backward_of_cdf", grad, x, functors("normal_cdf", x))
        exact = expected("gelu_backward", grad, x)
        check("gelu_backward_of_cdf", got, exact, grad, x, expected("normal_cdf", x))


NOT_A_NUMBER_OUT = [name for name, op in ELEMENTWISE.items() if op.nan == PROPAGATES and op.arity == 1]
# The slope of leaky_relu matters only where x <= 0.
BINARY_NOT_A_NUMBER_OUT = [
    name
    for name, op in ELEMENTWISE.items()
    if op.nan == PROPAGATES and op.arity == 2 and name != "leaky_relu"
]


@pytest.mark.parametrize("name", BINARY_NOT_A_NUMBER_OUT)
def test_nan_propagates_from_either_side(name: str, functors: Callable[..., np.ndarray]) -> None:
    nan, one = np.array([NAN], np.float32), np.array([1.0], np.float32)
    assert np.isnan(functors(name, nan, one)).all()
    assert np.isnan(functors(name, one, nan)).all()


@pytest.mark.parametrize("name", NOT_A_NUMBER_OUT)
def test_nan_propagates(name: str, functors: Callable[..., np.ndarray]) -> None:
    assert np.isnan(functors(name, np.array([NAN], np.float32))).all()


def test_gelu_has_no_cancellation_where_erf_has(functors: Callable[..., np.ndarray]) -> None:
    x = np.linspace(-5, -1, 4001).astype(np.float32)
    error = np.abs(functors("gelu", x) / expected("gelu", x) - 1)
    assert error.max() < RELATIVE["gelu"]


def test_gelu_backward_is_precise_where_it_is_small(functors: Callable[..., np.ndarray]) -> None:
    x = np.linspace(-12, -1.2, 4001).astype(np.float32)
    grad = np.ones_like(x)
    error = np.abs(functors("gelu_backward", grad, x) / expected("gelu_backward", grad, x) - 1)
    assert error.max() < 2.0**-13  # a quarter of fp16's rounding


# --- what takes tanh.approx ---

FORWARD = sorted(name for name in FAST if ELEMENTWISE[name].arity == 1)


@pytest.mark.parametrize("name", FORWARD)
def test_precision_on_the_device_is_what_the_table_says(
    name: str, functors: Callable[..., np.ndarray]
) -> None:
    """The host has a better tanh: its error, and that of the device's tanh.approx."""
    h = np.concatenate([np.linspace(-15, 15, 60_001), np.geomspace(1e-6, 1, 200)]).astype(np.float32)
    h = h[h != 0]
    exact, wide, got = expected(name, h), h.astype(np.float64), functors(name, h)
    if name == "fast_tanh":
        error = largest_error(exact)
    else:  # s (1 + tanh(u))
        scale = np.full_like(wide, 0.5) if name == "sigmoid_of_double" else wide
        error = np.abs(scale) * largest_error(got / scale - 1.0) + np.abs(got - exact)
    said = re.fullmatch(
        r"absolute (\S+)( \|h\|)?; relative (\S+)(?: where [ah] > (\S+))?", ELEMENTWISE[name].precision
    )
    assert said is not None
    absolute, of_h, relative, least = said.groups()
    assert (error <= float(absolute) * (np.abs(wide) if of_h else 1.0)).all()
    assert (error <= float(relative) * np.abs(exact))[wide > float(least or -INF)].all()


@pytest.mark.parametrize("name", FORWARD)
def test_tanh_approx_saturates(name: str, functors: Callable[..., np.ndarray]) -> None:
    """Huge arguments give the limits themselves: powers of them overflow, and nothing comes back."""
    h = np.geomspace(10, 1e30, 2000).astype(np.float32)
    bounded = name in ("fast_tanh", "sigmoid_of_double")
    assert np.array_equal(functors(name, h), np.ones_like(h) if bounded else 2 * h)
    assert (functors(name, -h) == (-1.0 if name == "fast_tanh" else 0.0)).all()


def test_fast_gelu_is_gelu_for_either_sign(functors: Callable[..., np.ndarray]) -> None:
    """Within 2.6e-5 everywhere, which is the polynomial's error alone: the host's tanh has none."""
    a = np.concatenate([np.linspace(0, 2, 80_001), np.geomspace(2, 1e30, 1000)]).astype(np.float32)
    for signed in (a, -a):
        error = np.abs(2.0 * functors("half_gelu_of_quadruple", signed) - expected("gelu", 4 * signed))
        assert (error <= 2.6e-5 + 2.0**-21 * np.maximum(signed, 0.0)).all()
    rising = functors("half_gelu_of_quadruple", a)
    assert (np.diff(rising) >= 0).all()
    falling = functors("half_gelu_of_quadruple", -a)
    assert (falling <= 0).all()
    assert (np.diff(falling[a > 0.25]) >= -(2.0**-22)).all()  # from its minimum back to 0
