"""``comfuse.fuse`` on CPU tensors: the same op and spec as on a GPU, run by the reference."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import comfuse
from comfuse import fallbacks
from comfuse.errors import ArgumentError, FallbackError
from tests.frontend.support import LEAD, N, residual, row, tensor, weight, x


def layer_norm(x, w, bias, residual, g, b):
    h = F.linear(x, w, bias) + residual
    return F.layer_norm(h, (h.shape[-1],), g, b)


def arguments(*lead):
    lead = lead or LEAD
    return [x(*lead), weight(), row(1), residual(*lead), row(2), row(3)]


def error(y, args, fn=layer_norm):
    expected = fn(*(a.double() for a in args))
    return float((y.double() - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def _no_counts():
    fallbacks.reset()


def test_result_and_dtype():
    fused = comfuse.fuse(layer_norm)
    y = fused(*arguments())
    assert (y.dtype, y.shape) == (torch.bfloat16, (*LEAD, N))
    assert error(y, arguments()) < 3e-3  # one rounding to bfloat16
    assert fallbacks.counts() == {}
    assert fused.__name__ == "layer_norm"


def test_one_trace_serves_every_m():
    fused = comfuse.fuse(layer_norm)
    for lead in [(2, 3), (7, 1), (1, 1), (2, 3), (64, 2)]:
        args = arguments(*lead)
        assert error(fused(*args), args) < 3e-3
    assert len(fused.regions) == 1


def test_other_classes_are_traced_anew():
    fused = comfuse.fuse(layer_norm)
    fused(*arguments())
    fused(*arguments(6))
    fused(*(t.half() for t in arguments()))
    args = arguments()
    args[2] = args[2].float()[None, None]
    fused(*arguments()[:4], *(t.float() for t in arguments()[4:]))
    assert len(fused.regions) == 4


@pytest.mark.parametrize("function", [torch.squeeze, lambda h: h.squeeze(0)])
def test_one_row_may_have_another_meaning(function):
    fused = comfuse.fuse(lambda x, w: function(F.linear(x, w)))
    for rows in (6, 1, 7, 1, 0):
        args = (x(rows), weight())
        torch.testing.assert_close(fused(*args), function(F.linear(*args)))
    assert len(fused.regions) == 2


def test_many_rows_may_have_another_meaning():
    def program(x, w):
        h = F.linear(x, w)
        return 2 * h if x.shape[0] > 100 else h

    fused = comfuse.fuse(program)
    for rows in (6, 200, 300, 6):
        args = (x(rows), weight())
        torch.testing.assert_close(fused(*args), program(*args))


def test_broadcast_class_is_part_of_the_class():
    fused = comfuse.fuse(lambda x, w, r: F.linear(x, w) + r)
    assert fused(x(5), weight(), residual(5)).shape == (5, N)
    assert fused(x(5), weight(), residual(1)).shape == (5, N)
    assert fused(x(1), weight(), residual(1)).shape == (1, N)
    assert len(fused.regions) == 2


def test_keywords_and_decorator():
    @comfuse.fuse
    def program(x, w, scale=2.0, *, shift=0.0):
        return F.linear(x, w) * scale + shift

    args = (x(), weight())
    torch.testing.assert_close(program(*args), program(x=args[0], w=args[1]))
    torch.testing.assert_close(program(*args, scale=2.0), program(*args))
    with pytest.raises(ArgumentError, match="shift is passed by keyword"):
        program(*args, shift=1.0)
    fused = comfuse.fuse(functools.partial(program.__wrapped__, shift=1.0))
    torch.testing.assert_close(fused(*args).float(), F.linear(*args).float() * 2 + 1, rtol=1e-2, atol=1e-2)


def test_keywords_of_a_builtin_have_no_place():
    with pytest.raises(ArgumentError, match="weight is passed by keyword; allowed: positional arguments"):
        comfuse.fuse(F.linear)(x(), weight=weight())


def test_changing_scalars_do_not_trace_again():
    fused = comfuse.fuse(lambda x, w, alpha: F.linear(x, w) * alpha)
    for alpha in (1.0, 2.0, 3.5):
        expected = (F.linear(x().double(), weight().double()) * alpha).to(torch.bfloat16)
        torch.testing.assert_close(fused(x(), weight(), alpha), expected)
    assert len(fused.regions) == 1


def test_built_in_scalars_do():
    fused = comfuse.fuse(lambda x, w, eps: F.layer_norm(F.linear(x, w), (N,), eps=eps))
    first, second = fused(x(), weight(), 1e-5), fused(x(), weight(), 100.0)
    assert (first - second).abs().max() > 0.1
    torch.testing.assert_close(fused(x(), weight(), 1e-5), first, rtol=0, atol=0)
    assert len(fused.regions) == 2


def test_threads_trace_a_class_once():
    fused = comfuse.fuse(lambda x, w, eps: F.layer_norm(F.linear(x, w), (N,), eps=eps))
    kinds = [(dtype, eps) for dtype in (torch.bfloat16, torch.float16) for eps in (1e-5, 1.0)]
    together = threading.Barrier(8)

    def call(number):
        dtype, eps = kinds[number % len(kinds)]
        args = (x().to(dtype), weight().to(dtype))
        together.wait()
        y = fused(*args, eps)
        expected = F.layer_norm(F.linear(args[0].float(), args[1].float()), (N,), eps=eps)
        assert (y.float() - expected).norm() < 3e-3 * expected.norm()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    assert len(fused.regions) == len(kinds)


def test_a_fused_function_is_not_fused_again():
    fused = comfuse.fuse(comfuse.fuse(F.linear))
    assert torch.equal(fused(x(), weight()), comfuse.fuse(F.linear)(x(), weight()))


def test_several_results():
    def program(x, w, g):
        h = F.relu(F.linear(x, w))
        return h, (h.float().sum(-1, keepdim=True), h * g)

    h, (total, scaled) = comfuse.fuse(program)(x(), weight(), row())
    assert (h.dtype, total.dtype, total.shape) == (torch.bfloat16, torch.float32, (*LEAD, 1))
    exact = F.relu(F.linear(x().double(), weight().double()))
    torch.testing.assert_close(total.double(), exact.sum(-1, keepdim=True), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scaled, (exact * row().double()).to(torch.bfloat16))


def test_a_graph_it_cannot_take_raises():
    fused = comfuse.fuse(lambda x, w: F.linear(x, w).cumsum(-1))
    with pytest.raises(comfuse.TraceError, match="cumsum"):
        fused(x(), weight())


def test_no_rows():
    assert comfuse.fuse(layer_norm)(*arguments(0, 3)).shape == (0, 3, N)


def test_gradients_run_the_function_and_are_counted(monkeypatch):
    fused = comfuse.fuse(layer_norm)
    args = arguments()
    args[1].requires_grad_()
    fused(*args).sum().backward()
    assert args[1].grad is not None
    assert [where for where, _ in fallbacks.counts()] == ["fuse(layer_norm)"]
    with torch.no_grad():
        fused(*args)
    assert sum(fallbacks.counts().values()) == 1
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    with pytest.raises(FallbackError, match="requires grad"):
        fused(*args)


def test_forward_mode_runs_the_function_and_is_counted():
    args = (x(), weight())
    fused = comfuse.fuse(lambda x, w: F.gelu(F.linear(x, w)))
    expected = torch.func.jvp(lambda t: F.gelu(F.linear(t, args[1])), (args[0],), (args[0],))
    torch.testing.assert_close(torch.func.jvp(lambda t: fused(t, args[1]), (args[0],), (args[0],)), expected)
    (((where, reason), count),) = fallbacks.counts().items()
    assert where.startswith("fuse(")
    assert "requires grad" in reason
    assert count == 1


def test_autocast_is_part_of_the_class():
    fused = comfuse.fuse(lambda x, w: F.relu(F.linear(x, w)))
    args = (x().float(), weight().float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fused(*args).dtype is torch.bfloat16
    with pytest.raises(comfuse.TraceError, match="float32"):
        fused(*args)


def test_inside_torch_compile_it_is_a_call():
    fused = comfuse.fuse(layer_norm)

    @functools.partial(torch.compile, backend="eager")
    def model(*args):
        return fused(*args) * 2

    torch.testing.assert_close(model(*arguments()), fused(*arguments()) * 2)


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode

    fused = comfuse.fuse(layer_norm)
    with FakeTensorMode() as mode:
        y = fused(*(mode.from_tensor(t) for t in arguments()))
    assert y.shape == (*LEAD, N)


def test_strided_inputs():
    fused = comfuse.fuse(lambda x, w, r: F.linear(x, w) + r)
    wide = tensor(5, 3 * N)
    args = (tensor(5, 16)[:, :8], weight(), wide[:, N : 2 * N])
    expected = F.linear(args[0].double(), args[1].double()) + args[2].double()
    torch.testing.assert_close(fused(*args), expected.to(torch.bfloat16))


def test_unhashable_and_foreign_arguments():
    fused = comfuse.fuse(lambda x, w, extra: F.linear(x, w[0]))
    with pytest.raises(ArgumentError, match="w is a list"):
        fused(x(), [weight()], None)


def test_meta_tensors():
    y = comfuse.fuse(layer_norm)(*(t.to("meta") for t in arguments()))
    assert (y.device.type, y.shape) == ("meta", (*LEAD, N))


def test_wrong_shapes_raise_what_torch_raises():
    fused = comfuse.fuse(layer_norm)
    fused(*arguments())
    args = arguments()
    args[3] = args[3].transpose(1, 2)
    with pytest.raises(comfuse.TraceError, match="the function raised RuntimeError"):
        fused(*args)
