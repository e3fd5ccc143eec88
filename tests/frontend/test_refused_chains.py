"""GEMMs back to back that are no chain: which, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import comfuse
from comfuse import trace
from comfuse.frontend import TraceError, chains
from comfuse.generator.chain import ChainSpec
from comfuse.generator.errors import PlanError
from tests.frontend.support import residual, row, tensor, weight, x
from tests.frontend.test_chains import OUT, H, second


def returns_the_middle(x, w0, w1):
    h = F.relu(x @ w0.t())
    return h @ w1.t(), h


def returns_a_view_of_it(x, w0, w1):
    h = F.relu(x @ w0.t())
    return h @ w1.t(), h.transpose(0, 1)


def returns_what_is_ahead_of_it(x, w0, w1):
    z = x @ w0.t()
    return F.relu(z) @ w1.t(), z


def adds_the_middle(x, w0, w1):
    h = F.relu(x @ w0.t())
    return h @ w1.t() + h[..., :1]


def gates_by_what_is_ahead(x, w0, w1):
    z = x @ w0.t()
    return F.relu(z) @ w1.t() * z.sigmoid().mean(-1, keepdim=True)


def squares_it(x, w0):
    h = F.relu(x[0] @ w0.t())
    return h @ h.t()


def turns_it(x, w0, w1):
    return F.relu(x @ w0.t()).transpose(0, 1).flatten(0, 1) @ w1.t()


def takes_a_part(x, w0, w1):
    return F.relu(x @ w0.t())[..., :8] @ w1.t()[:8]


def folds_rows(x, w0, w1):
    return F.relu(x[0, :2] @ w0.t()).reshape(1, -1) @ w1


def four(x, w0, w1, w2, w3):
    return F.relu(F.relu(F.relu(x @ w0.t()) @ w1.t()) @ w2.t()) @ w3.t()


def third_normed(x, w0, w1, w2):
    return F.rms_norm(F.relu(x @ w0.t()) @ w1.t(), (OUT,)) @ w2.t()


def normed_in_float32(x, w0, c, w1):
    return F.layer_norm(x @ w0.t() + c, (H,)).bfloat16() @ w1.t()


def widened_ahead_of_its_norm(x, w0, b0, w1):
    """Though no operand is float32."""
    h = F.softplus((x @ w0.t()).float() + b0) + 10
    return ((h - h.mean(-1, keepdim=True)) * 0.5).bfloat16() @ w1.t()


def gated_behind(x, w0, w1, w2):
    h = F.relu(x @ w0.t())
    return F.silu(h @ w1.t()) * (h @ w2.t())


def batches(x, w0, w1):
    return torch.bmm(F.relu(torch.bmm(x, w0.mT)), w1.mT)


def wide(x, w0, w1):
    return F.relu(x @ w0.t()) @ w1.t()


F32 = torch.float32
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str, str]] = [
    (returns_the_middle, (second(),), "mm_1", "relu, computed from mm: relu would have to be stored, as the"),
    (returns_a_view_of_it, (second(),), "mm_1", "relu would have to be stored, as the function returns it"),
    (returns_what_is_ahead_of_it, (second(),), "mm_1", "mm would have to be stored, as the function"),
    (adds_the_middle, (second(),), "mm_1", "relu would have to be stored, as add reads it too"),
    (gates_by_what_is_ahead, (second(),), "mm_1", "would have to be stored, as sigmoid reads it too"),
    (squares_it, (), "mm_1", "relu would have to be stored, as mm_1 reads it too"),
    (turns_it, (second(),), "mm_1", "another order of rows and columns"),
    (takes_a_part, (second(),), "mm_1", "another order of rows and columns"),
    (folds_rows, (tensor(2 * H, OUT),), "mm_1", "another order of rows and columns"),
    (four, (second(H), second(H), second()), "mm_1", "4 links; chains of at most 3 can be one kernel"),
    (third_normed, (second(), tensor(OUT, OUT)), "mm_1", "between the GEMMs of a chain of more than two"),
    (normed_in_float32, (row(dtype=F32), second()), "mm_1", "while c, which is not bf16, keeps what"),
    (normed_in_float32, (residual(dtype=F32), second()), "mm_1", "by its row behind the second GEMM"),
    (widened_ahead_of_its_norm, (row(), second()), "mm_1", "add_1 is computed in float32 and shifted by its"),
    (gated_behind, (second(), second()), "mm_1", "two products in link 1"),
    (wide, (second(512),), "mm_1", "N = 512; a tile has to hold whole rows, of at most 256 columns"),
    (wide, (second(20),), "mm_1", "N = 20 must be a multiple of 8"),
]  # fmt: skip


@pytest.mark.parametrize("fn, more, node, reason", REFUSED, ids=[case[0].__name__ for case in REFUSED])
def test_refusals(fn: Callable[..., Any], more: tuple[Any, ...], node: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        trace(fn, x(), weight(), *more)
    assert caught.value.node == node
    assert caught.value.location.startswith(__file__)  # type: ignore[union-attr]
    assert caught.value.reason.startswith("its left factor is ")


def test_what_is_possible_is_the_generator_s_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(chain: ChainSpec) -> ChainSpec:
        raise PlanError(f"not with H = {chain.links[0].n}")

    monkeypatch.setattr(chains, "check_chain", refuse)
    with pytest.raises(TraceError, match=f"relu, computed from mm: no kernel takes both: not with H = {H}"):
        trace(lambda x, w0, w1: F.relu(x @ w0.t()) @ w1.t(), x(), weight(), second())


def test_explain_says_why_it_is_none() -> None:
    found = comfuse.explain(returns_the_middle, x(), weight(), second())
    assert found.plan is None
    assert "not fused: mm_1 (aten.mm.default)" in str(found)
    assert "relu would have to be stored" in str(found)
