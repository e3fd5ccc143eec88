"""The steps that random programs are made of, each with the size of its result."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.ops import AXES
from comfuse.generator.spec import Space

LARGEST_M = 500
_LARGEST = 1e3  # of a smooth value that later steps read
_FLOAT_BITS = 2.0**24


@dataclass(frozen=True)
class Value:
    """A node of a program.

    Attributes:
        bound: no element is larger.
        grain: of an exact value: elements are multiples of 2^-grain.
        exact: the same number in float32 and in float64.
        late: "col" or "full" if it reads such a reduction: it can be stored, but no tile can read it.
        measured: it reads a GEMM, so that it can be stored.
    """

    node: int
    space: Space
    bound: float
    grain: int
    exact: bool
    late: str = ""
    measured: bool = False

    def fits(self, others: Sequence[Value]) -> bool:
        """Whether one op may read it beside the others."""
        spaces, late = {v.space for v in (self, *others)}, {v.late for v in (self, *others)} - {""}
        if not late:
            return True
        return len(late) == 1 and spaces <= ({Space.ROW, Space.SCALAR} if late == {"col"} else {Space.SCALAR})


@dataclass(frozen=True)
class Step:
    """``build(b, *nodes)`` adds nodes and gives the last; ``size(*inputs)`` the result's bound and grain, or
    None if it would grow too large.

    ``exact``: exact inputs give an exact result.  ``discrete``: so many of its first inputs have to be
    exact, because a rounding of them could change the result by more than a rounding.
    """

    arity: int
    build: Callable[..., int]
    size: Callable[..., tuple[float, int] | None]
    exact: bool = False
    discrete: int = 0

    def make(self, b: SpecBuilder, inputs: Sequence[Value], *, exact: bool) -> Value | None:
        """The result's value; None where it may not be made of these inputs.  ``exact``: it has to be."""
        size = self.size(*inputs)
        if size is None or not all(v.exact for v in inputs[: self.discrete]):
            return None
        known = self.exact and all(v.exact for v in inputs) and size[0] * 2.0 ** size[1] <= _FLOAT_BITS
        if not known and (exact or size[0] > _LARGEST):
            return None
        space, late = Space.SCALAR, ""
        for v in inputs:
            space, late = space.join(v.space), late or v.late
        node = self.build(b, *(v.node for v in inputs))
        return Value(node, space, *size, known, late, any(v.measured for v in inputs))


def _op(name: str, *constants: float) -> Callable[..., int]:
    return lambda b, *nodes: b.op(name, *nodes, *(b.const(c) for c in constants))


def _nested(outer: str, inner: Callable[[SpecBuilder, int], int]) -> Callable[..., int]:
    return lambda b, x: b.op(outer, inner(b, x))


def _of_output(name: str) -> Callable[..., int]:
    """The backward formula that reads the function's own output."""
    return lambda b, grad, x: b.op(f"{name}_backward", grad, b.op(name, x))


def _one_more(b: SpecBuilder, x: int) -> int:
    return b.op("add", x, b.const(1.0))


def _one_plus_square(b: SpecBuilder, x: int) -> int:
    return _one_more(b, b.op("square", x))


def _one_plus_abs(b: SpecBuilder, x: int) -> int:
    return _one_more(b, b.op("abs", x))


def _same(x: Value) -> tuple[float, int]:
    return x.bound, x.grain


def _largest(*inputs: Value) -> tuple[float, int]:
    return max(v.bound for v in inputs), max(v.grain for v in inputs)


def _sum(x: Value, y: Value) -> tuple[float, int]:
    return x.bound + y.bound, max(x.grain, y.grain)


def _product(x: Value, y: Value) -> tuple[float, int]:
    return x.bound * y.bound, x.grain + y.grain


def _of(bound: float, grain: int = 0) -> Callable[..., tuple[float, int]]:
    return lambda *_: (bound, grain)


def _below(limit: float, bound: Callable[[float], float]) -> Callable[[Value], tuple[float, int] | None]:
    return lambda x: (bound(x.bound), 0) if x.bound <= limit else None


_BACKWARD = (
    "gelu_backward", "gelu_tanh_backward", "silu_backward", "mish_backward", "softplus_backward",
)  # fmt: skip


def _exact(arity: int, name: str, size: Callable[..., tuple[float, int] | None], *constants: float) -> Step:
    return Step(arity, _op(name, *constants), size, exact=True)


def _discrete(arity: int, name: str, size: Callable[..., tuple[float, int]], *constants: float) -> Step:
    return Step(arity, _op(name, *constants), size, exact=True, discrete=arity)


