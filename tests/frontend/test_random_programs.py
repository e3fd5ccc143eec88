"""Random programs over values of every space: the traced spec means what torch computes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.support import N, check, residual, row, tensor, weight, x

# Bounded, so that chains of them stay comparable in float64.
UNARY = (torch.tanh, torch.sigmoid, F.relu, torch.neg, F.silu, lambda v: v * 0.5, lambda v: v.to(v.dtype) + 1)
BINARY = (
    torch.add,
    torch.sub,
    torch.maximum,
    lambda a, b: a * torch.tanh(b),
    lambda a, b: torch.where(a > b, a, b),
)
REDUCTIONS = (
    lambda v: v.mean(-1, keepdim=True),
    lambda v: v.mean(-1).unsqueeze(-1),
    lambda v: v.amax(dim=-1, keepdim=True),
    lambda v: v.amin(-1)[..., None],
    lambda v: torch.tanh(v.sum(-1)).view(*v.shape[:-1], 1),
    lambda v: torch.var_mean(v, -1, correction=0, keepdim=True)[0],
)
SHAPERS = (
    lambda v: v,
    lambda v: v.reshape(-1, v.shape[-1]).view(v.shape),
    lambda v: v.unsqueeze(0).squeeze(0),
    lambda v: v.contiguous().clone(),
)

step = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(UNARY), st.integers(0, 99)),
    st.tuples(st.just("binary"), st.sampled_from(BINARY), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.just("reduce"), st.sampled_from(REDUCTIONS), st.integers(0, 99)),
    st.tuples(st.just("shape"), st.sampled_from(SHAPERS), st.integers(0, 99)),
)


def program(steps):
    """A function of a tile, a row and a column operand: every step works on one or two earlier values."""

    def fn(x, w, tile, row, column):
        values = [F.linear(x, w) * 0.25, tile, row, column]
        depends = [True, False, False, False]
        for kind, apply, *picks in steps:
            picked = [values[i % len(values)] for i in picks]
            known = [depends[i % len(values)] for i in picks]
            if kind == "reduce" and picked[0].shape[-1:] != (N,):
                picked, known = [values[0]], [True]  # a column has nothing left to reduce
            if kind == "reduce" and not known[0]:
                picked, known = [picked[0] + values[0]], [True]  # reductions of arguments alone are refused
            values.append(apply(*picked))
            depends.append(any(known))
        total = values[0]
        for v in values[1:]:
            total = total + v
        return total, torch.amax(total, -1)

    return fn


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(step, min_size=1, max_size=6),
    lead=st.sampled_from([(5,), (2, 3), (1, 4), (4, 1), (N,), (1,), (2, 1, 2)]),
)
def test_random_programs(steps, lead):
    args = (x(*lead), weight(), residual(*lead), row(), tensor(*lead, 1, seed=8))
    check(program(steps), *args)
