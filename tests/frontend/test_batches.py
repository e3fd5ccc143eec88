"""Operands that vary over a part of the batches, as attention's masks and biases do."""

from __future__ import annotations

import pytest
import torch

from comfuse import fallbacks
from comfuse.frontend import trace_region
from comfuse.frontend.errors import TraceError
from comfuse.generator.spec import Space
from tests.frontend.support import check, evaluate, tensor

B, H, M, K, N = 2, 3, 6, 16, 24
#: Shapes that broadcast to (B, H, M, N), with whether each row of a batch reads the same.
MASKS = {
    (B, 1, 1, N): True,
    (B, 1, M, N): False,
    (1, H, 1, N): True,
    (1, H, M, N): False,
    (H, M, N): False,
    (B, H, 1, N): True,
    (B, H, M, N): False,
    (M, N): False,
}


@pytest.fixture(autouse=True)
def _no_counts():
    fallbacks.reset()


def scores(q, k, bias):
    return torch.softmax(q @ k.mT * 0.125 + bias, -1)


def attention(q, k, bias, v):
    return scores(q, k, bias) @ v


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("m", [M, 1])
def test_masks_are_read_in_place(shape, m):
    repeats, shape = MASKS[shape], tuple(m if size == M else size for size in shape)
    q, k, bias = tensor(B, H, m, K), tensor(B, H, N, K, seed=1), tensor(*shape, seed=2)
    region = check(scores, q, k, bias)
    (operand,) = region.spec.operands
    if m > 1:  # one row is all of them, or the same for all
        assert (operand.space, operand.strided) == (Space.TILE, repeats)
    call = region.bind([q, k, bias])
    assert call.operands[0].data_ptr() == bias.data_ptr()
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("shape", MASKS)
def test_attention_in_one_kernel(shape):
    arguments = tensor(B, H, M, K), tensor(B, H, N, K, seed=1), tensor(*shape, seed=2), tensor(B, H, N, 8)
    region = check(attention, *arguments)
    assert len(region.spec.links) == 2
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("shape", [(B, 1, M, 1), (1, H, 1, 1), (B, H, 1, 1), (H, M, 1)])
def test_values_a_row(shape):
    q, k, scale = tensor(B, H, M, K), tensor(B, H, N, K, seed=1), tensor(*shape, seed=2)
    region = check(lambda q, k, scale: (q @ k.mT * scale).relu(), q, k, scale)
    assert [o.space for o in region.spec.operands] == [Space.COLUMN]
    assert region.bind([q, k, scale]).operands[0].data_ptr() == scale.data_ptr()
    assert fallbacks.counts() == {}


def test_the_levels_are_those_of_the_call():
    region = trace_region(scores, [tensor(B, H, M, K), tensor(B, H, N, K), tensor(B, 1, 1, N)])
    assert region.any_rows
    arguments = tensor(4, 5, 7, K), tensor(4, 5, N, K, seed=1), tensor(4, 1, 1, N, seed=2)
    assert region.accepts(arguments)
    expected = scores(*(t.double() for t in arguments))
    torch.testing.assert_close(evaluate(region, arguments), expected)


@pytest.mark.parametrize(
    "shape, reason",
    [
        ((1, H, 1, 1, N), "varies over a part of the 24 batches in a way that two strides do not walk"),
        ((B, 1, 4, M, N), "varies over a part of the 24 batches in a way that two strides do not walk"),
    ],
)
def test_three_levels_are_refused(shape, reason):
    with pytest.raises(TraceError, match=reason):
        trace_region(scores, [tensor(B, H, 4, M, K), tensor(B, H, 4, N, K), tensor(*shape)])


def test_a_part_of_the_rows_of_each_batch_is_refused():
    def halves(q, k, bias):
        return ((q @ k.mT).view(B, H, 2, M // 2, N) + bias).view(B, H, M, N).relu()

    with pytest.raises(TraceError, match="varies over a part of the 6 rows of each batch"):
        trace_region(halves, [tensor(B, H, M, K), tensor(B, H, N, K), tensor(B, H, 1, M // 2, N)])
