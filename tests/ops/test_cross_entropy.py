from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, DTypeError, ShapeError
from comfuse.ops import fused_gemm_cross_entropy

N, K = 51, 32


def inputs(*lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(*lead, K).bfloat16(), torch.randn(N, K).bfloat16()
    return x, weight, torch.randint(0, N, lead), torch.randn(N)


def reference(x: Tensor, weight: Tensor, target: Tensor, bias: Any = 0, **options: Any) -> Tensor:
    z = x.double() @ weight.double().t() + bias
    loss = F.cross_entropy(z.reshape(-1, N), target.reshape(-1).long(), **options)
    return loss.view(target.shape) if options.get("reduction") == "none" else loss


@pytest.mark.parametrize("lead", [(7,), (2, 3), (2, 1, 3), ()])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
def test_numbers(lead: tuple[int, ...], reduction: Any, integer: torch.dtype) -> None:
    x, weight, target, bias = inputs(*lead)
    loss = fused_gemm_cross_entropy(x, weight, target.to(integer), bias, reduction=reduction)
    wanted = reference(x, weight, target, bias.double(), reduction=reduction)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
    assert not fallbacks.counts()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 3, -1, N + 7])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_rows(ignore_index: int, reduction: Any, grad: bool) -> None:
    x, weight, target, _ = inputs(8)
    target[2] = target[5] = ignore_index
    x.requires_grad_(grad)
    loss = fused_gemm_cross_entropy(x, weight, target, ignore_index=ignore_index, reduction=reduction)
    kept = target.masked_fill(target == ignore_index, -100)
    wanted = reference(x, weight, kept, reduction=reduction)
    torch.testing.assert_close(
        loss.detach().double(), wanted.detach(), rtol=1e-2 if grad else 1e-5, atol=1e-2
    )


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "value, got",
    [(1.5, "of type float"), (2.0, "of type float"), (2**24, "16777216"), (-(2**24), "-16777216")],
)
def test_ignore_index_is_told_from_its_neighbours(value: Any, got: str, grad: bool) -> None:
    x, weight, target, _ = inputs(6)
    with pytest.raises(ArgumentError, match=f"ignore_index is {got}; allowed: an int"):
        fused_gemm_cross_entropy(x.requires_grad_(grad), weight, target, ignore_index=value)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_ignore_index(sign: int) -> None:
    """No other is rounded to it."""
    x, weight, target, _ = inputs(4)
    target[:3] = sign * torch.tensor([2**24 - 1, 2**24, 2**24 + 1])
    loss = fused_gemm_cross_entropy(x, weight, target, ignore_index=sign * (2**24 - 1), reduction="none")
    assert loss[0] == 0
    assert loss[1:3].isnan().all()


@pytest.mark.parametrize("grad", [False, True])
def test_targets_that_are_no_class(grad: bool) -> None:
    x, weight, target, _ = inputs(6)
    target[1], target[4] = N, -1
    loss = fused_gemm_cross_entropy(x.requires_grad_(grad), weight, target, reduction="none")
    assert loss.isnan().tolist() == [False, True, False, False, True, False]
    assert fused_gemm_cross_entropy(x, weight, target).isnan()


def test_nothing_but_ignored_rows() -> None:
    x, weight, target, _ = inputs(4)
    target[:] = -100
    assert fused_gemm_cross_entropy(x, weight, target).isnan()  # as in torch
    assert fused_gemm_cross_entropy(x, weight, target, reduction="sum") == 0
    assert fused_gemm_cross_entropy(x[:0], weight, target[:0]).isnan()


def test_infinite_logits() -> None:
    x, weight = torch.zeros(3, K).bfloat16(), torch.zeros(N, K).bfloat16()
    bias = torch.zeros(N)
    bias[1] = -torch.inf
    loss = fused_gemm_cross_entropy(x, weight, torch.tensor([0, 1, 2]), bias, reduction="none")
    assert loss[1] == torch.inf
    assert torch.isfinite(loss[[0, 2]]).all()
    bias[2] = torch.nan
    assert fused_gemm_cross_entropy(x, weight, torch.tensor([0, 1, 2]), bias, reduction="none").isnan().all()


def test_gradients() -> None:
    x, weight, target, bias = inputs(2, 5)
    target[0, 1] = -100
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    fused_gemm_cross_entropy(leaves[0], leaves[1], target, leaves[2]).backward()
    doubles = [t.double().requires_grad_() for t in (x, weight, bias)]
    reference(doubles[0], doubles[1], target, doubles[2]).backward()
    for leaf, double in zip(leaves, doubles, strict=True):
        assert (leaf.grad.double() - double.grad).norm() < 0.02 * double.grad.norm()
    assert (leaves[0].grad[0, 1] == 0).all()
    assert not fallbacks.counts()


@pytest.mark.parametrize("target_dtype", [torch.int64, torch.int32])
def test_gradients_of_a_flat_target_and_of_no_class(target_dtype: torch.dtype) -> None:
    x, weight, target, _ = inputs(2, 3)
    target[1, 2] = N
    x.requires_grad_()
    flat = target.flatten().to(target_dtype)
    loss = fused_gemm_cross_entropy(x, weight, flat, reduction="none")
    (loss.nan_to_num(0.0) * torch.arange(6.0).view(2, 3)).sum().backward()
    assert x.grad is not None
    doubles = x.detach().double().requires_grad_()
    target[1, 2] = -100
    wanted = torch.nn.functional.cross_entropy(
        (doubles @ weight.double().t()).flatten(0, 1), target.flatten(), reduction="none"
    )
    (wanted * torch.arange(6.0)).sum().backward()
    assert (x.grad.double() - doubles.grad).norm() < 0.02 * doubles.grad.norm()


def test_a_target_may_be_flat() -> None:
    x, weight, target, _ = inputs(2, 3)
    for reduction in ("none", "mean"):
        loss = fused_gemm_cross_entropy(x, weight, target.flatten(), reduction=reduction)
        wanted = fused_gemm_cross_entropy(x, weight, target, reduction=reduction)
        assert torch.equal(loss, wanted)


def test_compiled() -> None:
    x, weight, target, _ = inputs(2, 3)
    torch.compiler.reset()
    compiled = torch.compile(fused_gemm_cross_entropy, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight, target), fused_gemm_cross_entropy(x, weight, target))


def test_errors() -> None:
    x, weight, target, bias = inputs(2, 3)
    op = "fused_gemm_cross_entropy"
    with pytest.raises(ArgumentError, match=f"{op}: target is of type NoneType"):
        fused_gemm_cross_entropy(x, weight, None)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=f"{op}: target is torch.int16; allowed: torch.int64, torch.int32"):
        fused_gemm_cross_entropy(x, weight, target.short())
    with pytest.raises(ShapeError, match=rf"{op}: target is of shape \(3,\); allowed: \(2, 3\)"):
        fused_gemm_cross_entropy(x, weight, target[0])
    with pytest.raises(ShapeError, match=rf"{op}: bias is of shape \(50,\); allowed: \(51,\)"):
        fused_gemm_cross_entropy(x, weight, target, bias[:-1])
    with pytest.raises(ArgumentError, match=f"{op}: reduction is 'max'; allowed: 'mean', 'sum', 'none'"):
        fused_gemm_cross_entropy(x, weight, target, reduction="max")  # type: ignore[arg-type]
