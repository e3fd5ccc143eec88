"""Reductions over groups, over rows and over everything, and what reads them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import comfuse.ops
from comfuse.frontend import TraceError, calls, fuse, trace_region
from comfuse.generator.spec import Space
from tests.frontend.support import LEAD, N, check, ops, residual, row, tensor, weight, x

B, S = LEAD


# --- groups ---------------------------------------------------------------------------------------------


def test_norm_of_each_head():
    def qk_norm(x, w, g):
        q = F.linear(x, w).unflatten(-1, (4, -1))
        return F.rms_norm(q, (N // 4,), g, 1e-6).transpose(1, 2)

    region = check(qk_norm, x(), weight(), tensor(N // 4))
    assert region.spec.group == 4
    assert "group_sumsq" in ops(region) or "group_sum" in ops(region)
    assert region.any_rows


def test_layer_norm_and_softmax_of_groups():
    def program(x, w):
        h = F.linear(x, w).unflatten(-1, (2, -1))
        return F.layer_norm(h, (N // 2,)), F.softmax(h, -1), torch.logsumexp(h, -1), h.var(-1)

    region = check(program, x(), weight())
    assert region.spec.group == N // 2
    assert region.any_rows


def test_scales_of_blocks_across_rows():
    """Blocks of eight neighbours, wherever the rows end."""

    def quantise(x, w):
        blocks = F.linear(x, w).float().reshape(-1, 8)
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return (blocks / scale).round().view(B, S, N), scale.view(B, S, N // 8)

    region = check(quantise, x(), weight())
    assert region.spec.group == 8
    assert region.spec.outputs[1].node == next(
        i for i, n in enumerate(region.spec.nodes) if n.name == "scale"
    )


def test_reductions_of_groups():
    def program(x, w):
        peaks = F.linear(x, w).unflatten(-1, (4, 4)).amax(-1)
        return peaks, peaks.sum(-1), peaks.amax(), peaks.mean(-1, keepdim=True)

    check(program, x(), weight())


def test_values_that_are_the_same_within_a_group():
    """However they came to vary in the kernel: each counts once."""

    def program(x, w, per_head, per_row):
        peaks = F.linear(x, w).unflatten(-1, (4, 4)).amax(-1)
        scaled = peaks * per_head + torch.arange(4)
        return scaled.sum(-1), scaled.mean(), (peaks * per_row).sum(-1), scaled

    check(program, x(), weight(), tensor(4), tensor(B, S, 1))


def test_values_that_repeat_over_columns():
    def program(x, w):
        h = F.linear(x, w)
        return ((torch.zeros(N, dtype=h.dtype) + 1) * h.amax(-1, keepdim=True)).sum(-1)

    check(program, x(), weight())


def test_integer_quotients():
    def program(x, w, t):
        h, t = F.linear(x, w), t.clamp(-2000, 2000)
        return h * (t // 41) + h * torch.div(t, -7, rounding_mode="trunc") + h * (t % 9) + h * (t // -41)

    check(program, x(), weight(), (41 * torch.arange(-48, 48)).view(B, S, N))


def test_group_norm():
    region = check(lambda x, w, g, b: F.group_norm(F.linear(x, w), 4, g, b), x(6), weight(), row(1), row(2))
    assert region.spec.group == 4
    assert region.any_rows
    check(lambda x, w: F.group_norm(F.linear(x, w), 1), x(6), weight())


# --- columns and everything -----------------------------------------------------------------------------


def test_gradients_of_bias_and_input():
    def backward(gradient, w, h):
        d = torch.ops.aten.gelu_backward(F.linear(gradient, w), h)
        return d, d.sum((0, 1))

    region = check(backward, x(), weight(), residual())
    assert region.any_rows
    assert len(region.kernels) == 1
    assert fuse(backward)(x(), weight(), residual())[1].shape == (N,)


def test_backward_of_layer_norm():
    def backward(gradient, w, h, mean, rstd, g, b):
        return torch.ops.aten.native_layer_norm_backward(
            F.linear(gradient, w), h, [N], mean, rstd, g, b, [True, True, True]
        )

    region = check(
        backward,
        x(),
        weight(),
        residual(),
        tensor(B, S, 1),
        tensor(B, S, 1).abs(),
        row(),
        row(9),
        tolerance=1e-5,
    )
    assert {"col_sum"} <= set(ops(region))
    assert len(region.kernels) == 1
    assert region.any_rows


def test_relu_then_one_number():
    region = check(lambda x, w, b: F.relu(F.linear(x, w, b)).sum(), x(), weight(), row())
    assert [(o.node, o.strided) for o in region.spec.outputs] == [(len(region.spec.nodes) - 1, False)]
    assert fuse(lambda x, w: F.linear(x, w).sum())(x(), weight()).shape == ()


def test_means_do_not_build_in_the_number_of_rows():
    def program(x, w):
        h = F.linear(x, w).flatten(0, 1)
        return h.mean(0), h.var(0), h.std(), h.mean(), h.amax(-1).mean()

    region = check(program, x(), weight(), tolerance=1e-5)
    assert region.any_rows
    for lead in ((4, 5), (1, 2)):
        args = (x(*lead), weight())
        for y, z in zip(fuse(program)(*args), program(*(t.double() for t in args)), strict=True):
            torch.testing.assert_close(y.double(), z, rtol=2e-2, atol=2e-2)


def test_reductions_of_reductions():
    def program(x, w):
        h = F.linear(x, w)
        return (
            h.sum((0, 1)).sum(),
            h.amax((0, 1)).amax(),
            h.amax(-1).sum(),
            h.sum(-1).prod(),
            h.square().sum(-1).amax(),
        )

    check(program, x(), weight(), tolerance=1e-5)


# --- what reads them ------------------------------------------------------------------------------------


def test_batch_norm_in_training_is_two_kernels():
    def program(x, w, g, b):
        return F.relu(F.batch_norm(F.linear(x, w), None, None, g, b, training=True))

    region = check(program, x(6), weight(), row(1), row(2), tolerance=1e-5)
    assert [len(spec.outputs) for spec in region.kernels] == [2, 1] or len(region.kernels) == 2
    assert region.any_rows
    y = fuse(program)(x(9), weight(), row(1), row(2))
    exact = program(*(t.double() for t in (x(9), weight(), row(1), row(2))))
    torch.testing.assert_close(y.double(), exact, rtol=2e-2, atol=2e-2)


def test_batch_norm_is_one_kernel_where_the_gpu_holds_all_rows(monkeypatch):
    """The choice is made for each call, by its rows and its GPU."""

    def program(x, w, g, b):
        return F.batch_norm(F.linear(x, w), None, None, g, b, training=True)

    monkeypatch.setattr(calls, "calibrated_gpu", lambda index: ("h200", "h200:4")[index])
    region = trace_region(program, (x(6), weight(), row(1), row(2)))
    cpu, large, small = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
    for rows, kernels in ((6, (2, 1, 1)), (4 * 128 + 1, (2, 1, 2)), (132 * 128 + 1, (2, 2, 2))):
        args = (x(rows), weight(), row(1), row(2))
        call = region.call(args)
        assert tuple(len(call.steps(device)) for device in (cpu, large, small)) == kernels
        assert (call.plain(large) is None) == (kernels[1] > 1)
        assert call.plain(cpu) is None
    (step,) = region.call((x(6), weight(), row(1), row(2))).steps(large)
    (y,) = comfuse.ops.region(step.text, *region.bind((x(6), weight(), row(1), row(2))))
    exact = program(*(t.double() for t in (x(6), weight(), row(1), row(2))))
    torch.testing.assert_close(y.double(), exact, rtol=2e-2, atol=2e-2)


def test_batch_norm_of_channels_in_the_middle():
    region = check(
        lambda x, w: F.batch_norm(F.linear(x, w).transpose(1, 2), None, None, training=True),
        x(), weight(), tolerance=1e-5,
    )  # fmt: skip
    assert len(region.kernels) == 2


def test_batch_norm_at_inference_is_one():
    region = check(
        lambda x, w, m, v, g, b: F.batch_norm(F.linear(x, w), m, v, g, b),
        x(6), weight(), row(1), row(2).abs(), row(3), row(4),
    )  # fmt: skip
    assert len(region.kernels) == 1


def test_two_batch_norms_are_three_kernels():
    def norm(h):
        return F.batch_norm(h, None, None, training=True)

    region = check(lambda x, w: norm(norm(F.linear(x, w)).relu()), x(6), weight(), tolerance=1e-4)
    assert len(region.kernels) == 3


def test_softmax_over_the_rows():
    region = check(lambda x, w: F.softmax(F.linear(x, w), 0), x(6), weight(), tolerance=1e-5)
    assert len(region.kernels) == 3
    check(lambda x, w: torch.logsumexp(F.linear(x, w), 0), x(6), weight(), tolerance=1e-5)


def test_divided_by_the_norm_of_everything():
    def program(x, w, r):
        h = F.linear(x, w)
        y = h / h.norm()
        return y, (y + r).amax(-1)

    region = check(program, x(), weight(), residual(), tolerance=1e-5)
    assert len(region.kernels) == 2
    y, _ = fuse(program)(x(4, 5), weight(), residual(4, 5))
    torch.testing.assert_close(y.double().norm(), torch.tensor(1.0).double(), rtol=1e-2, atol=1e-2)


def test_results_of_several_kernels_in_their_own_layouts():
    def program(x, w):
        h = F.batch_norm(F.linear(x, w), None, None, training=True)
        return h.t().contiguous().float(), h.unflatten(-1, (4, 4)).transpose(0, 1).contiguous().float()

    check(program, x(6), weight(), tolerance=1e-5)


# --- losses ---------------------------------------------------------------------------------------------

TARGETS = torch.tensor([1, 5, -100, 3, 0, 15])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction, weighted):
    def loss(x, w, target, class_weight):
        class_weight = class_weight if weighted else None
        return F.cross_entropy(F.linear(x, w), target, class_weight, reduction=reduction)

    region = check(loss, x(6), weight(), TARGETS, row().abs())
    assert "row_softmax" in ops(region)
    assert (region.spec.operands[0].dtype.value, region.spec.operands[0].space) == ("int64", Space.COLUMN)


def test_cross_entropy_of_a_sequence_with_smoothing():
    def loss(x, w, target):
        logits = F.linear(x, w)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=3, label_smoothing=0.1)

    region = check(loss, x(), weight(), TARGETS.abs().clamp(max=N - 1).view(B, S))
    assert region.any_rows


def test_other_losses():
    def losses(x, w, target, mask):
        h = F.linear(x, w)
        return (
            F.mse_loss(h, target),
            F.l1_loss(h, target, reduction="none").mean(-1),
            F.binary_cross_entropy_with_logits(h, mask.to(h.dtype)),
            F.kl_div(F.log_softmax(h, -1), F.softmax(target, -1), reduction="none").sum(-1),
        )

    check(losses, x(), weight(), residual(), residual() > 0)


def test_the_rows_are_read_once_for_a_picked_logarithm():
    region = check(
        lambda x, w, t: F.linear(x, w).log_softmax(-1).gather(-1, t[..., None]).squeeze(-1),
        x(), weight(), torch.tensor([[1, 5, 2], [3, 0, 15]]),
    )  # fmt: skip
    reductions = [node for node in region.spec.nodes if node.op.startswith("row_")]
    gemm = next(i for i, node in enumerate(region.spec.nodes) if node.op == "gemm")
    assert all(
        gemm in (r.inputs[0], *region.spec.nodes[r.inputs[0]].inputs)
        for r in reductions
        if r.op != "row_index"
    )


def test_masked_rows_are_not_a_number():
    """A row of nothing but minus infinity has no softmax, as in torch."""
    mask = torch.zeros(6, N)
    mask[2] = -math.inf
    mask[3, :5] = -math.inf
    y = fuse(lambda x, w, m: F.softmax(F.linear(x, w) + m, -1))(x(6), weight(), mask)
    assert y[2].isnan().all()
    assert not y[[0, 1, 3, 4, 5]].isnan().any()


def test_cosine_similarity_of_rows():
    region = check(lambda x, w, r: F.cosine_similarity(F.linear(x, w), r, -1), x(), weight(), residual())
    assert region.any_rows


# --- reductions of arguments alone ----------------------------------------------------------------------


def test_arguments_are_reduced_along_their_rows():
    def backward_of_softmax(gradient, w, y):
        d = F.linear(gradient, w)
        return y * (d - (d * y).sum(-1, keepdim=True)), d + y.amax(-1, keepdim=True), d - F.softmax(y, -1)

    region = check(backward_of_softmax, x(), weight(), residual())
    assert region.any_rows


def test_arguments_in_another_order_are_not():
    def transposed(x, w, r):
        return F.linear(x, w) + F.layer_norm(r, r.shape[-1:]).t()

    with pytest.raises(TraceError, match="arguments alone"):
        trace_region(transposed, [x(N), weight(), residual(N)])


@pytest.mark.parametrize("m", [6, N])
def test_arguments_reduced_along_what_become_their_rows(m):
    check(lambda x, w, r: F.linear(x, w) + F.softmax(r, 0).t(), x(m), weight(), tensor(N, m))
