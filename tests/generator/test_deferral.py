"""Middle reductions behind the second GEMM: the same meaning, and what is refused."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.deferral import defer, why_not
from comfuse.generator.emit.chain import emit_chain
from comfuse.generator.errors import PlanError
from comfuse.generator.interpret import interpret_chain, interpret_deferred
from comfuse.generator.passes.infer import spaces
from comfuse.generator.passes.verify import verify
from comfuse.generator.plan.chain import chain_candidates, force_chain, unsupported
from comfuse.generator.plan.chain.middle import split_middle
from comfuse.generator.spec import DType, Space

from . import cpp_model
from .chain_programs import CHAINS, DEFERRED
from .chain_strategies import chain_arguments
from .deferred_strategies import NORMS, Middle, normed_chains
from .strategies import agree, flat

BF16, FP16 = DType.BF16, DType.FP16


def chain_of(middle: Callable[[Middle, int], int], dtype: DType = BF16, n: int = 16) -> ChainSpec:
    b = Middle(24, 16, dtype)
    b.output("p", middle(b, b.gemm()), dtype)
    last = Middle(n, 24, dtype)
    last.output("y", last.gemm(), dtype)
    return ChainSpec((b.spec(), last.spec()))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_deferring_keeps_the_meaning(data: st.DataObject) -> None:
    """Not rounded between the links: what is rounded is not the same."""
    chain = data.draw(normed_chains())
    gemm, factors, operands = data.draw(chain_arguments(chain))
    wanted = interpret_chain(chain, gemm, factors, operands, round_middle=False)
    got = interpret_deferred(defer(chain), gemm, factors[0], operands, round_middle=False)
    assert agree(wanted, got)


@settings(max_examples=40, deadline=None)
@given(normed_chains())
def test_what_is_deferred_is_well_formed(chain: ChainSpec) -> None:
    deferred = defer(chain)
    first, last = deferred.links.links
    own = len(chain.last.operands)
    verify(first)
    verify(last)
    assert first.operands == chain.links[0].operands
    assert last.operands[:own] == chain.last.operands
    handed = [*(spaces(first)[o.node] for o in first.outputs[1:]), *(Space.ROW for _ in deferred.vectors)]
    assert [o.space for o in last.operands[own:]] == handed
    assert all(spaces(first)[c] in (Space.ROW, Space.SCALAR) for c in deferred.vectors)
    assert len(split_middle(deferred).phases) == 1 + (deferred.peak is not None)


@pytest.mark.parametrize("name", sorted(CHAINS.keys() - DEFERRED.keys()))
def test_a_chain_without_reductions_is_left_alone(name: str) -> None:
    deferred = defer(CHAINS[name])
    assert not deferred.vectors
    assert deferred.peak is None
    assert len(deferred.links.links[0].outputs) == 1


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_is_deferred(norm: str) -> None:
    chain = chain_of(NORMS[norm])
    assert why_not(chain) is None
    assert unsupported(normalize_chain(chain)) is None


@pytest.mark.parametrize("norm", NORMS)
def test_every_norm_keeps_the_meaning(norm: str) -> None:
    """Alone, on ordinary numbers."""
    chain, numbers = chain_of(NORMS[norm]), random.Random(0)
    gemm, factor = ([[numbers.gauss(0, 1) for _ in range(24)] for _ in range(rows)] for rows in (3, 16))
    wanted = interpret_chain(chain, gemm, [factor], [], round_middle=False)
    assert agree(wanted, interpret_deferred(defer(chain), gemm, factor, [], round_middle=False))


def after(norm: str, op: Callable[[Middle, int], int]) -> ChainSpec:
    return chain_of(lambda b, x: op(b, NORMS[norm](b, x)))


def _beside_an_exponential(b: Middle, x: int) -> int:
    """Both scaled by exp(max(x) - sum(x))."""
    total = b.op("row_sum", x)
    scale = b.op("exp", b.op("sub", b.op("row_max", x), total))
    return b.op("add", b.op("exp", b.op("sub", x, total)), b.op("mul", x, scale), name="both")


def _scaled_by_exponentials(b: Middle, x: int) -> int:
    e = NORMS["unnormalised"](b, x)
    return b.op("mul", x, b.op("row_sum", b.op("mul", x, e)))


REFUSED: dict[str, tuple[ChainSpec, str]] = {
    "activation": (
        after("rms", lambda b, x: b.op("gelu", x, name="act")),
        "act: gelu of a value that reads a reduction of its row, which can only be scaled and shifted",
    ),
    "residual": (
        after("rms", lambda b, x: b.op("add", x, b.operand(Space.TILE), name="sum")),
        "sum: a sum of two tiles that are scaled differently by their row",
    ),
    "second norm": (
        after("rms", NORMS["rms"]),
        "row_sumsq of a value that reads a reduction of the same row",
    ),
    "square": (
        after("rms", lambda b, x: b.op("mul", x, b.op("neg", x), name="twice")),
        "twice: a product of two values that read reductions of their row",
    ),
    "denominator": (
        after("rms", lambda b, x: b.op("div", b.operand(Space.ROW), x, name="inverse")),
        "a division by a value that reads a reduction of its row",
    ),
    "shifted by a tile": (
        after("layer_norm", lambda b, x: b.op("mul", x, b.operand(Space.TILE), name="kept")),
        "kept: a tile times a value that a value a row was added to",
    ),
    "exponential of a norm": (
        after("rms", lambda b, x: b.op("exp", x, name="e")),
        "e: an exponential of a value that is more than shifted by its row",
    ),
    "two softmaxes": (
        chain_of(
            lambda b, x: b.op(
                "add", NORMS["softmax"](b, x), NORMS["softmax"](b, b.op("relu", x)), name="both"
            )
        ),
        "exponentials of two values, each shifted by a maximum of its own",
    ),
    "beside an exponential": (
        chain_of(_beside_an_exponential),
        "both: a sum of exponentials, which are scaled when their maximum grows, and of what is none",
    ),
    "scaled by exponentials": (
        chain_of(_scaled_by_exponentials),
        "p: no exponential itself, but scaled by a sum of some",
    ),
    "index": (
        chain_of(lambda b, x: b.op("mul", x, b.op("row_argmax", x, name="best"))),
        "best: an index between the GEMMs",
    ),
    "other choice": (
        after("rms", lambda b, x: b.op("where", b.operand(Space.TILE), x, b.const(2.0), name="or2")),
        "or2: a choice that reads a reduction of its row, other than of zero",
    ),
    "group": (
        chain_of(lambda b, x: b.op("sub", x, b.op("col_max", x, name="peak"))),
        "peak: a reduction between the GEMMs that is not along rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_deferred_is_refused_with_a_reason(name: str) -> None:
    chain, reason = REFUSED[name]
    assert reason in str(why_not(chain))
    assert reason in str(unsupported(normalize_chain(chain)))
    with pytest.raises(PlanError, match=re.escape(reason)):
        chain_candidates(chain)


@pytest.mark.parametrize("norm", NORMS)
def test_what_fp16_cannot_hold_is_refused(norm: str) -> None:
    """Exponentials are at most one; other values may be large before they are scaled."""
    reason = why_not(chain_of(NORMS[norm], FP16))
    assert (reason is None) == (norm in ("softmax", "from_lse", "unnormalised"))
    assert reason is None or "too large for fp16" in reason


def _before(dtype: DType, space: Space = Space.ROW) -> dict[str, Callable[[Middle, int], int]]:
    """What makes a value float32 in torch, by an operand of this dtype, and what does not quite."""
    return {
        "bias": lambda b, x: b.op("add", x, b.load("c", space, dtype)),
        "factor and sum": lambda b, x: b.op("add", x, b.op("mul", x, b.load("c", space, dtype))),
        "activation": lambda b, x: b.op("gelu", b.op("mul", x, b.load("c", space, dtype))),
        "choice": lambda b, x: b.op("where", b.op("gt", x, b.const(0.0)), x, b.load("c", space, dtype)),
    }


SHIFTING = ("layer_norm", "log_softmax", "by_its_sum")
WIDE = {DType.FP32: True, FP16: True, BF16: False, DType.INT32: False, DType.BOOL: False}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("before", _before(BF16))
@pytest.mark.parametrize("dtype", WIDE)
def test_shifts_of_what_eager_keeps_in_float32_are_refused(norm: str, before: str, dtype: DType) -> None:
    """Of all others the relative error is that of their rounding."""
    reason = why_not(chain_of(lambda b, x: NORMS[norm](b, _before(dtype)[before](b, x))))
    assert (reason is not None) == (norm in SHIFTING and WIDE[dtype])
    assert reason is None or "p: it is shifted by its row behind the second GEMM" in reason
    assert reason is None or "while c, which is not bf16, keeps what is shifted in float32" in reason


@pytest.mark.parametrize("space", [Space.COLUMN, Space.TILE, Space.SCALAR])
def test_a_number_makes_nothing_float32(space: Space) -> None:
    chain = chain_of(lambda b, x: NORMS["layer_norm"](b, _before(DType.FP32, space)["bias"](b, x)))
    assert (why_not(chain) is None) == (space is Space.SCALAR)


@pytest.mark.parametrize("op", ["mul", "div"])
def test_factors_of_float32_leave_what_was_rounded(op: str) -> None:
    """LayerNorm's own weight and bias, a scale ahead of it, and a mask of float32."""

    def normed(b: Middle, x: int) -> int:
        x = b.op(op, x, b.operand(Space.COLUMN, DType.FP32))
        x = b.op("where", b.op("lt", b.operand(Space.ROW, DType.FP32), b.const(0.0)), b.const(0.0), x)
        x = b.op("mul", NORMS["layer_norm"](b, x), b.operand(Space.ROW, DType.FP32))
        return b.op("add", x, b.operand(Space.ROW, DType.FP32))

    assert why_not(chain_of(normed)) is None


