"""Every op, monoid and element type in torch, against the op table."""

from __future__ import annotations

import math

import pytest
import torch

from comfuse import reference
from comfuse.generator import ops
from comfuse.generator.spec import DType
from comfuse.reference.reductions import reduce

VALUES = (
    -math.inf, -80.0, -3.5, -3.0, -1.0, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 2.5, 3.0, 20.5, 80.0,
    math.inf, math.nan,
)  # fmt: skip


def test_every_row_of_the_tables_has_a_torch_function_and_no_more() -> None:
    assert list(reference.ELEMENTWISE) == list(ops.ELEMENTWISE)
    assert list(reference.MONOIDS) == list(ops.MONOIDS)


@pytest.mark.parametrize("name", sorted(ops.ELEMENTWISE))
def test_elementwise_ops_mean_what_the_table_says(name: str) -> None:
    row = ops.ELEMENTWISE[name]
    columns = [torch.tensor(VALUES, dtype=torch.float64)] * row.arity
    arguments = [x.flatten() for x in torch.meshgrid(*columns, indexing="ij")]
    got = reference.ELEMENTWISE[name](*arguments)
    expected = torch.tensor(
        [row.evaluate(*map(float, values)) for values in zip(*arguments, strict=True)], dtype=torch.float64
    )
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, op in ops.ELEMENTWISE.items() if op.nan == "propagates"])
def test_nan_propagates_where_the_table_says_so(name: str) -> None:
    row = ops.ELEMENTWISE[name]
    for position in range(row.arity):
        for other in (-4.0, 0.5, 4.0):
            values = [other] * row.arity
            values[position] = math.nan
            # A branch that is not taken hides its argument: the slope of a positive value.
            if (name, position) == ("leaky_relu", 1) and other > 0:
                continue
            assert math.isnan(row.evaluate(*values))
            assert reference.ELEMENTWISE[name](*(torch.tensor(v) for v in values)).isnan()


ROWS = {
    "random": torch.randn(7, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 10,
    "ties": torch.tensor([[3.0, 1.0, 3.0, 1.0], [0.0, -0.0, 0.0, -0.0]], dtype=torch.float64),
    "infinite": torch.tensor([[-math.inf] * 4, [1.0, math.inf, 2.0, math.inf]], dtype=torch.float64),
    "mixed": torch.tensor([[-math.inf, 1.0, math.inf, 2.0], [1.0, math.nan, math.inf, math.nan]]).double(),
    "large": torch.tensor([[1e200, 1e200, -1e200, 3.0]], dtype=torch.float64),
}


@pytest.mark.parametrize("values", sorted(ROWS))
@pytest.mark.parametrize("name", sorted(ops.REDUCTIONS))
def test_reductions_mean_what_the_table_says(name: str, values: str) -> None:
    reduction, x = ops.REDUCTIONS[name], ROWS[values]
    group = 2
    parts = {
        "row": [[row] for row in x],
        "group": [row.split(group) for row in x],
        "col": [list(x.t())],
        "full": [[x.flatten()]],
    }[reduction.axis]
    fields = reduce(x.unsqueeze(0), reduction.axis, reduction.monoid.name, group)
    assert list(fields) == list(reduction.fields)
    for i, field in enumerate(reduction.fields):
        lines = [[reduction.evaluate(part.tolist())[i] for part in line] for line in parts]
        expected = torch.tensor([lines], dtype=torch.float64)
        torch.testing.assert_close(fields[field], expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", sorted(ops.MONOIDS))
def test_reductions_without_rows_give_what_is_neutral(name: str) -> None:
    for axis in set(ops.MONOIDS[name].axes) & {"col", "full"}:
        fields = reduce(torch.zeros(1, 0, 3), axis, name, None)
        for field, expected in zip(fields.values(), ops.MONOIDS[name].evaluate([]), strict=True):
            torch.testing.assert_close(field, torch.full_like(field, expected), equal_nan=True)


@pytest.mark.parametrize("row", [[2.0, 5.0, 5.0], [math.nan, 9.0, math.nan], [-math.inf, -math.inf], [1.0]])
def test_softmax_and_argmax_follow_torch(row: list[float]) -> None:
    x = torch.tensor(row, dtype=torch.float64)
    fields = reference.MONOIDS["softmax"](x)
    torch.testing.assert_close(
        torch.exp(x - fields["max"]) / fields["sumexp"], torch.softmax(x, -1), equal_nan=True
    )
    torch.testing.assert_close(fields["lse"], torch.logsumexp(x, -1), equal_nan=True)
    assert reference.MONOIDS["argmax"](x)["value"] == x.argmax()
    assert reference.MONOIDS["argmin"](x)["value"] == x.argmin()


# --- stores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [DType.INT8, DType.UINT8, DType.INT32, DType.INT64])
def test_integers_truncate_and_saturate(name: DType, dtype: torch.dtype) -> None:
    info = torch.iinfo(reference.TORCH_DTYPES[name])
    values = [2.9, 0.9, -0.9, float(info.max), 1e30, math.inf, -1e30, -math.inf, math.nan, float(info.min)]
    got = reference.store(torch.tensor(values, dtype=dtype), name).tolist()
    assert got == [2, 0, 0, info.max, info.max, info.max, info.min, info.min, 0, info.min]
    signed = reference.store(torch.tensor([-2.9], dtype=dtype), name).item()
    assert signed == (0 if name is DType.UINT8 else -2)


def test_a_bool_is_whether_the_value_is_not_zero() -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, -3.0, math.inf, math.nan])
    assert reference.store(x, DType.BOOL).tolist() == [False, False, True, True, True, True]


def test_fp8_rounds_to_even_and_overflows_as_documented() -> None:
    x = torch.tensor([1.0625, 1.1875, 448.0, 464.0, 465.0, 1e30, math.inf, -math.inf, math.nan, 2.0**-10])
    expected = [1.0, 1.25, 448.0, 448.0, 448.0, 448.0, 448.0, -448.0, math.nan, 0.0]
    got = reference.store(x, DType.E4M3).float()
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)
    x = torch.tensor([1.125, 1.375, 57344.0, 61439.0, 61440.0, math.inf, -math.inf, math.nan])
    expected = [1.0, 1.5, 57344.0, 57344.0, math.inf, math.inf, -math.inf, math.nan]
    got = reference.store(x, DType.E5M2).float()
    torch.testing.assert_close(got, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)


def test_the_installed_torch_stores_e4m3_alike_where_it_saturates() -> None:
    x = torch.tensor([465.0, -1e30, math.inf, math.nan, 3.3, -0.0])
    if torch.tensor([1e30]).to(torch.float8_e4m3fn).float().isnan():
        pytest.skip("this torch gives NaN")
    stored = reference.store(x, DType.E4M3)
    assert torch.equal(stored.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))
