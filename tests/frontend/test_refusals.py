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


def two_products(x, w, w2):
    h = F.relu(F.linear(x, w))
    return F.linear(h, w2)


def second_product_of_arguments(x, w, a, b):
    return F.linear(x, w) + F.linear(a, b)


def no_product(x, w):
    return x * 2


def unused_product(x, w):
    F.linear(x, w)
    return x * 2


def k_by_n_weight(x, w):
    return F.relu(x @ w)


def computed_factor(x, w):
    return F.linear(F.relu(x), w)


def computed_weight(x, w):
    return F.linear(x, w * 2)


def transposed_input(x, w):
    return x.t() @ w.t()


def batched(x, w):
    return torch.bmm(x, w.transpose(1, 2))


def column_reduction(x, w):
    return F.linear(x, w).sum(0)


def full_reduction(x, w):
    return F.linear(x, w).mean()


def mixed_reduction(x, w):
    return F.linear(x, w).sum((0, 2))


def normalises_over_more(x, w):
    return F.layer_norm(F.linear(x, w), (LEAD[-1], N))


def split_heads(x, w):
    h = F.linear(x, w).view(*LEAD, 4, N // 4)
    return F.softmax(h, -1)


def split_heads_elementwise(x, w, g):
    return F.linear(x, w).view(*LEAD, 4, N // 4) * g


def returns_split_heads(x, w):
    return F.linear(x, w).view(*LEAD, 4, N // 4)


def transposes(x, w):
    return F.linear(x, w).transpose(0, 1) + 1


def slices(x, w):
    return F.linear(x, w)[..., : N // 2]


def part_of_the_rows(x, w, p):
    return F.linear(x, w) + p


def without_keepdim(x, w):
    h = F.linear(x, w)
    return h / h.sum(-1)


def argmax(x, w):
    return F.linear(x, w).max(-1).indices


def integers(x, w):
    return F.linear(x, w).to(torch.int32)


def float64(x, w):
    return F.linear(x, w).double().exp()


def returns_bool(x, w):
    return F.linear(x, w) > 0


def dropout(x, w):
    return F.dropout(F.linear(x, w), 0.1)


def changes_argument(x, w, r):
    r += F.linear(x, w)
    return r


def reads_a_global(x, w):
    return F.linear(x, w) * elsewhere


def decides_by_value(x, w):
    h = F.linear(x, w)
    return h if h.sum() > 0 else -h


def returns_argument(x, w, r):
    return F.linear(x, w), r


def returns_row(x, w, b):
    return F.linear(x, w), b * 2


def returns_number(x, w):
    return F.linear(x, w), 3


def reduces_an_argument(x, w, r):
    return F.linear(x, w) + r.sum(-1, keepdim=True)


def mask_argument(x, w, mask):
    return F.linear(x, w).masked_fill(mask, 0)


def unknown(x, w):
    return torch.cumsum(F.linear(x, w), -1)


def floor_division(x, w):
    return torch.div(F.linear(x, w), 2, rounding_mode="floor")


def low_threshold(x, w):
    return F.softplus(F.linear(x, w), threshold=5)


def norm_of_order_3(x, w):
    return F.normalize(F.linear(x, w), p=3.0, dim=-1)


def returns_other_shape(x, w):
    return F.linear(x, w).reshape(LEAD[1], LEAD[0], N)


CASES = [
    (two_products, (tensor(K, N),), "mm_1", "a second matrix product"),
    (second_product_of_arguments, (x(), weight()), "mm_1", "a second matrix product"),
    (no_product, (), None, "no matrix product"),
    (unused_product, (), None, "no matrix product"),
    (k_by_n_weight, (tensor(K, N),), "mm", r"right factor w of shape \(8, 16\) is used as a \(K, N\) matrix"),
    (computed_factor, (), "mm", "left factor is computed inside the function, by relu"),
    (computed_weight, (), "mm", "right factor is computed inside the function, by mul"),
    (transposed_input, (), "mm", "rearranged x"),
    (batched, (tensor(LEAD[0], N, K),), "bmm", "a batched product of 2 weights"),
    (column_reduction, (), "sum_1", r"it reduces dimensions \[0\] of \(2, 3, 16\)"),
    (full_reduction, (), "mean", "it reduces all of its input"),
    (mixed_reduction, (), "sum_1", r"dimensions \[0, 2\]"),
    (normalises_over_more, (), "native_layer_norm", r"normalises over \[3, 16\]"),
    (split_heads, (), "_softmax", r"input view_\d of shape \(2, 3, 4, 4\) no longer ends in the GEMM's N"),
    (split_heads_elementwise, (tensor(4),), "mul", r"result of shape \(2, 3, 4, 4\) is neither"),
    (returns_split_heads, (), "view_1", "it is returned with shape"),
    (transposes, (), "transpose", "rearranges rows or columns"),
    (slices, (), "slice_1", "rearranges rows or columns"),
    (part_of_the_rows, (tensor(LEAD[1], N),), "add", "input p .* over a part of the rows"),
    (argmax, (), "getitem_1", "result 1 of max_1 is not available"),
    (integers, (), "_to_copy", "computed in torch.int32"),
    (float64, (), "_to_copy", "computed in torch.float64"),
    (returns_bool, (), "gt", "returned as torch.bool"),
    (dropout, (), None, "draws random numbers"),
    (changes_argument, (residual(),), None, "changes r in place"),
    (reads_a_global, (), "mul", "a tensor that is no argument"),
    (decides_by_value, (), None, "needs the values of a tensor"),
    (returns_argument, (residual(),), "r", "does not depend on the GEMM's rows"),
    (returns_row, (row(),), "mul", "does not depend on the GEMM's rows"),
    (returns_number, (), None, "returns a int; return tensors only"),
    (reduces_an_argument, (residual(),), "sum_1", "a reduction of arguments alone"),
    (mask_argument, (torch.ones(*LEAD, N, dtype=torch.bool),), "masked_fill", "input mask is torch.bool"),
    (unknown, (), "cumsum", "no counterpart of this operator"),
    (floor_division, (), "div", "rounded by 'floor'"),
    (low_threshold, (), "softplus", "threshold 5"),
    (norm_of_order_3, (), "linalg_vector_norm", "a norm of order 3"),
    (returns_other_shape, (), "y", r"the result has shape \(3, 2, 16\)"),
]


@pytest.mark.parametrize("fn, extra, node, reason", CASES, ids=[case[0].__name__ for case in CASES])
def test_refused(fn, extra, node, reason):
    args = (x(), *extra) if fn in (k_by_n_weight, batched) else (x(), weight(), *extra)
    if fn is transposed_input:
        args = (tensor(K, 5), weight())
    with pytest.raises(TraceError, match=reason) as caught:
        trace(fn, *args)
    if node is not None:
        assert caught.value.node == node
    assert isinstance(caught.value, ComFuseError)


def test_the_error_names_the_line():
    with pytest.raises(TraceError) as caught:
        trace(two_products, x(), weight(), tensor(K, N))
    first = inspect.getsourcelines(two_products)[1]
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


def test_argument_types():
    with pytest.raises(ArgumentError, match="w is a list"):
        trace(lambda x, w: F.linear(x, w[0]), x(), [weight()])
    with pytest.raises(ArgumentError, match=r"layout torch.sparse_coo"):
        trace(lambda x, w: F.linear(x, w), x(), weight().float().to_sparse())
    with pytest.raises(DeviceError, match="w is on meta"):
        trace(lambda x, w: F.linear(x, w), x(), weight().to("meta"))
