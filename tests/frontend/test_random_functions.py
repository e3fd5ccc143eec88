"""Random torch functions over the whole vocabulary: views, groups, two products, column statistics, every
reduction, results of every shape.  What the reference makes of the traced spec is what torch computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.support import K, N, check, tensor

GROUPS = 4

# Bounded and smooth, or exact, so that chains of them stay comparable.
UNARY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.tanh,
    torch.sigmoid,
    torch.sin,
    F.relu,
    F.gelu,
    F.silu,
    F.softplus,
    torch.erf,
    torch.abs,
    torch.neg,
    lambda v: v.clamp(-0.5, 0.7),
    lambda v: torch.exp(v.clamp(max=1.0)),
    lambda v: torch.log1p(v.abs()),
    lambda v: torch.rsqrt(v * v + 1),
    lambda v: torch.where(v > 0, v, 0.1 * v),
    lambda v: v.masked_fill(v > 0.3, 0.3),
    lambda v: v * 0.5 + 1,
    lambda v: 1 / (2 + v.abs()),
    lambda v: v.to(torch.float32).to(v.dtype),
)
BINARY: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    torch.add,
    torch.sub,
    torch.maximum,
    torch.minimum,
    lambda a, b: a * torch.tanh(b),
    lambda a, b: a / (1 + b.abs()),
    lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: torch.lerp(a, b, 0.25),
    lambda a, b: torch.addcmul(a, a.tanh(), b.tanh(), value=0.3),
)
# Of a dimension or several, kept.
REDUCTIONS: tuple[Callable[..., torch.Tensor], ...] = (
    lambda v, d: v.mean(d, keepdim=True),
    lambda v, d: v.sum(d, keepdim=True).tanh(),
    lambda v, d: v.amax(d, keepdim=True),
    lambda v, d: v.amin(d, keepdim=True),
    lambda v, d: v.var(d, keepdim=True, correction=0),
    lambda v, d: torch.linalg.vector_norm(v, dim=d, keepdim=True) * 0.1,
    lambda v, d: (v > 0).any(d, keepdim=True).to(v.dtype),
)
NORMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda v: F.softmax(v, -1),
    lambda v: F.log_softmax(v, -1) * 0.1,
    lambda v: F.layer_norm(v, v.shape[-1:], eps=0.1),
    lambda v: F.rms_norm(v, v.shape[-1:], eps=0.1),
    lambda v: torch.logsumexp(v, -1, keepdim=True) + v,
    lambda v: v / (v.abs().amax(-1, keepdim=True) + 0.1),
)
OF_ROWS = (*NORMS, lambda v: v.argmax(-1, keepdim=True).to(v.dtype) * 0.05 + v)
SHAPERS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda v: v.flatten(0, -2).unflatten(0, v.shape[:-1]),
    lambda v: v.unsqueeze(1).squeeze(1),
    lambda v: v.transpose(0, -1).contiguous().transpose(0, -1),
    lambda v: v.unflatten(-1, (-1, GROUPS)).transpose(-1, -2).transpose(-1, -2).flatten(-2),
)
RESULTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda v: v,
    lambda v: v.flatten(0, -2),
    lambda v: v.transpose(0, 1),
    lambda v: v.transpose(-1, -2).contiguous(),
    lambda v: v.unflatten(-1, (-1, GROUPS)).transpose(-2, -3).contiguous(),
    lambda v: v.chunk(2, -1)[1],
    lambda v: v.unflatten(-1, (-1, GROUPS)).amax(-1),
    lambda v: v.sum(-1),
    lambda v: v.argmin(-1),
    lambda v: v.flatten(0, -2).sum(0),
    lambda v: v.flatten(0, -2).var(0),
    lambda v: v.amax(),
    lambda v: v.square().mean(),
    lambda v: v.amax(-1).sum(),
    lambda v: v > 0.25,
)


@dataclass(frozen=True)
class Operands:
    """Which shapes the function's arguments have, by the leading sizes of x."""

    lead: tuple[int, ...]

    def shapes(self) -> list[tuple[int, ...]]:
        lead = self.lead
        return [
            (*lead, N),
            (N,),
            (*lead, 1),
            (1, *lead[1:], N) if len(lead) > 1 else (1, N),
            (*lead[:-1], 1, N) if len(lead) > 1 else (N,),
            (1,),
        ]


