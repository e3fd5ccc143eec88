"""Factors, operands and results in the layouts that programs have them in."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from comfuse import fallbacks
from comfuse.frontend import fuse, trace_region
from comfuse.generator.spec import Major, Space
from tests.frontend.support import LEAD, K, N, check, residual, row, tensor, weight, x

B, S = LEAD
HEADS, D = 4, N // 4


@pytest.fixture(autouse=True)
def _no_counts():
    fallbacks.reset()


# --- factors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", ["rows", "columns"])
@pytest.mark.parametrize("b", ["n by k", "k by n"])
@pytest.mark.parametrize("by_strides", [True, False])
def test_four_layouts_without_a_copy(a, b, by_strides):
    """As the function transposes an argument, or as the strides of the argument say."""
    left, right = tensor(6, K, seed=1), weight()
    if a == "columns":
        left = left.t().contiguous()
        left = left.t() if by_strides else left
    if b == "k by n":
        right = right.t().contiguous()
        right = right.t() if by_strides else right
    transpose_left, transpose_right = left.shape[0] == K, right.shape[0] == K

    def program(left, right, residual):
        product = (left.t() if transpose_left else left) @ (right if transpose_right else right.t())
        return F.gelu(product) + residual

    region = check(program, left, right, residual(6))
    assert region.spec.a_major is (Major.MN if a == "columns" else Major.K)
    assert region.spec.b_major is (Major.MN if b == "k by n" else Major.K)
    call = region.bind([left, right, residual(6)])
    assert (call.a.data_ptr(), call.b.data_ptr()) == (left.data_ptr(), right.data_ptr())
    assert region.any_rows
    assert fallbacks.counts() == {}


def test_gradients_of_a_linear_layer():
    check(lambda g, w: g @ w, tensor(*LEAD, N), weight())
    region = check(lambda g, x: g.flatten(0, 1).t() @ x.flatten(0, 1), tensor(*LEAD, N), x())
    assert (region.spec.a_major, region.spec.b_major) == (Major.MN, Major.MN)


def test_a_factor_out_of_heads():
    """The attention's result, in the order (B, H, S, D), before the out-projection."""

    def out_projection(o, w, residual):
        return F.linear(o.transpose(1, 2).flatten(2), w) + residual

    args = (tensor(B, 2, S, K // 2), weight(), residual())
    check(out_projection, *args)
    fallbacks.reset()
    in_order = tensor(B, S, 2, K // 2).transpose(1, 2)
    region = trace_region(out_projection, [in_order, *args[1:]])
    region.bind([in_order, *args[1:]])
    assert fallbacks.counts() == {}
    region.bind(args)
    assert [reason.split(":")[0] for _, reason in fallbacks.counts()] == ["o copied"]


def test_every_other_row_of_a_weight():
    def program(x, w):
        pairs = w.view(N, 2, K)
        return F.linear(x, pairs[:, 1])

    check(program, x(), tensor(2 * N, K))


@pytest.mark.parametrize("transposed", [True, False])
def test_batched(transposed):
    def program(a, b, bias, scale):
        scores = torch.bmm(a, b.transpose(1, 2) if transposed else b) * scale + bias
        return F.softmax(scores, -1), scores.amax(-1)

    b = tensor(B, N, K) if transposed else tensor(B, K, N)
    region = check(program, x(), b, row(), 0.5)
    assert region.spec.batched
    assert region.any_rows
    assert region.spec.b_major is (Major.K if transposed else Major.MN)
    assert region.bind([tensor(5, 9, K), tensor(5, *b.shape[1:]), row(), 1.0]).a.shape == (5, 9, K)


def test_one_batch_of_many_traced():
    region = trace_region(torch.bmm, [tensor(1, 1, K), tensor(1, K, N)])
    assert region.spec.batched
    assert region.any_rows
    assert region.accepts([tensor(4, 7, K), tensor(4, K, N)])


def test_scores_of_attention():
    def scores(q, k, mask):
        return F.softmax(q @ k.transpose(-1, -2) / math.sqrt(K) + mask, -1)

    region = check(scores, tensor(2, 3, 5, K), tensor(2, 3, N, K), tensor(5, N))
    assert region.spec.batched
    assert [o.strided for o in region.spec.operands] == [False]
    assert fallbacks.counts() == {}

    def causal(q, k):
        scores = q @ k.transpose(-1, -2)
        visible = torch.arange(q.shape[-2])[:, None] >= torch.arange(k.shape[-2])
        return F.softmax(scores.masked_fill(~visible, -math.inf), -1)

    region = check(causal, tensor(2, 3, 5, K), tensor(2, 3, N, K))
    assert region.spec.operands == ()
    assert region.any_rows


def test_a_batch_of_one_weight_is_no_batch():
    region = check(lambda x, w: torch.matmul(x, w), x(4, 5), tensor(K, N))
    assert not region.spec.batched
    region = check(lambda x, w: torch.bmm(x, w.expand(4, K, N)), x(4, 5), tensor(K, N))
    assert not region.spec.batched


def test_batched_modulation():
    region = check(
        lambda a, b, shift, bias, mask: torch.baddbmm(bias, a, b, alpha=2.0) * shift * mask,
        tensor(4, 5, K), tensor(4, K, N), tensor(4, 1, N), tensor(N), tensor(5, 1),
    )  # fmt: skip
    assert {o.name: (o.space, o.strided) for o in region.spec.operands} == {
        "shift": (Space.TILE, True),
        "bias": (Space.ROW, False),
        "mask": (Space.COLUMN, False),
    }


# --- operands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(S, N), (1, S, N), (B, 1, N)])
def test_a_tile_that_repeats_over_the_rows(shape):
    region = check(lambda x, w, p: F.linear(x, w) + p, x(), weight(), tensor(*shape))
    assert [(o.space, o.strided) for o in region.spec.operands] == [(Space.TILE, True)]
    assert region.any_rows
    (operand,) = region.bind([x(), weight(), tensor(*shape)]).operands
    assert operand.shape == (*LEAD, N)
    assert 0 in operand.stride()
    assert fallbacks.counts() == {}
    assert region.accepts(
        [x(7, 9), weight(), tensor(*(d if d == 1 else {B: 7, S: 9}[d] for d in shape[:-1]), N)]
    )


def test_position_and_modulation():
    def program(x, w, position, shift, scale):
        h = F.linear(x, w) + position
        return F.layer_norm(h, (N,)) * (1 + scale[:, None]) + shift[:, None]

    region = check(program, x(), weight(), tensor(S, N), tensor(B, N, seed=1), tensor(B, N, seed=2))
    assert all(o.strided for o in region.spec.operands)
    assert region.any_rows


def test_positions_of_rows_that_come_flat():
    def program(x, w, position):
        h = F.linear(x, w).unflatten(0, (-1, position.shape[0]))
        return h + position

    region = check(program, x(6), weight(), tensor(3, N))
    assert region.lead == (2, 3)
    assert not region.any_rows


def test_vectors_that_repeat_are_copied_and_counted():
    def program(x, w, per_sample, per_head):
        h = F.linear(x, w).unflatten(-1, (HEADS, D)) * per_head
        return h.flatten(-2) * per_sample

    region = check(program, x(), weight(), tensor(B, 1, 1), tensor(D))
    assert [o.space for o in region.spec.operands] == [Space.ROW, Space.COLUMN]
    assert region.notes == (
        "per_head is copied at each call: it varies over a part of the rows or columns that it is read for",
    )
    # The binding counts what becomes of a column with two strides.
    assert [reason.split(":")[0] for _, reason in fallbacks.counts()] == ["per_head copied"]


def test_one_number_in_a_tensor():
    def program(x, w, scale):
        h = F.linear(x, w) * scale
        return h, h.amax(-1, keepdim=True) / scale

    region = check(program, x(), weight(), tensor(1).abs() + 1)
    assert [o.space for o in region.spec.operands] == [Space.ROW, Space.COLUMN]
    tile, column = region.bind([x(), weight(), tensor(1)]).operands
    assert (tile.shape, tile.stride(), column.shape) == ((N,), (0,), LEAD)


def test_transposed_operand():
    region = check(lambda x, w, r: F.linear(x, w) + r.t(), x(6), weight(), tensor(N, 6))
    (operand,) = region.bind([x(6), weight(), tensor(N, 6)]).operands
    assert operand.stride() == (1, 6)


def test_halves_of_an_operand():
    def backward(gradient, w, h):
        gate, up = h.chunk(2, -1)
        d = F.linear(gradient, w)
        return (d * up * torch.sigmoid(gate)).float(), d * F.silu(gate)

    region = check(backward, x(), weight(), tensor(*LEAD, 2 * N))
    assert len(region.spec.operands) == 2
    assert region.any_rows
    assert fallbacks.counts() == {}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integers_and_bools(dtype):
    tile, column = (tensor(*LEAD, N).abs() * 3).to(dtype), (tensor(*LEAD, 1).abs() * 3).to(dtype)
    region = check(lambda x, w, t, c: F.linear(x, w) * t + (c > 0), x(), weight(), tile, column)
    assert [o.dtype.value for o in region.spec.operands] == [str(dtype).removeprefix("torch.")] * 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_operand(dtype):
    tile = residual().to(dtype)
    region = trace_region(lambda x, w, t: F.linear(x, w) + t.float(), [x(), weight(), tile])
    y = fuse(lambda x, w, t: F.linear(x, w) + t.float())(x(), weight(), tile)
    exact = x().double() @ weight().double().t() + tile.double()
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    assert [o.dtype.value for o in region.spec.operands] == [str(dtype)[13:17]]


# --- results --------------------------------------------------------------------------------------------


def _strides_as_in_torch(fn, *args):
    y, expected = fuse(fn)(*args), fn(*args)
    assert y.shape == expected.shape
    assert y.stride() == expected.stride()
    torch.testing.assert_close(y.float(), expected.float(), rtol=2e-2, atol=2e-2)


def heads(x, w):
    return F.linear(x, w).unflatten(-1, (HEADS, D)).transpose(1, 2)


def heads_contiguous(x, w):
    return heads(x, w).contiguous()


def heads_as_batches(x, w):
    return heads(x, w).flatten(0, 1)


def query(x, w):
    return F.linear(x, w).unflatten(-1, (2, 2, D)).permute(2, 0, 3, 1, 4)[0]


def transposed(x, w):
    return F.linear(x, w).transpose(1, 2)


def transposed_contiguous(x, w):
    return F.linear(x, w).transpose(1, 2).contiguous()


def sequence_first(x, w):
    return F.linear(x, w).transpose(0, 1).contiguous()


def third_part(x, w):
    return F.linear(x, w).chunk(4, -1)[2]


def third_part_contiguous(x, w):
    return F.linear(x, w).chunk(4, -1)[2].contiguous()


def last_token(x, w):
    return F.linear(x, w)[:, -1]


def repeated_maximum(x, w):
    h = F.linear(x, w)
    return h.amax(-1, keepdim=True).expand(h.shape)


def transposed_maximum(x, w):
    return F.linear(x, w).amax(-1).t()


@pytest.mark.parametrize(
    "fn, head_size, own",
    [
        (heads, None, False),
        (heads_contiguous, D, False),
        (heads_as_batches, D, False),
        (query, None, False),
        (transposed, None, False),
        (transposed_contiguous, None, True),
        (sequence_first, None, True),
        (third_part, None, False),
        (third_part_contiguous, D, False),
        (last_token, None, False),
        (repeated_maximum, None, False),
        (transposed_maximum, None, False),
    ],
)
def test_results_lie_as_in_torch(fn, head_size, own):
    _strides_as_in_torch(fn, x(), weight())
    region = trace_region(fn, [x(), weight()])
    (output,) = region.spec.outputs
    assert output.heads == head_size
    assert output.strided is (own or head_size is not None)
    check(lambda x, w: fn(x, w).float(), x(), weight())


def test_query_key_and_value():
    def project(x, w, b):
        qkv = F.linear(x, w, b).unflatten(-1, (3, HEADS, D))
        return tuple(t.transpose(1, 2) for t in qkv.unbind(2))

    region = check(project, x(), tensor(3 * N, K), tensor(3 * N))
    assert len(region.spec.outputs) == 1
    assert region.any_rows

    def stored(x, w, b):
        return tuple(t.contiguous() for t in project(x, w, b))

    check(stored, x(), tensor(3 * N, K), tensor(3 * N))
    fallbacks.reset()
    assert all(t.is_contiguous() for t in fuse(stored)(x(), tensor(3 * N, K), tensor(3 * N)))
    assert [(reason.split(":")[0], count) for (_, reason), count in fallbacks.counts().items()] == [
        ("a result copied", 3)
    ]


def test_side_by_side_in_one_tensor():
    def both(x, w, r):
        h = F.linear(x, w)
        return torch.cat([h, (h * r)], -1).float(), torch.stack([h.relu(), h.tanh()], 1).float()

    region = check(both, x(), weight(), residual())
    assert len(region.spec.outputs) == 4
    joined, stacked = fuse(both)(x(), weight(), residual())
    assert joined.is_contiguous()
    assert stacked.shape == (B, 2, S, N)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_results_of_every_dtype(dtype):
    def program(x, w):
        h = (F.linear(x, w) * 20).round().clamp(0, 100)
        return (h > 9) if dtype is torch.bool else h.to(dtype)

    args = (x(), weight())
    exact = program(*(t.double() for t in args))
    y = fuse(program)(*args)
    assert y.dtype is dtype
    torch.testing.assert_close(y.double(), exact.double(), rtol=0, atol=0)
