"""Two products that share their left factor: gated units and their relatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from comfuse import fallbacks
from comfuse.frontend import fuse, trace_region
from tests.frontend.support import LEAD, K, N, check, ops, residual, row, tensor, weight, x

WIDE = tensor(2 * N, K, seed=5)
WIDE_BIAS = tensor(2 * N, seed=6)


def separate(x, w, b):
    gate_weight, up_weight = w.chunk(2, 0)
    gate_bias, up_bias = b.chunk(2, 0)
    return F.silu(F.linear(x, gate_weight, gate_bias)) * F.linear(x, up_weight, up_bias)


def stacked(x, w, b):
    gate, up = F.linear(x, w, b).chunk(2, -1)
    return F.silu(gate) * up


def stacked_by_slices(x, w, b):
    h = F.linear(x, w, b)
    return F.silu(h[..., : h.shape[-1] // 2]) * h[..., h.shape[-1] // 2 :]


def stacked_by_a_view(x, w, b):
    h = F.linear(x, w, b).unflatten(-1, (2, -1))
    return F.silu(h[..., 0, :]) * h[..., 1, :]


def glu(x, w, b):
    return F.glu(F.linear(x, w, b))


def interleaved(x, w, b):
    h = F.linear(x, w, b)
    return F.silu(h[..., ::2]) * h[..., 1::2]


def interleaved_by_a_view(x, w, b):
    gate, up = F.linear(x, w, b).unflatten(-1, (-1, 2)).unbind(-1)
    return F.silu(gate) * up


def interleaved_weight(x, w, b):
    w, b = w.unflatten(0, (-1, 2)), b.unflatten(0, (-1, 2))
    return F.silu(F.linear(x, w[:, 0], b[:, 0])) * F.linear(x, w[:, 1], b[:, 1])


@pytest.mark.parametrize(
    "fn",
    [
        separate, stacked, stacked_by_slices, stacked_by_a_view, glu, interleaved, interleaved_by_a_view,
        interleaved_weight,
    ],
)  # fmt: skip
def test_two_products(fn):
    fallbacks.reset()
    region = check(fn, x(), WIDE, WIDE_BIAS)
    assert (region.spec.products, region.spec.n) == (2, N)
    assert region.any_rows
    call = region.bind([x(), WIDE, WIDE_BIAS])
    factors = [call.b, call.operands[0]]
    assert [tuple(b.shape) for b in factors] == [(N, K), (N, K)]
    assert {b.untyped_storage().data_ptr() for b in factors} == {WIDE.untyped_storage().data_ptr()}
    assert not any(reason.startswith("w ") for _, reason in fallbacks.counts())  # no copy of the weight


def test_two_weights():
    def program(x, gate, up, residual, g):
        h = F.silu(x @ gate.t()) * (x @ up.t()) + residual
        return h, F.rms_norm(h, (N,), g, 1e-6)

    region = check(program, x(), weight(), tensor(N, K, seed=8), residual(), row())
    assert region.spec.products == 2
    assert len(region.bind([x(), weight(), weight(), residual(), row()]).operands) == 1 + 2
    fused = fuse(program)
    for lead in ((2, 3), (5, 1)):
        y, _ = fused(x(*lead), weight(), tensor(N, K, seed=8), residual(*lead), row())
        assert y.shape == (*lead, N)


def test_the_same_product_twice_is_one():
    region = check(lambda x, w: F.linear(x, w).tanh() * F.linear(x, w), x(), weight())
    assert region.spec.products == 1
    assert ops(region).count("gemm") == 1


def test_work_before_the_split_is_done_on_both():
    def program(x, w, b, r, scale):
        h = (F.linear(x, w) + b) * scale + r
        gate, up = h.relu().chunk(2, -1)
        return gate * up, gate.amax(-1), up.sum(-1, keepdim=True)

    region = check(program, x(), WIDE, WIDE_BIAS, tensor(*LEAD, 2 * N), tensor(*LEAD, 1))
    assert region.spec.products == 2
    assert {o.name for o in region.spec.operands} == {"b", "scale", "r", "b_2", "r_2"}


def test_positions_count_the_columns_of_both():
    check(lambda x, w: F.glu(F.linear(x, w) * torch.arange(2 * N)), x(), WIDE)
    check(
        lambda x, w: (lambda h: h[..., ::2] * h[..., 1::2])(F.linear(x, w) + torch.arange(2 * N)), x(), WIDE
    )


@pytest.mark.parametrize("fn", [stacked, interleaved])
def test_what_was_split_is_returned_whole_too(fn):
    def program(x, w, b):
        h = F.linear(x, w, b)
        y = fn(x, w, b)
        return y.float(), h.float()

    region = check(program, x(), WIDE, WIDE_BIAS)
    _, h = fuse(program)(x(), WIDE, WIDE_BIAS)
    assert h.is_contiguous()
    assert h.shape == (*LEAD, 2 * N)
    assert len(region.spec.outputs) == 3


def test_a_part_that_is_only_returned_is_a_view():
    region = check(lambda x, w: tuple(F.linear(x, w).chunk(2, -1)), x(), WIDE)
    assert (region.spec.products, region.spec.n) == (1, 2 * N)


def test_backward_of_swiglu():
    def backward(gradient, w, h):
        gate, up = h.chunk(2, -1)
        d = F.linear(gradient, w)
        return torch.cat([torch.ops.aten.silu_backward(d * up, gate), d * F.silu(gate)], -1).float()

    region = check(backward, x(), weight(), tensor(*LEAD, 2 * N))
    assert len(region.spec.outputs) == 2
    assert not any(output.strided for output in region.spec.outputs)
    assert region.any_rows


def test_gates_in_heads():
    def program(x, w):
        gate, up = F.linear(x, w).chunk(2, -1)
        h = (torch.sigmoid(gate) * up).unflatten(-1, (4, -1))
        return F.rms_norm(h, (N // 4,)).transpose(1, 2).contiguous().float()

    region = check(program, x(), WIDE, tolerance=1e-5)
    assert (region.spec.group, region.spec.outputs[0].heads) == (4, 4)


def test_batched():
    def program(x, w):
        gate, up = torch.bmm(x, w).chunk(2, -1)
        return F.silu(gate) * up

    region = check(program, x(), tensor(LEAD[0], K, 2 * N))
    assert (region.spec.products, region.spec.batched) == (2, True)


def test_no_kernel_where_nothing_else_is_split():
    region = trace_region(lambda x, w: F.linear(x, w).chunk(2, -1)[0], [x(), WIDE])
    assert region.spec.products == 1
