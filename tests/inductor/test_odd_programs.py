"""Programs at the edges of what a pass sees: each gives what it gives without ComFuse, and a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from comfuse.inductor import log
from comfuse.inductor.entrances import enable
from tests.inductor.interpreted import interpreted

TOLERANCE = 2.0**-7  # relative to the largest element: two roundings of bf16, in sums of a few terms


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pass that fails raises; whatever torch.compile remembers is gone."""
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    torch.manual_seed(0)
    torch._dynamo.reset()
    log.clear()
    with enable(force=True):
        yield


def _random(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*size, dtype=torch.float64).to(dtype)


def _weight(n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(n, k, dtype=torch.float64) / k**0.5).to(dtype)


def _compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend=interpreted, dynamic=False, **options)


def _close(result: Tensor, expected: Tensor) -> None:
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (result.to(wide) - expected.to(wide)).abs().max()
    assert difference <= TOLERANCE * expected.to(wide).abs().max()


def _fused() -> int:
    return sum(v.fused for v in log.verdicts())


def _reasons() -> list[str]:
    return [v.reason for v in log.verdicts() if not v.fused]


def test_both_sides_of_a_graph_break_are_compiled() -> None:
    w1, w2 = _weight(64, 64), _weight(64, 64)

    def fn(x: Tensor) -> Tensor:
        y = F.relu(F.linear(x, w1))
        torch._dynamo.graph_break()
        return torch.tanh(F.linear(y, w2))

    x = _random(40, 64)
    with torch.no_grad():
        _close(_compiled(fn)(x), fn(x))
    assert len(log.compiles()) == 2
    assert _fused() == 2


def test_a_break_that_depends_on_data_takes_either_branch() -> None:
    w = _weight(64, 64)

    def fn(x: Tensor) -> Tensor:
        y = F.relu(F.linear(x, w))
        return y * 2 if y.sum() > 0 else torch.sigmoid(y - 1)

    x = _random(40, 64)
    compiled = _compiled(fn)
    with torch.no_grad():
        for argument in (x, torch.zeros_like(x)):
            _close(compiled(argument), fn(argument))
    assert _fused() >= 1


def test_in_place_operators_on_the_product() -> None:
    w, b = _weight(64, 64), _random(64)

    def fn(x: Tensor) -> Tensor:
        y = F.linear(x, w)
        y.add_(b)
        y.relu_()
        y[:, 3] = 0
        return y.mul_(2)

    x = _random(40, 64)
    with torch.no_grad():
        _close(_compiled(fn, fullgraph=True)(x), fn(x))
    assert _fused() == 1, _reasons()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_in_tensors(dtype: torch.dtype) -> None:
    """One that the graph is given, and one that it holds."""
    w, scale = _weight(64, 64), torch.tensor(0.7, dtype=dtype)

    def fn(x: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(F.linear(x, w) * scale + torch.tensor(0.5, dtype=x.dtype), (64,)) * scale

    x = _random(40, 64)
    with torch.no_grad():
        _close(_compiled(fn, fullgraph=True)(x, scale), fn(x, scale))
    assert _fused() == 1, _reasons()


def test_a_mutated_input_has_its_new_value_and_its_readers_the_right_one() -> None:
    w = _weight(64, 64)

    def fn(x: Tensor, state: Tensor) -> Tensor:
        before = F.linear(x, w) + state
        state.mul_(0.5).add_(before)
        return torch.sigmoid(before) + state

    x, state = _random(40, 64), _random(40, 64)
    mine, theirs = state.clone(), state.clone()
    with torch.no_grad():
        result, expected = _compiled(fn, fullgraph=True)(x, mine), fn(x, theirs)
    _close(result, expected)
    _close(mine, theirs)
    assert not torch.equal(mine, state)
    (reason,) = _reasons()
    assert "in place" in reason


def test_an_input_that_is_mutated_behind_the_product_is_read_before() -> None:
    w = _weight(64, 64)

    def fn(x: Tensor) -> Tensor:
        y = F.silu(F.linear(x, w))
        x.zero_()
        return y

    x = _random(40, 64)
    with torch.no_grad():
        expected = fn(x.clone())
        mine = x.clone()
        _close(_compiled(fn, fullgraph=True)(mine), expected)
    assert mine.abs().max() == 0
    (reason,) = _reasons()
    assert "in place" in reason


def test_outputs_that_are_views_of_one_another_share_memory() -> None:
    w = _weight(64, 64)

    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.relu(F.linear(x, w))
        return y, y.view(4, 10, 64), y.t()

    x = _random(40, 64)
    with torch.no_grad():
        results, expected = _compiled(fn, fullgraph=True)(x), fn(x)
    for result, right in zip(results, expected, strict=True):
        _close(result, right)
    assert results[0].data_ptr() == results[1].data_ptr() == results[2].data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float32])
