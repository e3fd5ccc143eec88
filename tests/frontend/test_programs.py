"""Whole programs: the usual ones behind a GEMM, as people write them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from comfuse import frontend
from comfuse.generator.passes import normalize
from comfuse.generator.spec import DType, Space
from tests.frontend.support import LEAD, K, N, check, ops, residual, row, tensor, weight, x


def layer_norm(x, w, bias, residual, ln_weight, ln_bias):
    h = F.linear(x, w, bias) + residual
    return F.layer_norm(h, (h.shape[-1],), ln_weight, ln_bias, eps=1e-3)


@pytest.mark.parametrize("lead", [LEAD, (5,), (1,), (1, 7), (4, 1), (16,), (1, 1)])
def test_layer_norm(lead):
    region = check(layer_norm, x(*lead), weight(), row(1), residual(*lead), row(2), row(3))
    assert [(o.name, o.space) for o in region.spec.operands] == [
        ("bias", Space.ROW),
        ("residual", Space.TILE),
        ("ln_weight", Space.ROW),
        ("ln_bias", Space.ROW),
    ]
    assert {"h", "mean", "rstd", "y"} <= {node.name for node in region.spec.nodes}
    assert (region.spec.n, region.spec.k, region.spec.dtype) == (N, K, DType.BF16)
    assert region.any_rows


def test_layer_norm_by_hand():
    def by_hand(x, w, residual, g, b, eps):
        h = F.linear(x, w) + residual
        mean = h.mean(-1, keepdim=True)
        var = h.var(-1, keepdim=True, unbiased=False)
        return (h - mean) * torch.rsqrt(var + eps) * g + b

    region = check(by_hand, x(), weight(), residual(), row(), row(5), 1e-3)
    assert [o.name for o in region.spec.operands if o.space is Space.SCALAR] == ["eps"]


def test_layer_norm_without_affine():
    check(lambda x, w: F.layer_norm(F.linear(x, w), (N,)), x(), weight())


def test_two_layer_norms_and_two_stored():
    def twice(x, w, g):
        first = F.layer_norm(F.linear(x, w), (N,), g)
        return first, F.layer_norm(first.relu(), (N,))

    region = check(twice, x(), weight(), row())
    assert ops(region).count("row_welford") == 2
    assert [o.name for o in region.spec.outputs] == ["first", "y1"]


def rms_norm_by_hand(x, w, residual, g):
    h = F.linear(x, w) + residual
    y = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * g).to(x.dtype)


def test_rms_norm_by_hand():
    check(rms_norm_by_hand, x(), weight(), residual(), row())


def test_rms_norm_is_the_same_however_it_is_written():
    def of_torch(x, w, residual, g):
        h = F.linear(x, w) + residual
        return F.rms_norm(h, (N,), g, 1e-6)

    args = (x(), weight(), residual(), row())
    check(of_torch, *args)
    one, other = (normalize(frontend.trace(fn, *args)) for fn in (of_torch, rms_norm_by_hand))
    # torch's own adds eps as float32
    assert [(n.op, n.inputs) for n in one.nodes] == [(n.op, n.inputs) for n in other.nodes]


def test_gemma_block():
    def gemma(x, w, residual, post_norm, pre_norm):
        def norm(h, g):
            h = h.float()
            return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + g.float())

        h = residual + norm(F.linear(x, w), post_norm).to(x.dtype)
        return h, norm(h, pre_norm).to(x.dtype)

    region = check(gemma, x(), weight(), residual(), row(1), row(2), tolerance=1e-5)
    assert len(region.spec.outputs) == 2


def test_pre_norm_block_stores_both():
    def block(x, w, residual, g):
        h = residual + x @ w.t()
        return {"hidden": h, "normed": F.rms_norm(h, (N,), g, 1e-5)}

    region = check(block, x(), weight(), residual(), row())
    call = (x(), weight(), residual(), row())
    assert list(frontend.fuse(block)(*call)) == ["hidden", "normed"]
    assert region.bind(call).a is call[0]


@pytest.mark.parametrize("log", [False, True])
def test_softmax(log):
    def softmax(x, w, mask):
        scores = F.linear(x, w) * 0.25 + mask
        return (F.log_softmax if log else F.softmax)(scores, dim=-1, dtype=torch.float32)

    region = check(softmax, x(), weight(), residual())
    assert "row_softmax" in ops(region)
    assert region.spec.outputs[0].dtype is DType.FP32


def test_logsumexp_is_a_column():
    region = check(lambda x, w: torch.logsumexp(F.linear(x, w).float(), -1), x(), weight())
    assert [node.field for node in region.spec.nodes if node.op == "field"] == ["lse"]


@pytest.mark.parametrize("keepdim", [True, False])
def test_reduction_as_an_output(keepdim):
    def both(x, w):
        h = F.linear(x, w)
        return h, h.float().amax(dim=-1, keepdim=keepdim)

    check(both, x(), weight())


def test_quantise_by_row():
    def quantise(x, w):
        h = F.linear(x, w).float()
        scale = h.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
        return (h / scale).clamp(-448.0, 448.0), scale.squeeze(-1)

    check(quantise, x(), weight())


def test_column_statistics_without_keepdim():
    def statistics(x, w, scale):
        h = F.linear(x, w)
        total = h.sum(-1) * scale
        return h / total.unsqueeze(-1), total.tanh()

    region = check(statistics, x(), weight(), tensor(*LEAD, seed=9))
    assert [o.space for o in region.spec.operands] == [Space.COLUMN]


def test_adaptive_layer_norm():
    def adaptive(x, w, bias, gate, residual, shift, scale):
        h = residual + gate * F.linear(x, w, bias)
        y = F.layer_norm(h, (h.shape[-1],)) * (1 + scale) + shift
        return h, y

    region = check(adaptive, x(), weight(), row(), residual(), residual(), row(6), row(7))
    assert [o.space.value for o in region.spec.operands].count("tile") == 2


def test_mixed_dtypes_as_under_autocast():
    args = (
        x(),
        weight(),
        row(dtype=torch.float32),
        residual(dtype=torch.float32),
        row(5),
        row(6, torch.float32),
    )

    def program(x, w, bias, residual, g, b):
        h = F.linear(x, w).to(bias.dtype) + bias + residual
        return F.layer_norm(h, (N,), g.to(b.dtype), b).float()

    region = check(program, *args, tolerance=1e-5)
    assert [o.dtype.value for o in region.spec.operands] == ["fp32", "fp32", "bf16", "fp32"]
    assert region.spec.outputs[0].dtype is DType.FP32


def test_autocast_casts_a_and_b():
    def program(x, w, b):
        return F.relu(F.linear(x, w, b))

    args = [t.float() for t in (x(), weight(), row())]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        region = frontend.trace_region(program, args)
    assert region.spec.dtype is DType.BF16
    call = region.bind(args)
    assert (call.a.dtype, call.b.dtype) == (torch.bfloat16, torch.bfloat16)
    assert call.operands[0].dtype is torch.float32


def test_fp16():
    region = check(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), *(t.half() for t in (x(), weight(), row()))
    )  # fmt: skip
    assert region.spec.dtype is DType.FP16


@pytest.mark.parametrize(
    "product",
    [
        lambda x, w: F.linear(x, w),
        lambda x, w: x @ w.t(),
        lambda x, w: x @ w.T,
        lambda x, w: torch.matmul(x, w.transpose(0, 1)),
        lambda x, w: torch.einsum("bsk,nk->bsn", x, w),
        lambda x, w: torch.mm(x.flatten(0, 1), w.t()).view(*LEAD, N),
        lambda x, w: torch.addmm(torch.ones(N, dtype=x.dtype), x.view(-1, K), w.t()).unflatten(0, LEAD),
        lambda x, w: (x[None] @ w.t().contiguous()).squeeze(0),
    ],
)
def test_spellings_of_the_product(product):
    region = check(lambda x, w, r: F.gelu(product(x, w)) + r, x(), weight(), residual())
    assert region.any_rows is ("LEAD" not in product.__code__.co_names)


def test_addmm_scales():
    def program(x, w, b):
        return torch.addmm(b, x, w.t(), beta=0.5, alpha=3.0)

    check(program, x(6), weight(), row())
    region = check(lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.0), x(6), weight(), row())
    assert ops(region) == ["gemm"]


def test_rows_and_columns_do_not_mix_up_when_m_is_n():
    def program(x, w, per_row, per_column, r):
        h = x @ w.t()
        return (h + per_column) * h.sum(-1, keepdim=True) + r, h.sum(-1) + per_row

    region = check(program, x(N), weight(), tensor(N, seed=7), tensor(N, seed=8), residual(N))
    assert {o.name: o.space for o in region.spec.operands} == {
        "per_column": Space.ROW,
        "r": Space.TILE,
        "per_row": Space.COLUMN,
    }


def test_a_flat_result_of_a_batched_input():
    def program(x, w):
        h = F.relu(x.flatten(0, 1) @ w.t())
        return h, h.sum(-1), h.sum(-1, keepdim=True)

    check(program, x(), weight())


def test_operands_may_come_reshaped():
    def program(x, w, r, b, c):
        h = F.linear(x, w)
        return (h + r.view(*LEAD, N) + b.view(1, 1, N)) * c.view(*LEAD, 1) + b[None].expand(3, N)

    check(program, x(), weight(), tensor(6, N, seed=5), row(), tensor(6, seed=6))


def test_work_on_operands_alone_is_part_of_the_kernel():
    def program(x, w, g, r):
        return F.linear(x, w) * (1 + g.float()).rsqrt().abs() + torch.tanh(r * 2) * g

    check(program, x(), weight(), row().abs(), residual())


def test_a_tensor_used_twice_is_one_operand():
    region = check(lambda x, w, r: F.linear(x, w) * r + r, x(), weight(), residual())
    assert len(region.spec.operands) == 1


def test_one_tensor_as_two_arguments():
    shared = row()
    region = check(layer_norm, x(), weight(), shared, residual(), shared, shared)
    assert [o.name for o in region.spec.operands] == ["bias", "residual", "ln_weight", "ln_bias"]


def test_square_weight_used_as_its_own_residual():
    def program(x, w):
        return x @ w.t() + w

    square = tensor(K, K)
    region = check(program, tensor(K, K, seed=3), square)
    assert [(o.name, o.space) for o in region.spec.operands] == [("w", Space.TILE)]
    assert not region.any_rows


def test_mutations_of_intermediates():
    def program(x, w, r):
        h = F.linear(x, w)
        h += r
        h.mul_(2)
        F.relu(h, inplace=True)
        h[..., :] = h + 1
        return h

    check(program, x(), weight(), residual())


def test_an_output_returned_twice_is_stored_once():
    def program(x, w):
        h = F.relu(F.linear(x, w))
        return h, h, h.float()

    region = check(program, x(), weight())
    assert [o.dtype for o in region.spec.outputs] == [DType.BF16, DType.FP32]


def test_meta_and_fake_inputs_give_the_same_spec():
    from torch._subclasses import FakeTensorMode

    real = (x(), weight(), row(1), residual(), row(2), row(3))
    meta = [t.to("meta") for t in real]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in real]
    assert frontend.trace(layer_norm, *real) == frontend.trace(layer_norm, *meta)
    assert frontend.trace(layer_norm, *real) == frontend.trace(layer_norm, *fake)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch knows no CUDA tensors")
@pytest.mark.parametrize("name", ["masked_softmax", "swiglu_norm", "norm_to_fp8", "gelu_backward", "queries"])
def test_tensors_on_a_gpu_give_the_same_spec(name):
    from torch._subclasses import FakeTensorMode

    from tests.frontend.test_examples import arguments, function

    def on_gpu(x):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    args = arguments(name)
    with FakeTensorMode():
        fake = [on_gpu(a) if isinstance(a, torch.Tensor) else a for a in args]
    one, other = (frontend.trace(function(name), *inputs) for inputs in (args, fake))
    # torch's own rms_norm takes eps in another precision there
    assert [(n.name, n.op, n.inputs) for n in one.nodes] == [(n.name, n.op, n.inputs) for n in other.nodes]
    assert (one.operands, one.outputs) == (other.operands, other.outputs)


def test_floats_are_scalars_where_their_value_is_not_needed():
    def scaled(x, w, alpha, beta):
        return F.linear(x, w) * alpha + beta

    region = check(scaled, x(), weight(), 2.0, 0.5)
    assert [o.name for o in region.spec.operands] == ["alpha", "beta"]
    assert region.bind([x(), weight(), 3.0, 4.0]).scalars == [3.0, 4.0]

    def decides(x, w, alpha):
        return F.linear(x, w) * alpha if alpha > 1 else F.linear(x, w)

    region = check(decides, x(), weight(), 2.0)
    assert region.spec.operands == ()


def test_a_zero_dimensional_tensor_is_a_scalar():
    region = check(lambda x, w, t: F.linear(x, w) / t, x(), weight(), torch.tensor(4.0))
    assert region.spec.operands[0].space is Space.SCALAR


def test_names_are_the_users():
    def program(x, w, scale):
        x = F.linear(x, w)
        x = x * scale
        hidden = (
            x.float()
            + 1.0
        )  # fmt: skip
        total: torch.Tensor = hidden.sum(-1, keepdim=True)
        return hidden / total

    region = check(program, x(), weight(), row())
    names = [node.name for node in region.spec.nodes]
    assert {"x", "x_2", "hidden", "total", "y", "scale"} <= set(names)
    assert len(set(names)) == len(names)


def test_traced_specs_survive_their_text_and_the_passes():
    from comfuse.generator.spec import FusedSpec

    spec = frontend.trace(layer_norm, x(), weight(), row(1), residual(), row(2), row(3))
    assert FusedSpec.parse(spec.text()) == spec
    normalize(spec)