EXACT: dict[str, Step] = {
    **{name: _exact(2, name, _sum) for name in ("add", "sub")},
    "mul": _exact(2, "mul", _product),
    "square": _exact(1, "square", lambda x: (x.bound**2, 2 * x.grain)),
    **{name: _exact(1, name, _same) for name in ("neg", "abs", "relu")},
    **{name: _exact(2, name, _largest) for name in ("minimum", "maximum")},
    "leaky_relu": _exact(1, "leaky_relu", lambda x: (x.bound, x.grain + 1), 0.5),
    "where": Step(3, _op("where"), lambda c, x, y: _largest(x, y), exact=True, discrete=1),
    **{name: _discrete(2, name, _of(1.0)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: _discrete(2, name, _of(1.0)) for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: _discrete(1, name, _of(1.0)) for name in ("sign", "logical_not", "isfinite", "isnan")},
    **{name: _discrete(1, name, lambda x: (x.bound + 1, 0)) for name in ("floor", "ceil", "round", "trunc")},
    "fmod": _discrete(1, "fmod", lambda x: (3.0, x.grain), 3.0),
    "remainder": _discrete(1, "remainder", lambda x: (2.5, max(1, x.grain)), 2.5),
}
SMOOTH: dict[str, Step] = {
    **EXACT,
    **{name: Step(1, _op(name), _of(1.0)) for name in ("tanh", "sigmoid", "erf", "hardsigmoid")},
    **{name: Step(1, _op(name), _of(1.0)) for name in ("sin", "cos")},
    **{
        name: Step(1, _op(name), _same)
        for name in ("gelu", "gelu_tanh", "silu", "quick_gelu", "mish", "hardswish")
    },
    "softplus": Step(1, _op("softplus"), lambda x: (x.bound + 1, 0)),
    "elu": Step(1, _op("elu", 0.75), _same),
    "exp": Step(1, _op("exp"), _below(4.0, math.exp)),
    "exp2": Step(1, _op("exp2"), _below(6.0, lambda x: 2.0**x)),
    "expm1": Step(1, _op("expm1"), _below(4.0, math.exp)),
    "rsqrt": Step(1, _nested("rsqrt", _one_plus_square), _of(1.0)),
    "sqrt": Step(1, _nested("sqrt", _one_plus_square), lambda x: (x.bound + 1, 0)),
    "reciprocal": Step(1, _nested("reciprocal", _one_plus_abs), _of(1.0)),
    "log": Step(1, _nested("log", _one_plus_square), _of(15.0)),
    "log2": Step(1, _nested("log2", _one_plus_abs), _of(15.0)),
    "log1p": Step(1, _nested("log1p", lambda b, x: b.op("abs", x)), _of(15.0)),
    "pow": Step(1, lambda b, x: b.op("pow", _one_plus_abs(b, x), b.const(0.75)), lambda x: (x.bound + 1, 0)),
    "div": Step(2, lambda b, x, y: b.op("div", x, _one_plus_abs(b, y)), lambda x, y: _same(x)),
    "half": Step(2, lambda b, x, y: b.op("mul", b.op("add", x, y), b.const(0.5)), _largest),
    **{
        name: Step(2, _op(name), lambda grad, x: (1.25 * grad.bound, 0))
        for name in (
            "gelu_backward",
            "gelu_tanh_backward",
            "silu_backward",
            "mish_backward",
            "softplus_backward",
        )
    },
    "tanh_backward": Step(
        2, lambda b, g, x: b.op("tanh_backward", g, b.op("tanh", x)), lambda g, x: _same(g)
    ),
    "sigmoid_backward": Step(
        2, lambda b, g, x: b.op("sigmoid_backward", g, b.op("sigmoid", x)), lambda g, x: _same(g)
    ),
}


def reduce(
    b: SpecBuilder, rng: random.Random, axis: str, x: Value, count: int, *, exact: bool
) -> Value | None:
    """A reduction of ``count`` values, with a mean taken of what would grow too large; None: it cannot be."""
    space, late = AXES[axis], axis if axis in ("col", "full") else ""  # type: ignore[index]

    def value(node: int, bound: float, grain: int = 0, *, known: bool = False) -> Value | None:
        known = known and x.exact and bound * 2.0**grain <= _FLOAT_BITS
        return Value(node, space, bound, grain, known, late, True) if known or not exact else None

    kinds = ["sum", "sum", "max", "max", "min", "sumsq", "prod"]
    kinds += ["welford", "welford"] if not exact else []
    kinds += ["softmax", "arg"] if axis == "row" else ["softmax"] if axis == "group" else []
    kind = rng.choice(kinds)
    if not x.measured or x.late:
        return None
    if kind in ("max", "min"):
        return value(b.op(f"{axis}_{kind}", x.node), x.bound, x.grain, known=True)
    if kind == "arg":
        name = rng.choice(("argmax", "argmin"))
        return value(b.op(f"{axis}_{name}", x.node), float(count), known=True) if x.exact else None
    if kind == "prod":
        if not x.exact or x.bound > 1.0 or x.grain > 0:
            return None
        return value(b.op(f"{axis}_prod", x.node), 1.0, known=True)
    if kind == "softmax":
        field = "max" if exact else rng.choice(("max", "lse", "sumexp"))
        bound = {"max": x.bound, "lse": x.bound + math.log(count), "sumexp": float(count)}[field]
        node = b.field(b.op(f"{axis}_softmax", x.node), field)
        return value(node, bound, x.grain if field == "max" else 0, known=field == "max")
    if kind == "welford":
        field = rng.choice(("mean", "var"))
        bound = x.bound if field == "mean" else x.bound**2
        return value(b.field(b.op(f"{axis}_welford", x.node), field), bound)
    bound, grain = (x.bound, x.grain) if kind == "sum" else (x.bound**2, 2 * x.grain)
    if exact:
        if bound * count * 2.0**grain > _FLOAT_BITS:
            return None
        return value(b.op(f"{axis}_{kind}", x.node), bound * count, grain, known=True)
    total = b.op(f"{axis}_{kind}", x.node)
    return value(b.op("mul", total, b.const(1.0 / count)), bound)
