"""Random chains with row reductions between their GEMMs, most of which can be deferred."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, Space

K, H, N = 16, 24, 8
Step = Callable[["Middle", int], int]


class Middle(SpecBuilder):
    """A first link; operands get names of their own, and tensors the dtype of the factors."""

    def operand(self, space: Space, dtype: DType | None = None) -> int:
        default = DType.FP32 if space is Space.SCALAR else self.dtype
        return self.load(f"{space.value}{len(self._operands)}", space, dtype or default)

    def one_more(self, x: int) -> int:
        return self.op("add", x, self.const(1.0))


def _softmax(b: Middle, x: int) -> int:
    e = b.op("exp", b.op("sub", x, b.op("row_max", x)))
    return b.op("div", e, b.op("row_sum", e))


def _from_lse(b: Middle, x: int) -> int:
    peak = b.op("row_max", x)
    total = b.op("row_sum", b.op("exp", b.op("sub", x, peak)))
    return b.op("exp", b.op("sub", x, b.op("add", peak, b.op("log", total))))


def _layer_norm(b: Middle, x: int) -> int:
    stats = b.op("row_welford", x)
    rstd = b.op("rsqrt", b.one_more(b.field(stats, "var")))
    return b.op("mul", b.op("sub", x, b.field(stats, "mean")), rstd)


def _by_its_sum(b: Middle, x: int) -> int:
    shifted = b.op("sub", x, b.op("row_max", x))
    return b.op("div", shifted, b.one_more(b.op("abs", b.op("row_sum", shifted))))


#: From a value that reads no reduction to one that does.
NORMS: dict[str, Step] = {
    "rms": lambda b, x: b.op("mul", x, b.op("rsqrt", b.one_more(b.op("row_sumsq", x)))),
    "layer_norm": _layer_norm,
    "by_peak": lambda b, x: b.op("div", x, b.one_more(b.op("row_max", b.op("abs", x)))),
    "log_softmax": lambda b, x: b.op("sub", x, b.field(b.op("row_softmax", x), "lse")),
    "softmax": _softmax,
    "from_lse": _from_lse,
    "unnormalised": lambda b, x: b.op("exp", b.op("sub", x, b.op("row_max", x))),
    "product": lambda b, x: b.op("mul", x, b.op("row_min", x)),
    "by_its_sum": _by_its_sum,
}
#: What keeps the rest deferrable.
SCALINGS: dict[str, Step] = {
    "neg": lambda b, x: b.op("neg", x),
    "row": lambda b, x: b.op("mul", x, b.operand(Space.ROW)),
    "column": lambda b, x: b.op("mul", b.operand(Space.COLUMN), x),
    "scalar": lambda b, x: b.op("mul", x, b.operand(Space.SCALAR)),
    "quotient": lambda b, x: b.op("div", x, b.one_more(b.op("abs", b.operand(Space.COLUMN)))),
    "twice": lambda b, x: b.op("add", x, b.op("mul", x, b.const(0.5))),
    "share": lambda b, x: b.op("div", x, b.one_more(b.op("abs", b.op("row_sum", x)))),
    "masked_rows": lambda b, x: b.op(
        "where", b.op("gt", b.operand(Space.COLUMN), b.const(0.0)), x, b.const(0.0)
    ),
    "masked_columns": lambda b, x: b.op(
        "where", b.op("gt", b.operand(Space.ROW), b.const(0.0)), b.const(0.0), x
    ),
}
#: Behind these, fewer things are.
SHIFTS: dict[str, Step] = {
    "row": lambda b, x: b.op("add", x, b.operand(Space.ROW)),
    "column": lambda b, x: b.op("sub", b.operand(Space.COLUMN), x),
    "scalar": lambda b, x: b.op("sub", x, b.operand(Space.SCALAR)),
}
BEFORE: dict[str, Step] = {
    "bias": lambda b, x: b.op("add", x, b.operand(Space.ROW)),
    "tile": lambda b, x: b.op("add", x, b.operand(Space.TILE)),
    "relu": lambda b, x: b.op("relu", x),
    "scaled": lambda b, x: b.op("mul", x, b.operand(Space.SCALAR)),
    "causal": lambda b, x: b.op("where", b.op("ge", b.row_index(), b.column_index()), x, b.const(-50.0)),
}


@st.composite
def normed_chains(draw: st.DrawFn) -> ChainSpec:
    b = Middle(H, K, DType.BF16)
    x = b.gemm()
    for name in draw(st.lists(st.sampled_from(sorted(BEFORE)), max_size=2)):
        x = BEFORE[name](b, x)
    norm = draw(st.sampled_from(sorted(NORMS)))
    x = NORMS[norm](b, x)
    sums = norm not in ("layer_norm", "log_softmax", "by_its_sum")  # a vector that is added is not summed
    for name in draw(st.lists(st.sampled_from(sorted(SCALINGS)), max_size=3)):
        if sums or name != "share":
            x = SCALINGS[name](b, x)
    if sums and draw(st.booleans()):
        x = b.op("mul", x, b.operand(Space.TILE))
    for name in draw(st.lists(st.sampled_from(sorted(SHIFTS)), max_size=1)):
        x = SHIFTS[name](b, x)
    b.output("p", x, DType.BF16)
    last = SpecBuilder(N, H, DType.BF16)
    y = last.op("add", last.gemm(), last.load("bias", Space.ROW, DType.FP32))
    last.output("y", last.op("tanh", y), DType.BF16)
    last.output("peak", last.op("row_max", y), DType.FP32)
    return ChainSpec((b.spec(), last.spec()))
