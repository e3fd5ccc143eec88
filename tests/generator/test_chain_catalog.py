"""The chains of the catalogue: what they are made of, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec, verify_chain
from comfuse.generator.errors import SpecError
from comfuse.generator.spec import DType

BF16, FP32 = DType.BF16, DType.FP32


def names(chain: ChainSpec) -> list[list[str]]:
    return [[operand.name for operand in link.operands] for link in chain.links]


def test_operands_come_in_the_order_of_the_arguments() -> None:
    biases: dict[str, Any] = {"b0": BF16, "b_gate": FP32, "b1": BF16, "residual": BF16}
    chain = verify_chain(
        catalog.mlp(
            64, 32, 128, BF16, gated=True, **biases, norm="layernorm", norm_weight=BF16, norm_bias=BF16
        )
    )
    assert names(chain) == [["b_gate", "b0"], ["b1", "residual", "norm_weight", "norm_bias", "eps"]]
    assert [(link.n, link.k, link.products) for link in chain.links] == [(128, 32, 2), (64, 128, 1)]
    chain = verify_chain(catalog.b2b(64, 32, 128, BF16, b0=BF16, residual0=BF16, b1=BF16, residual1=FP32))
    assert names(chain) == [["b0", "residual0"], ["b1", "residual1"]]


def test_the_middle_has_the_dtype_of_the_factors() -> None:
    for chain in (catalog.mlp(64, 32, 128, BF16, out=FP32), catalog.b2b(64, 32, 128, BF16, out=FP32)):
        assert [link.outputs[0].dtype for link in chain.links] == [BF16, FP32]


def test_broadcast_tiles() -> None:
    options: dict[str, Any] = {"residual0": BF16, "residual1": BF16, "strided": ("residual1",)}
    chain = catalog.b2b(64, 32, 128, BF16, **options)
    assert [link.operands[0].strided for link in chain.links] == [False, True]


@pytest.mark.parametrize(
    "options, about",
    [
        ({"activation": "softmax"}, "activation"),
        ({"b_gate": BF16}, "b_gate"),
        ({"norm": "batchnorm"}, "norm"),
        ({"norm_weight": BF16}, "norm_weight"),
        ({"norm_bias": BF16}, "norm_bias"),
        ({"norm": "rmsnorm", "norm_bias": BF16}, "norm_bias"),
        ({"residual": BF16, "residual_position": "inside"}, "residual_position"),
    ],
)
def test_refusals(options: dict[str, Any], about: str) -> None:
    with pytest.raises(SpecError) as refused:
        catalog.mlp(64, 32, 128, BF16, **options)
    assert refused.value.node == about
