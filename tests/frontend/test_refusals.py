"""What the front end does not take: the error names the node, the place and the reason."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
import torch.nn.functional as F

from comfuse.errors import ArgumentError, ComFuseError, DeviceError
from comfuse.frontend import TraceError, trace
from tests.frontend.support import LEAD, K, N, residual, row, tensor, weight, x

elsewhere = torch.ones(N, dtype=torch.bfloat16)
elsewhere_one = torch.tensor(2.0)


def computed_second_factor(x, w, w2):
    h = F.linear(x, w)
    return F.relu(h), F.linear(F.relu(w2), w)


def second_product_of_arguments(x, w, a, b):
    return F.linear(x, w) + F.linear(a, b)


def third_product(x, w, w2, w3):
    return F.linear(x, w) * F.linear(x, w2) + F.linear(x, w3)


def products_of_other_sizes(x, w, w2):
    return F.linear(x, w)[..., : N // 2] * F.linear(x, w2)


def no_product(x, w):
    return x * 2


def unused_product(x, w):
    F.linear(x, w)
    return x * 2


def convolution(x, w):
    return F.linear(x, w) + F.conv1d(F.linear(x, w).transpose(1, 2), torch.ones(N, N, 1).to(x.dtype)).mean()


def computed_factor(x, w):
    return F.linear(F.relu(x), w)


def computed_weight(x, w):
    return F.linear(x, w * 2)


def reduces_some_rows(x, w):
    return F.linear(x, w).sum(0)


def mixed_reduction(x, w):
    return F.linear(x, w).sum((0, 2))


def reduces_every_other_group(x, w):
    return F.linear(x, w).view(*LEAD, 4, 4).sum(2)


def normalises_over_more(x, w):
    return F.layer_norm(F.linear(x, w), (LEAD[-1], N))


def two_sizes_of_groups(x, w):
    h = F.linear(x, w)
    return h.unflatten(-1, (4, 4)).amax(-1), h.unflatten(-1, (2, 8)).amax(-1)


def argmax_of_everything(x, w):
    return F.linear(x, w).argmax()


def argmax_over_rows(x, w):
    return F.linear(x, w).flatten(0, 1).argmax(0)


def variance_of_maxima(x, w):
    return F.linear(x, w).amax(-1).var()


def batched_column_sum(x, w):
    return torch.bmm(x, w.transpose(1, 2)).sum((0, 1))


def reduces_both_halves(x, w):
    h = F.linear(x, w)
    gate, up = h.chunk(2, -1)
    return gate * up + h.mean(-1, keepdim=True)


def other_part_of_two(x, w):
    h = F.linear(x, w)
    gate, up = h.chunk(2, -1)
    return gate * up, h[..., 3:7] * 2


def computes_on_a_slice(x, w):
    return F.linear(x, w)[..., : N // 4] * 2


def computes_on_some_rows(x, w):
    return F.linear(x, w)[:, -1] * 2


def operand_of_groups(x, w, scale):
    return (F.linear(x, w).unflatten(-1, (4, 4)) * scale).flatten(-2)


def operand_of_the_middle(x, w, p):
    return F.linear(x, w) + p


def column_times_everything(x, w, v):
    h = F.linear(x, w)
    return h, h.sum() * v


def without_keepdim(x, w):
    h = F.linear(x, w)
    return h / h.sum(-1)


def float64(x, w):
    return F.linear(x, w).double().exp()


def returns_float64(x, w):
    return F.linear(x, w), F.linear(x, w).amax(-1).double()


def computes_behind_fp8(x, w):
    return F.linear(x, w).to(torch.float8_e4m3fn).float() * 2


def works_behind_cat(x, w, r):
    h = F.linear(x, w)
    return torch.cat([h, h * r], -1) * 2


def dropout(x, w):
    return F.dropout(F.linear(x, w), 0.1)


def changes_argument(x, w, r):
    r += F.linear(x, w)
    return r


def changes_argument_beside_the_result(x, w, r):
    h = F.linear(x, w) + r
    r.zero_()
    return h


def resizes_argument(x, w, r):
    h = F.linear(x, w)
    r.resize_(3, N)
    return h


def reads_a_global(x, w):
    return F.linear(x, w) * elsewhere


def reads_a_global_number(x, w):
    return F.linear(x, w) * elsewhere_one


def decides_by_value(x, w):
    h = F.linear(x, w)
    return h if h.sum() > 0 else -h


def returns_argument(x, w, r):
    return F.linear(x, w), r


def returns_row(x, w, b):
    return F.linear(x, w), b * 2


def returns_number(x, w):
    return F.linear(x, w), 3


def reduces_a_weight(x, w):
    return F.linear(x, w) * w.float().norm(dim=-1)


def float64_argument(x, w, r):
    return F.linear(x, w) * r


def accumulates(x, w):
    return torch.cumsum(F.linear(x, w), -1)


def sorts(x, w):
    return F.linear(x, w).topk(3, -1).values


def rearranges(x, w):
    return F.linear(x, w).roll(1, -1)


def unknown(x, w):
    return torch.special.bessel_j0(F.linear(x, w))


def reads_a_sign(x, w):
    return torch.copysign(F.linear(x, w), -x[..., :1])


def shifts(x, w, t):
    return F.linear(x, w) * (t & 3)


def ignores_much(x, w, t):
    return F.cross_entropy(F.linear(x, w).flatten(0, 1), t, ignore_index=-(2**24))


def gathers_more(x, w, t):
    return F.linear(x, w).gather(-1, t)


def low_threshold(x, w):
    return F.softplus(F.linear(x, w), threshold=5)


def norm_of_order_3(x, w):
    return F.normalize(F.linear(x, w), p=3.0, dim=-1)


WIDE = tensor(2 * N, K)
INDEX = torch.zeros(*LEAD, 2, dtype=torch.int64)
CASES = [
    (
        computed_second_factor,
        (tensor(*LEAD, K),),
        "mm_1",
        "a second matrix product: its left factor is computed by relu_1",
    ),
    (second_product_of_arguments, (tensor(*LEAD, K), weight()), "mm_1", "a second matrix product"),
    (third_product, (weight(), weight() * 2), None, "a third matrix product|mm_2"),
    (products_of_other_sizes, (tensor(N // 2, K),), "mm_1", "its number of columns is another"),
    (no_product, (), None, "no matrix product"),
    (unused_product, (), None, "no matrix product"),
    (convolution, (), "convolution", "a convolution, where a kernel has a product of matrices"),
    (computed_factor, (), "mm", "left factor is computed inside the function, by relu"),
    (computed_weight, (), "mm", "right factor is computed inside the function, by mul"),
    (reduces_some_rows, (), "sum_1", r"it reduces dimensions 0 \(a part of the rows\) of _unsafe_view"),
    (mixed_reduction, (), "sum_1", r"dimensions 0 \(a part of the rows\), 2 \(columns\)"),
    (reduces_every_other_group, (), "sum_1", r"2 \(columns\).*neighbouring columns in groups"),
    (normalises_over_more, (), "native_layer_norm", r"it reduces dimensions 1 \(a part of the rows\), 2"),
    (two_sizes_of_groups, (), "amax_1", "groups of 8 columns, and the program already has groups of 4"),
    (argmax_of_everything, (), "argmax", "argmax over everything is not available"),
    (argmax_over_rows, (), "argmax", "argmax over the rows is not available; argmax runs over the columns"),
    (variance_of_maxima, (), "var", "welford over rows and columns of a column value"),
    (batched_column_sum, (tensor(LEAD[0], N, K),), "sum_1", "over the rows of a batched product"),
    (reduces_both_halves, (WIDE,), "mean", "over both of two products side by side"),
    (other_part_of_two, (WIDE,), "slice_1", "another part of the columns than one of the two products"),
    (computes_on_a_slice, (), "mul", "is a part of the columns of the GEMM's result"),
    (computes_on_some_rows, (), "mul", "is a part of the rows of the GEMM's result"),
    (operand_of_groups, (tensor(*LEAD, 4, 1),), "mul", "over the rows and over a part of the columns"),
    (operand_of_the_middle, (tensor(3, 1, N),), "add", "repeats over the rows on more than two levels"),
    (column_times_everything, (row(),), "mul", "is a value a column that reads a reduction over everything"),
    (float64, (), "_to_copy", "computed in torch.float64"),
    (returns_float64, (), "_to_copy", "torch.float64"),
    (computes_behind_fp8, (), "_to_copy_1", "was rounded to torch.float8_e4m3fn"),
    (works_behind_cat, (row(),), "mul_1", "works on cat, where values lie side by side"),
    (dropout, (), None, "draws random numbers"),
    (changes_argument, (residual(),), None, "changes r in place"),
    (changes_argument_beside_the_result, (residual(),), None, "changes r in place"),
    (resizes_argument, (residual(),), None, "in place"),
    (reads_a_global, (), "mul", "a tensor that is no argument"),
    (reads_a_global_number, (), "mul", "a tensor that is no argument"),
    (decides_by_value, (), None, "needs the values of a tensor"),
    (returns_argument, (residual(),), "r", "does not depend on the GEMM"),
    (returns_row, (row(),), "mul", "does not depend on the GEMM"),
    (returns_number, (), None, "returns a int; return tensors only"),
    (reduces_a_weight, (), "linalg_vector_norm", "reduces arguments alone, over other dimensions"),
    (float64_argument, (residual().double(),), None, "float64"),
    (accumulates, (), "cumsum", "it accumulates along a dimension"),
    (sorts, (), "topk", "it orders the elements of a row"),
    (rearranges, (), "roll", "it moves elements between rows or columns"),
    (unknown, (), "special_bessel_j0", "no counterpart of this operator"),
    (reads_a_sign, (), "copysign", "it tells a zero from a negative zero"),
    (shifts, (INDEX[..., :1],), "bitwise_and", "a bitwise operator on torch.int64"),
    (ignores_much, (INDEX[..., 0].flatten(),), "nll_loss_forward", "ignore_index -16777216; allowed: less"),
    (gathers_more, (INDEX,), "gather", r"gathers \(2, 3, 2\) elements .* only one of each row"),
    (low_threshold, (), "softplus", "threshold 5"),
    (norm_of_order_3, (), "linalg_vector_norm", "a norm of order 3"),
]


@pytest.mark.parametrize("fn, extra, node, reason", CASES, ids=[case[0].__name__ for case in CASES])
def test_refused(fn, extra, node, reason):
    args = (x(), weight(), *extra)
    if fn in (batched_column_sum, reduces_both_halves, other_part_of_two):
        args = (x(), *extra)
    if fn is operand_of_the_middle:
        args = (x(2, 3, 4), weight(), *extra)
    with pytest.raises(TraceError, match=reason) as caught:
        trace(fn, *args)
    if node is not None:
        assert caught.value.node == node
        assert caught.value.location is None or caught.value.location.startswith(__file__)
    assert isinstance(caught.value, ComFuseError)


def test_the_error_names_the_line():
    with pytest.raises(TraceError) as caught:
        trace(computed_second_factor, x(), weight(), tensor(*LEAD, K))
    first = inspect.getsourcelines(computed_second_factor)[1]
    assert caught.value.location == f"{__file__}:{first + 2}"
    assert f"at {__file__}:{first + 2}" in str(caught.value)
    assert caught.value.target == "aten.mm.default"


def test_the_error_of_the_function_itself_names_the_line():
    def wrong(x, w):
        h = F.linear(x, w)
        return h + torch.ones(7)

    with pytest.raises(TraceError, match=re.escape(__file__)) as caught:
        trace(wrong, x(), weight())
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("n", [N, 5])
def test_without_keepdim_is_refused_even_where_torch_would_broadcast(n):
    with pytest.raises(TraceError, match=r"keepdim=True|raised RuntimeError"):
        trace(without_keepdim, x(n), weight())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_of_the_factors(dtype):
    with pytest.raises(TraceError, match=f"its factors are {dtype}"):
        trace(F.linear, x().to(dtype), weight().to(dtype))


def test_factors_of_two_dtypes():
    with pytest.raises(
        TraceError, match=r"torch.bfloat16 and torch.float16; allowed: one dtype|raised RuntimeError"
    ):
        trace(lambda x, w: F.linear(x, w), x(), weight().half())


def test_matrix_vector_product():
    with pytest.raises(TraceError, match="N = 1"):
        trace(lambda x, w: F.linear(x, w), x(), tensor(1, K))


@pytest.mark.parametrize("n, k", [(0, K), (N, 0)])
def test_empty_factors(n, k):
    with pytest.raises(TraceError, match=f"N = {n} columns and K = {k}"):
        trace(F.linear, tensor(4, k), tensor(n, k))


def test_the_largest_of_no_rows():
    from comfuse import fuse

    fused = fuse(lambda x, w: F.linear(x, w).amax(0))
    assert fused(x(5), weight()).shape == (N,)
    with pytest.raises(TraceError, match=r"zero-size dimension|IndexError"):
        fused(x(0), weight())


def test_a_write_under_a_mask():
    def masked(x, w):
        y = F.linear(x, w)
        y[y < 0] = 0
        return y

    with pytest.raises(TraceError, match=r"where a mask is true: y.masked_fill\(mask, 0\)"):
        trace(masked, x(), weight())


def test_argument_types():
    with pytest.raises(ArgumentError, match="w is a list"):
        trace(lambda x, w: F.linear(x, w[0]), x(), [weight()])
    with pytest.raises(ArgumentError, match=r"layout torch.sparse_coo"):
        trace(lambda x, w: F.linear(x, w), x(), weight().float().to_sparse())
    with pytest.raises(DeviceError, match="w is on meta"):
        trace(lambda x, w: F.linear(x, w), x(), weight().to("meta"))
