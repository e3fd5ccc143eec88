"""Fused functions inside of others, as methods and as what they are not."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import comfuse
from comfuse.errors import ArgumentError
from comfuse.frontend import TraceError, fuse
from tests.frontend.support import K, N, row, weight, x


class Layer:
    def __init__(self, scale):
        self.scale = scale

    @comfuse.fuse
    def scaled(self, x, w, shift=1.0):
        return F.relu(F.linear(x, w)) * self.scale + shift


def test_a_fused_function_inside_of_another_is_a_part_of_it():
    inner = fuse(lambda x, w, scale=2.0: F.relu(F.linear(x, w)) * scale)
    outer = fuse(lambda x, w, b: inner(x, w, scale=3.0) + b)
    exact = F.relu(F.linear(x().double(), weight().double())) * 3 + row().double()
    torch.testing.assert_close(outer(x(), weight(), row()).double(), exact, rtol=8e-3, atol=8e-3)
    assert inner.regions == []
    assert inner(x(), weight()).shape == outer(x(), weight(), row()).shape


def test_methods_have_traces_of_their_own():
    two, three = Layer(2), Layer(3)
    product = F.relu(F.linear(x().double(), weight().double()))
    for layer in (two, three, two):
        exact = product * layer.scale + 1
        torch.testing.assert_close(layer.scaled(x(), weight()).double(), exact, rtol=8e-3, atol=8e-3)
        torch.testing.assert_close(
            layer.scaled(x(), w=weight(), shift=1.0).double(), exact, rtol=8e-3, atol=8e-3
        )
    assert isinstance(Layer.scaled, comfuse.frontend.FusedFunction)
    assert Layer(2).scaled(x(), weight()).shape == (*x().shape[:-1], N)


def test_a_method_does_not_keep_its_object_alive():
    layer = Layer(2)
    layer.scaled(x(), weight())
    alive = weakref.ref(layer)
    del layer
    gc.collect()
    assert alive() is None
    assert Layer.scaled._methods == {}


def test_ops_are_kernels_themselves():
    def program(x, w):
        return F.relu(comfuse.ops.fused_gemm(x, w))

    with pytest.raises(TraceError, match=r"an op of comfuse.ops is a kernel itself"):
        fuse(program)(x(), weight())


def test_what_cannot_be_called():
    with pytest.raises(TypeError, match="fn is 3; allowed: a function of tensors"):
        fuse(3)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    nested = torch.nested.nested_tensor([x(3), x(4)], layout=layout)
    for call in (fuse(F.linear), lambda *args: comfuse.trace(lambda x, w: F.linear(x, w), *args)):
        with pytest.raises(ArgumentError, match="is a nested tensor; allowed: strided tensors"):
            call(nested, weight())


def test_steps_of_something_else():
    with pytest.raises(ArgumentError, match=r"plan: spec is a str; allowed: what comfuse.trace gives"):
        comfuse.plan("x")
    with pytest.raises(ArgumentError, match=r"emit: plan is a str; allowed: what comfuse.plan gives"):
        comfuse.emit("x")
    spec = comfuse.trace(F.linear, x(4), weight())
    assert (spec.n, spec.k) == (N, K)
    with pytest.raises(ArgumentError, match="emit: plan is a FusedSpec"):
        comfuse.emit(spec)
