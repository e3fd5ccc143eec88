"""What single named ops do at the edges of their values and with their own options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, ShapeError
from comfuse.generator import catalog
from comfuse.ops import (
    fused_gated_gemm,
    fused_gemm_colsum,
    fused_gemm_logsumexp,
    fused_gemm_quantize,
    fused_gemm_softmax,
)
from tests.ops.cases import activate

N, K = 48, 32


def factors(*lead: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(*lead, K).bfloat16(), torch.randn(N, K).bfloat16()


def biased(bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factors whose product is zero, so that the logits are the bias."""
    return torch.zeros(3, K).bfloat16(), torch.zeros(N, K).bfloat16(), bias


class TestSoftmax:
    @pytest.mark.parametrize("shape", [(2, 6, N), (6, N), (1, 6, N), (2, 1, N), (N,), (12, N)])
    @pytest.mark.parametrize("grad", [False, True])
    def test_a_bool_mask_keeps(self, shape: tuple[int, ...], grad: bool) -> None:
        x, weight = factors(2, 6)
        mask = torch.rand(shape) < 0.7
        mask[..., 0] = True
        y = fused_gemm_softmax(x.requires_grad_(grad), weight, scale=0.5, mask=mask)
        z = 0.5 * (x.double() @ weight.double().t())
        spread = mask.view(2, 6, N) if shape == (12, N) else mask
        wanted = torch.softmax(z.masked_fill(~spread, -torch.inf), -1)
        assert (y[~spread.expand_as(y)] == 0).all()
        torch.testing.assert_close(y.double(), wanted, rtol=2e-2, atol=1e-3)

    @pytest.mark.parametrize("grad", [False, True])
    def test_rows_that_have_no_softmax_are_nan(self, grad: bool) -> None:
        x, weight = factors(4)
        mask = torch.zeros(4, N)
        mask[0] = -torch.inf
        mask[1, 3] = torch.inf
        mask[2, 5] = torch.nan
        y = fused_gemm_softmax(x.requires_grad_(grad), weight, mask=mask)
        assert y.isnan().all(-1).tolist() == [True, True, True, False]


@pytest.mark.parametrize("grad", [False, True])
def test_logsumexp_of_infinities(grad: bool) -> None:
    for value, wanted in ((-torch.inf, -torch.inf), (torch.inf, torch.inf), (torch.nan, torch.nan)):
        bias = torch.full((N,), -torch.inf)
        bias[3] = value
        lse = fused_gemm_logsumexp(*biased(bias.requires_grad_(grad)))
        assert torch.equal(lse.nan_to_num(7.0), torch.full((3,), wanted).nan_to_num(7.0))


class TestQuantize:
    def test_is_torch_s_own_rounding(self) -> None:
        x, weight = factors(5, 7)
        q, scale = fused_gemm_quantize(x, weight)
        y = x.float() @ weight.float().t()
        wanted = y.abs().amax(-1, keepdim=True) / 448
        assert (q.shape, scale.shape) == ((5, 7, N), (5, 7, 1))
        torch.testing.assert_close(scale, wanted)
        ratio = (y / scale).double()
        # 1 / scale moves a value by a few units of float32, which matters only where it was between two.
        steps = (q.double() - (ratio.float()).to(torch.float8_e4m3fn).double()).abs()
        assert (steps <= ratio.abs() * 2.0**-3).all()
        assert (steps > 0).float().mean() < 1e-3
        assert q.float().abs().amax(-1).eq(448).all()

    def test_e5m2(self) -> None:
        x, weight = factors(6)
        q, scale = fused_gemm_quantize(x, weight, dtype=torch.float8_e5m2)
        assert q.dtype is torch.float8_e5m2
        y = x.double() @ weight.double().t()
        assert ((q.double() * scale - y).norm() / y.norm()) < 2.0**-3
        assert q.float().abs().amax(-1).eq(57344).all()

    def test_rows_at_the_edge(self) -> None:
        rows = torch.stack([torch.zeros(N), torch.full((N,), 1e-44), torch.ones(N), torch.ones(N)])
        rows[2, 4], rows[3, 5] = torch.inf, torch.nan
        scales, values = [], []
        for row in rows:
            q, scale = fused_gemm_quantize(*biased(row))
            scales.append(scale[0, 0])
            values.append(q[0].float())
        assert [s.item() for s in scales[:3]] == [1.0, 1.0, torch.inf]
        assert torch.equal(values[0], torch.zeros(N))
        assert torch.equal(values[1], torch.zeros(N))
        assert values[2].isnan().sum() == 1
        assert values[2].nan_to_num(0.0).eq(0).all()
        assert scales[3].isnan()
        assert values[3].isnan().all()

    def test_weights_need_a_norm(self) -> None:
        x, weight = factors(4)
        with pytest.raises(ArgumentError, match="norm_weight is given; allowed: None, as there is no norm"):
            fused_gemm_quantize(x, weight, norm_weight=torch.ones(N))
        with pytest.raises(
            ArgumentError, match="norm_bias is given; allowed: None, as the norm is 'rmsnorm'"
        ):
            fused_gemm_quantize(x, weight, norm="rmsnorm", norm_bias=torch.ones(N))


