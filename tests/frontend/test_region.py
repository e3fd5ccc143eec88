"""How a call's arguments and results belong to a traced function."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from comfuse.errors import DTypeError, ShapeError
from comfuse.frontend import fuse, region, trace_region
from tests.frontend.support import LEAD, K, N, residual, row, tensor, weight, x


def program(x, w, bias, residual, scale, alpha):
    h = F.linear(x, w, bias) * alpha + residual
    return h * scale, h.sum(-1)


def arguments(*lead):
    lead = lead or LEAD
    return [x(*lead), weight(), row(), residual(*lead), tensor(*lead, 1), 2.0]


def test_only_so_many_numbers_of_rows_are_remembered(monkeypatch):
    monkeypatch.setattr(region, "REMEMBERED", 4)
    traced = trace_region(F.linear, (x(7), weight()))
    for rows in range(2, 20):
        assert traced.bind((x(rows), weight())).a.shape == (rows, K)
        assert len(traced._calls) <= 4


def test_bind_follows_the_spec():
    args = arguments()
    call = trace_region(program, args).bind(args)
    assert call.a is args[0]
    assert call.b is args[1]
    assert [tuple(t.shape) for t in call.operands] == [(N,), (*LEAD, N), LEAD]
    assert call.scalars == [2.0]


@pytest.mark.parametrize("lead", [(1, 1), (7, 1), (128, 3)])
def test_one_region_serves_every_number_of_rows(lead):
    region = trace_region(program, arguments())
    assert region.any_rows
    assert region.accepts(arguments(*lead))


@pytest.mark.parametrize(
    "position, other, error, message",
    [
        (0, tensor(*LEAD, K + 8), ShapeError, r"x is of shape \(2, 3, 16\); allowed: \(2, 3, 8\)"),
        (0, tensor(6, K), ShapeError, "x is of shape"),
        (1, tensor(N + 8, K), ShapeError, "w is of shape"),
        (2, tensor(N + 8), ShapeError, "bias is of shape"),
        (3, tensor(LEAD[1], N), ShapeError, "residual is of shape"),
        (
            3,
            tensor(LEAD[0], N, LEAD[1]),
            ShapeError,
            r"residual is of shape \(2, 16, 3\); allowed: \(2, 3, 16\)",
        ),
        (3, tensor(6, N), ShapeError, "residual is of shape"),
        (4, tensor(*LEAD), ShapeError, "scale is of shape"),
        (4, tensor(1, 1, 1), ShapeError, "scale is of shape"),
        (2, row().float(), DTypeError, "bias is torch.float32; allowed: torch.bfloat16"),
    ],
)
def test_bind_checks_the_class(position, other, error, message):
    args = arguments()
    region = trace_region(program, args)
    args[position] = other
    with pytest.raises(error, match=message):
        region.bind(args)
    assert not region.accepts(args)


def test_an_operand_keeps_its_form():
    def reshaped(x, w, flat, rows, bias):
        return (F.linear(x, w) + flat.view(x.shape[0], x.shape[1], N)) * rows.view(*x.shape[:-1], 1) + bias

    def inputs(*lead):
        m = lead[0] * lead[1]
        return [x(*lead), weight(), tensor(m, N), tensor(m), row().view(1, N)]

    region = trace_region(reshaped, inputs(2, 3))
    assert region.any_rows
    assert [tuple(t.shape) for t in region.bind(inputs(4, 5)).operands] == [(4, 5, N), (4, 5), (N,)]
    for i, shape in ((2, (4, 5, N)), (3, (4, 5)), (4, (N,))):
        args = inputs(4, 5)
        args[i] = args[i].view(shape)
        assert not region.accepts(args)


def test_what_is_built_in_is_part_of_the_class():
    def scaled(x, w, power, eps):
        return F.layer_norm(F.linear(x, w) ** power, (N,), eps=eps)

    region = trace_region(scaled, [x(), weight(), 2, 1e-5])
    assert region.constants == ((2, 2), (3, 1e-5))
    assert region.accepts([x(), weight(), 2, 1e-5])
    assert not region.accepts([x(), weight(), 3, 1e-5])
    assert not region.accepts([x(), weight(), 2, 1e-6])
    assert not region.accepts([x(), weight(), 2])
    assert not region.accepts([x(), weight(), x(), 1e-5])


@pytest.mark.parametrize(
    "reads_rows",
    [
        lambda x, w: F.linear(x, w) / x.shape[0],
        lambda x, w: F.linear(x, w).view(LEAD[0] * LEAD[1], N),
        lambda x, w: F.relu(F.linear(x, w)) if x.shape[0] == LEAD[0] else F.linear(x, w),
    ],
)
def test_functions_that_read_the_number_of_rows(reads_rows):
    region = trace_region(reads_rows, [x(), weight()])
    assert not region.any_rows
    assert region.accepts([x(), weight()])
    with pytest.raises(ShapeError, match="the function reads the number of rows"):
        region.bind([x(5, 4), weight()])


def test_results_have_the_functions_shapes_and_structure():
    def packed(x, w):
        h = F.linear(x, w).flatten(0, 1)
        return {"h": h, "rows": [h.sum(-1, keepdim=True), h.amax(-1).view(x.shape[:-1])]}

    found = fuse(packed)(x(4, 5), weight())
    assert found["h"].shape == (20, N)
    assert [t.shape for t in found["rows"]] == [(20, 1), (4, 5)]


@pytest.mark.parametrize("lead", [(1,), (1, 1), (5, 1), (1, 5), (0,), (0, 3), (3, 0)])
def test_a_size_of_one_is_the_number_of_rows(lead):
    """What is traced with one row, or none, holds for many."""

    def program(x, w, residual, bias):
        h = F.linear(x, w, bias) + residual
        return h, F.layer_norm(h, (N,)), h.sum(-1, keepdim=True)

    def inputs(*lead):
        return [x(*lead), weight(), residual(*lead), row()]

    region = trace_region(program, inputs(*lead))
    assert region.any_rows
    assert region.lead == lead
    assert region.spec == trace_region(program, inputs(*(d + 2 for d in lead))).spec
    assert region.accepts(inputs(*(d + 7 for d in lead)))
    assert [tuple(y.shape) for y in fuse(program)(*inputs(*lead))] == [(*lead, N), (*lead, N), (*lead, 1)]


def test_a_broadcast_of_one_row_stays_one():
    """A bias (1, N) beside one row may be a tile or a row; either way the numbers are right."""
    fused = fuse(lambda x, w, b: F.linear(x, w) + b)
    for rows in (1, 4, 1, 3):
        y = fused(x(rows), weight(), tensor(1, N))
        exact = x(rows).double() @ weight().double().t() + tensor(1, N).double()
        torch.testing.assert_close(y, exact.to(torch.bfloat16))


def test_functions_that_mean_something_else_for_one_row():
    fused = fuse(lambda x, w: F.linear(x, w).squeeze(0))
    assert fused(x(1, 5), weight()).shape == (5, N)
    assert fused(x(2, 5), weight()).shape == (2, 5, N)
    fused = fuse(lambda x, w: F.linear(x, w) * 2 if x.shape[0] == 1 else F.linear(x, w))
    torch.testing.assert_close(
        fused(x(1), weight()).float(), 2 * (x(1).float() @ weight().float().t()), rtol=1e-2, atol=1e-2
    )


def test_strides_of_the_factors_are_part_of_the_class():
    region = trace_region(F.linear, [x(8), weight()])
    transposed = weight().t().contiguous().t()
    assert not region.accepts([x(8), transposed])
    with pytest.raises(ShapeError, match="strides whose K dimension is contiguous"):
        region.bind([x(8), transposed])
    assert region.accepts([tensor(8, 2 * K)[:, :K], weight()])