number = st.integers(0, 99)
step = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(UNARY), number),
    st.tuples(st.just("binary"), st.sampled_from(BINARY), number, number),
    st.tuples(st.just("reduce"), st.sampled_from(REDUCTIONS), number),
    st.tuples(st.just("group"), st.sampled_from(REDUCTIONS + NORMS), number),
    st.tuples(st.just("norm"), st.sampled_from(OF_ROWS), number),
    st.tuples(st.just("shape"), st.sampled_from(SHAPERS), number),
)


def function(steps, products, results, feedback):
    """A function of x, weights and operands: each step works on one or two earlier values."""

    def fn(x, w, *operands):
        if products == "one":
            values = [F.linear(x, w) * 0.25]
        elif products == "halves":
            values = [part * 0.25 for part in F.linear(x, w).chunk(2, -1)]
        else:
            wide = F.linear(x, w)
            values = [wide[..., ::2] * 0.25, wide[..., 1::2].tanh()]
        shape = values[0].shape
        values[0] = values[0] + (values[1] if len(values) > 1 else 0)
        if feedback is not None:
            flat = values[0].flatten(0, -2)
            values.append((flat - feedback(flat, 0)).view(shape))
        dependent = len(values)
        values += operands
        for kind, apply, *picks in steps:
            first = values[picks[0] % len(values)]
            if kind in ("reduce", "group", "norm", "shape"):
                first = first + values[picks[0] % dependent]  # a whole tile that depends on the product
            if kind == "binary":
                values.append(apply(first, values[picks[1] % len(values)]))
            elif kind == "reduce":
                values.append(apply(first, -1))
            elif kind == "group":
                grouped = first.unflatten(-1, (-1, GROUPS))
                found = apply(grouped, -1) if apply in REDUCTIONS else apply(grouped)
                values.append(found.expand(grouped.shape).reshape(shape))
            else:
                values.append(apply(first))
        total = values[0]
        for v in values[1:]:
            total = total + v
        found = [result(total) for result in results]
        return tuple(y.float() if y.is_floating_point() else y for y in found)

    return fn


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(step, min_size=1, max_size=8),
    lead=st.sampled_from([(5,), (2, 3), (4, 1), (1, 4), (3, 2, 2), (N,)]),
    products=st.sampled_from(["one", "one", "halves", "interleaved"]),
    results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=3),
    feedback=st.sampled_from([None, None, None, REDUCTIONS[0], REDUCTIONS[2]]),
)
def test_random_functions(steps, lead, products, results, feedback):
    rows = N if products == "one" else 2 * N
    operands = [tensor(*shape, seed=number) for number, shape in enumerate(Operands(lead).shapes())]
    args = (tensor(*lead, K, seed=7), tensor(rows, K, seed=8), *operands)
    check(function(steps, products, results, feedback), *args, tolerance=2e-5)


def test_the_functions_above_are_not_refused():
    """Every piece of the vocabulary by itself, so that a refusal is not taken for a rare draw."""
    args = (tensor(2, 3, K, seed=7), tensor(N, K, seed=8))
    for result in RESULTS:
        check(function([], "one", [result], None), *args, tolerance=1e-5)
    for kind, table in (("unary", UNARY), ("norm", OF_ROWS), ("group", NORMS), ("shape", SHAPERS)):
        for apply in table:
            check(function([(kind, apply, 0)], "one", RESULTS[:1], None), *args, tolerance=1e-5)