def test_factors_of_other_dtypes_are_left(dtype: torch.dtype) -> None:
    def random(*size: int) -> Tensor:
        return torch.randn(*size, dtype=dtype)

    x, w, b = random(40, 64), random(64, 64), random(64)

    def fn(x: Tensor) -> Tensor:
        return (x @ w + b) * 2

    with torch.no_grad():
        _close(_compiled(fn, fullgraph=True)(x), fn(x))
    (reason,) = _reasons()
    assert str(dtype).removeprefix("torch.") in reason


def test_integer_products_are_left() -> None:
    x, w = torch.randint(-5, 5, (40, 64)), torch.randint(-5, 5, (64, 64))

    def fn(x: Tensor) -> Tensor:
        return (x @ w).clamp(min=0)

    assert torch.equal(_compiled(fn, fullgraph=True)(x), fn(x))
    (reason,) = _reasons()
    assert "int64" in reason


def test_channels_last_images_into_a_linear_layer() -> None:
    """The rows are pixels whose channels lie together; the convolution before them is none of ours."""
    conv, linear = nn.Conv2d(3, 64, 3, padding=1), nn.Linear(64, 64)
    module = nn.Sequential(conv, nn.ReLU()).to(torch.bfloat16, memory_format=torch.channels_last)
    linear = linear.to(torch.bfloat16)

    def fn(x: Tensor) -> Tensor:
        return F.gelu(linear(module(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)

    x = _random(2, 3, 6, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        result = _compiled(fn, fullgraph=True)(x)
        _close(result, fn(x))
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert _fused() == 1, _reasons()


def test_a_checkpointed_part_is_right_with_its_gradients() -> None:
    torch.manual_seed(1)
    part = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64)).bfloat16()

    def fn(x: Tensor) -> Tensor:
        return x + checkpoint(part, x, use_reentrant=False)

    x = _random(40, 64).requires_grad_()
    gradient = _random(40, 64)
    leaves = [x, *part.parameters()]
    expected = torch.autograd.grad(fn(x), leaves, gradient)
    result = _compiled(fn, fullgraph=True)(x)
    _close(result.detach(), fn(x).detach())
    for mine, theirs in zip(torch.autograd.grad(result, leaves, gradient), expected, strict=True):
        assert (mine.double() - theirs.double()).norm() <= 0.02 * theirs.double().norm()
    assert _fused() >= 3  # two in the forward, and what the backward does again


def test_a_conditional_part_is_right() -> None:
    """The graphs of a higher-order operator's branches are compiled by themselves."""
    w = _weight(64, 64)

    def fn(flag: Tensor, x: Tensor) -> Tensor:
        return torch.cond(flag, lambda x: F.relu(F.linear(x, w)), lambda x: torch.tanh(F.linear(x, w)), (x,))

    x = _random(40, 64)
    compiled = _compiled(fn, fullgraph=True)
    with torch.no_grad():
        for flag in (torch.tensor(True), torch.tensor(False)):
            _close(compiled(flag, x), fn(flag, x))


def test_heads_that_are_split_behind_the_product() -> None:
    w, b = _weight(192, 64), _random(192)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        qkv = F.linear(x, w, b).view(2, 20, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return qkv[0] * 0.25, qkv[1], qkv[2]

    x = _random(2, 20, 64)
    with torch.no_grad():
        for result, expected in zip(_compiled(fn, fullgraph=True)(x), fn(x), strict=True):
            _close(result, expected)
    assert len(log.verdicts()) == 1


def test_a_module_whose_weights_are_tied_and_used_twice() -> None:
    linear = nn.Linear(64, 64).bfloat16()

    def fn(x: Tensor) -> Tensor:
        return F.relu(linear(F.relu(linear(x))))

    x = _random(40, 64).requires_grad_()
    gradient = _random(40, 64)
    leaves = [x, *linear.parameters()]
    expected = torch.autograd.grad(fn(x), leaves, gradient)
    for mine, theirs in zip(
        torch.autograd.grad(_compiled(fn, fullgraph=True)(x), leaves, gradient), expected, strict=True
    ):
        assert (mine.double() - theirs.double()).norm() <= 0.02 * theirs.double().norm()


def test_no_rows_and_one_row() -> None:
    w, b = _weight(64, 64), _random(64)

    def fn(x: Tensor) -> Tensor:
        return F.layer_norm(F.linear(x, w, b), (64,))

    with torch.no_grad():
        for rows in (0, 1):
            x = _random(rows, 64)
            torch._dynamo.reset()
            result, expected = _compiled(fn, fullgraph=True)(x), fn(x)
            assert result.shape == expected.shape
            if rows:
                _close(result, expected)


def test_a_model_without_any_product() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    x = _random(40, 64)
    _close(_compiled(fn, fullgraph=True)(x), fn(x))
    assert log.verdicts() == []