class TestGated:
    @pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh", "relu", "sigmoid"])
    @pytest.mark.parametrize("grad", [False, True])
    def test_layouts_are_the_same(self, activation: str | None, grad: bool) -> None:
        x, gate = factors(2, 6)
        up = torch.randn(N, K).bfloat16()
        gate_bias, up_bias = torch.randn(N), torch.randn(N)
        x.requires_grad_(grad)
        y = fused_gated_gemm(x, gate, up, gate_bias, up_bias, activation)
        stacked = torch.cat([gate, up]), None, torch.cat([gate_bias, up_bias]), None
        turns = torch.stack([gate, up], 1).flatten(0, 1), torch.stack([gate_bias, up_bias], 1).flatten()
        interleaved = turns[0], None, turns[1], None
        assert torch.equal(fused_gated_gemm(x, *stacked, activation), y)
        assert torch.equal(fused_gated_gemm(x, *stacked, activation, "stacked"), y)
        assert torch.equal(fused_gated_gemm(x, *interleaved, activation, "interleaved"), y)
        z = activate(x.double() @ gate.double().t() + gate_bias, activation)
        wanted = z * (x.double() @ up.double().t() + up_bias)
        assert (y.double() - wanted).norm() < 2.0**-7 * wanted.norm()

    def test_errors(self) -> None:
        x, weight = factors(4)
        with pytest.raises(ShapeError, match=r"weight_gate is of shape \(47, 32\); allowed: an even first"):
            fused_gated_gemm(x, weight[:-1])
        with pytest.raises(ShapeError, match=r"bias_gate is of shape \(5,\); allowed: an even first"):
            fused_gated_gemm(x, weight, bias_gate=torch.zeros(5))
        with pytest.raises(ShapeError, match=r"bias_gate is of shape \(23,\); allowed: \(24,\)"):
            fused_gated_gemm(x, weight, bias_gate=torch.zeros(46))
        with pytest.raises(
            ArgumentError, match="weight_up is given; allowed: None, as the layout is 'stacked'"
        ):
            fused_gated_gemm(x, weight, weight, layout="stacked")
        with pytest.raises(
            ArgumentError, match="bias_up is given; allowed: None, as the layout is 'stacked'"
        ):
            fused_gated_gemm(x, weight, bias_up=torch.zeros(24))
        with pytest.raises(ArgumentError, match="weight_up is of type NoneType"):
            fused_gated_gemm(x, weight, layout="separate")
        with pytest.raises(ArgumentError, match="layout is 'beside'; allowed: None, 'separate', 'stacked'"):
            fused_gated_gemm(x, weight, layout="beside")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="weight_gate is of type int"):
            fused_gated_gemm(x, 3)  # type: ignore[arg-type]
        with pytest.raises(
            ShapeError, match=r"weight_up is of shape \(40, 32\); allowed: weight_gate's shape"
        ):
            fused_gated_gemm(x, weight, weight[:40])


class TestColumnSums:
    @pytest.mark.parametrize("activation", catalog.BACKWARDS)
    @pytest.mark.parametrize("grad", [False, True])
    def test_the_backward_of_a_layer(self, activation: str, grad: bool) -> None:
        """activation(h @ w1.T + b1) @ w2.T, against autograd."""
        torch.manual_seed(0)
        h, w1, b1 = torch.randn(12, 8).double(), torch.randn(N, 8).double(), torch.randn(N).double()
        w2, towards = torch.randn(K, N).bfloat16(), torch.randn(3, 4, K).bfloat16()
        b1.requires_grad_()
        pre = (h @ w1.t() + b1).view(3, 4, N)
        pre.retain_grad()
        out = activate(pre, activation) @ w2.double().t()
        out.backward(towards.double())
        y, sums = fused_gemm_colsum(
            towards.requires_grad_(grad), w2.t(), None, pre.detach().float(), activation
        )
        assert (y.dtype, sums.dtype) == (torch.bfloat16, torch.float32)
        assert (y.double() - pre.grad).norm() < 2.0**-7 * pre.grad.norm()
        assert (sums.double() - b1.grad).norm() < (2.0**-7 if grad else 2.0**-16) * b1.grad.norm()

    def test_no_rows(self) -> None:
        x, weight = factors(0)
        y, sums = fused_gemm_colsum(x, weight)
        assert y.shape == (0, N)
        assert torch.equal(sums, torch.zeros(N))

    def test_errors(self) -> None:
        x, weight = factors(4)
        pre: Any = torch.zeros(4, N)
        with pytest.raises(ArgumentError, match="activation is None; allowed: a value where pre_activation"):
            fused_gemm_colsum(x, weight, pre_activation=pre)
        with pytest.raises(ArgumentError, match="pre_activation is None; allowed: a value where activation"):
            fused_gemm_colsum(x, weight, activation="gelu")
        with pytest.raises(ArgumentError, match="activation is 'tanh'; allowed: None, 'relu', 'gelu'"):
            fused_gemm_colsum(x, weight, pre_activation=pre, activation="tanh")


def test_a_linear_layer_s_own_gradients() -> None:
    """grad @ w, whose B is contiguous along N, is the same op with the weight turned."""
    torch.manual_seed(0)
    grad, w = torch.randn(6, K).bfloat16(), torch.randn(K, N).bfloat16()
    y, _ = fused_gemm_colsum(grad, w.t())
    assert torch.equal(y, F.linear(grad.float(), w.t().float()).bfloat16())
    assert not fallbacks.counts()
