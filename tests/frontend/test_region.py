"""How a call's arguments and results belong to a traced function."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from comfuse.errors import DTypeError, ShapeError
from comfuse.frontend import trace_region
from tests.frontend.support import LEAD, K, N, residual, row, tensor, weight, x


def program(x, w, bias, residual, scale, alpha):
    h = F.linear(x, w, bias) * alpha + residual
    return h * scale, h.sum(-1)


def arguments(*lead):
    lead = lead or LEAD
    return [x(*lead), weight(), row(), residual(*lead), tensor(*lead, 1), 2.0]


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
        (0, tensor(*LEAD, K + 8), ShapeError, r"x is of shape \(2, 3, 16\); allowed: \(\*, \*, 8\)"),
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


def test_pack_restores_shapes_and_structure():
    def packed(x, w):
        h = F.linear(x, w).flatten(0, 1)
        return {"h": h, "rows": [h.sum(-1, keepdim=True), h.amax(-1).view(x.shape[:-1])]}

    region = trace_region(packed, [x(), weight()])
    results = [torch.zeros(4, 5, N), torch.zeros(4, 5), torch.zeros(4, 5)]
    found = region.pack(results, (4, 5))
    assert found["h"].shape == (20, N)
    assert [t.shape for t in found["rows"]] == [(20, 1), (4, 5)]
