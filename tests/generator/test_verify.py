"""What verify and infer refuse, and what they let through."""

from __future__ import annotations

from typing import Any

import pytest

from comfuse.generator.errors import SpecError
from comfuse.generator.passes import normalize
from comfuse.generator.spec import DType, FusedSpec, Major, Node, Operand, Output, Pair, Space

BF16 = DType.BF16
GEMM = Node("acc", "gemm")


def make(
    *nodes: Node, n: int = 64, k: int = 64, dtype: DType = BF16, operands=(), outputs=None, **more: Any
) -> FusedSpec:
    outputs = (Output("y", len(nodes) - 1, BF16),) if outputs is None else outputs
    return FusedSpec(n, k, dtype, tuple(operands), nodes, tuple(outputs), **more)


SECOND = Node("acc1", "gemm", operand=1)
TOTAL = Node("s", "full_sum", (0,))


@pytest.mark.parametrize(
    "spec, node, reason",
    [
        (make(Node("c", "const", value=1.0)), "spec", "exactly one gemm"),
        (make(GEMM, GEMM), "spec", "exactly one gemm"),
        (make(GEMM, n=0), "spec", "at least 1"),
        (make(GEMM, dtype=DType.FP32), "spec", "bf16 or fp16"),
        (make(GEMM, outputs=()), "spec", "must have an output"),
        (make(GEMM, Node("r", "exp", (1,))), "r", "not an earlier node"),
        (make(GEMM, Node("r", "exp", (0, 0))), "r", "takes 1 inputs"),
        (make(GEMM, Node("r", "conv", (0,))), "r", "unknown op"),
        (make(GEMM, Node("r", "load", operand=0)), "r", "does not exist"),
        (make(GEMM, Node("r", "const")), "r", "must have a value"),
        (make(GEMM, Node("w", "row_welford", (0,)), Node("r", "exp", (1,))), "r", "read a field"),
        (make(GEMM, Node("w", "row_welford", (0,))), "y", "store a field"),
        (make(GEMM, Node("w", "row_welford", (0,)), Node("f", "field", (1,), field="m3")), "f", "mean, var"),
        (make(GEMM, Node("w", "row_sum", (0,)), Node("f", "field", (1,), field="mean")), "f", "no fields"),
        (make(GEMM, Node("s", "row_sum", (0,)), Node("r", "row_max", (1,))), "r", "column value"),
        (make(GEMM, Node("c", "const", value=1.0)), "y", "compute it outside"),
        (make(GEMM, outputs=(Output("y", 3, BF16),)), "y", "does not exist"),
        (make(GEMM, outputs=(Output("y", 0, BF16), Output("y", 0, BF16))), "y", "distinct"),
        (make(GEMM, operands=(Operand("b", Space.ROW), Operand("b", Space.ROW))), "b", "distinct"),
        (make(GEMM, operands=(Operand("s", Space.SCALAR, BF16),)), "s", "fp32"),
        (make(GEMM, operands=(Operand("g", Space.GROUP),)), "g", "cannot be a group"),
        (make(GEMM, operands=(Operand("r", Space.ROW, strided=True),)), "r", "only a tile"),
        (make(GEMM, products=3), "spec", "1 or 2 products"),
        (make(GEMM, products=2), "spec", "each of its 2 products"),
        (make(GEMM, SECOND), "spec", "each of its 1 products"),
        (make(GEMM, second=Pair(64)), "spec", "a second A needs two products, got 1"),
        (make(GEMM, SECOND, products=2, second=Pair(0)), "spec", "at least 1, got N = 64, K = 0"),
        (make(GEMM, Node("acc1", "gemm", operand=2), products=2), "spec", "each of its 2 products"),
        (make(GEMM, group=48), "spec", "divide N = 64, got 48"),
        (make(GEMM, group=0), "spec", "divide N = 64, got 0"),
        (make(GEMM, Node("r", "group_sum", (0,))), "r", "needs the spec's group"),
        (make(GEMM, Node("r", "col_argmax", (0,))), "r", "unknown op 'col_argmax', allowed: row_argmax"),
        (make(GEMM, Node("r", "full_softmax", (0,))), "r", "allowed: row_softmax, group_softmax"),
        (make(GEMM, Node("r", "row_argmax", (0,)), n=2**24 + 8), "r", "at most 2.24"),
        (make(GEMM, Node("n", "column_index"), Node("r", "row_sum", (1,))), "r", "row value"),
        (make(GEMM, Node("s", "row_sum", (0,)), Node("r", "full_max", (1,))), "r", "column value"),
        (make(GEMM, Node("c", "row_count", (0,))), "c", "takes 0 inputs"),
        (make(GEMM, Node("n", "column_index")), "y", "compute it outside"),
        (make(GEMM, Node("n", "row_count")), "y", "compute it outside"),
        (
            make(GEMM, Node("x", "row_softmax", (0,)), Node("f", "field", (1,), field="mean")),
            "f",
            "max, sumexp, lse",
        ),
        (make(GEMM, outputs=(Output("y", 0, BF16, strided=True, heads=48),)), "y", "divide N = 64, got 48"),
        (make(GEMM, outputs=(Output("y", 0, BF16, heads=32),)), "y", "marked as strided"),
        (make(GEMM, TOTAL, outputs=(Output("y", 1, BF16, strided=True),)), "y", "is a scalar"),
    ],
)
def test_refusals_name_the_node_and_the_reason(spec: FusedSpec, node: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        normalize(spec)
    assert caught.value.node == node


@pytest.mark.parametrize(
    "spec",
    [
        make(GEMM, SECOND, products=2),
        make(SECOND, Node("acc", "gemm", operand=0), products=2),
        make(GEMM, TOTAL),
        make(GEMM, Node("r", "col_prod", (0,)), Node("e", "exp", (1,))),
        make(GEMM, Node("m", "row_index")),
        make(GEMM, Node("g", "group_max", (0,)), group=32, batched=True, a_major=Major.MN, b_major=Major.MN),
        make(GEMM, outputs=[Output(dtype.value, 0, dtype, strided=True, heads=16) for dtype in DType]),
        make(
            GEMM,
            Node("mask", "load", operand=0),
            operands=[Operand(dtype.value, Space.TILE, dtype, strided=True) for dtype in DType],
        ),
    ],
)
def test_what_is_legal_stays(spec: FusedSpec) -> None:
    once = normalize(spec)
    assert (once.operands, once.group, once.products) == (spec.operands, spec.group, spec.products)
    assert [(o.name, o.dtype, o.strided, o.heads) for o in once.outputs] == [
        (o.name, o.dtype, o.strided, o.heads) for o in spec.outputs
    ]


def test_the_first_product_has_one_spelling() -> None:
    assert normalize(make(Node("acc", "gemm", operand=0))) == normalize(make(GEMM))