def test_tiles_behind_a_peak_are_refused() -> None:
    chain = after("softmax", lambda b, x: b.op("mul", x, b.load("keep", Space.TILE, BF16)))
    assert why_not(chain) is None  # it could be deferred
    with pytest.raises(PlanError, match="keep: a tile that is read behind"):
        chain_candidates(chain)


def test_values_a_row_behind_a_peak_are_refused() -> None:
    def masked(b: Middle, x: int) -> int:
        return b.op("where", b.op("lt", b.column_index(), b.load("length", Space.COLUMN)), x, b.const(0.0))

    chain = after("softmax", masked)
    assert why_not(chain) is None
    with pytest.raises(PlanError, match="length: a value a row that is read, element by element, behind"):
        chain_candidates(chain)


# --- what the text computes ---


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_emitted_kernel_computes_the_chain(data: st.DataObject) -> None:
    """Block by block only in so far as the largest value of a row is the whole row's."""
    chain = data.draw(normed_chains())
    try:
        plan = force_chain(chain)
    except PlanError as e:
        assume("that is read" not in str(e))
        raise
        return
    gemm, factors, operands = data.draw(chain_arguments(chain))
    pairs = list(zip([o.space for link in chain.links for o in link.operands], operands, strict=True))
    tensors = [v for space, v in pairs if space is not Space.SCALAR]
    scalars = [v for space, v in pairs if space is Space.SCALAR]
    kernel = cpp_model.parse(emit_chain(plan).text)
    middle, handed = cpp_model.run_middle(kernel, chain.links[0].n, [gemm], tensors, scalars, factors[0])
    result = [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in factors[0]] for row in middle
    ]
    outputs = cpp_model.run(kernel, chain.last.n, [result], [*tensors, *handed], scalars)
    wanted = interpret_chain(chain, gemm, factors, operands, round_middle=False)
    for index, expected in enumerate(wanted):
        for a, b in zip(flat(outputs[index]), flat(expected), strict=True):
            assert a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-5 * max(abs(b), 1.0)
