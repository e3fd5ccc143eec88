"""The region finder on small graphs built by hand: one rule each."""

from __future__ import annotations

import operator

import pytest
import torch
import torch._inductor.inductor_prims
from torch.fx import Graph, Node

from comfuse.inductor.candidate import Candidate
from comfuse.inductor.contest import find
from comfuse.inductor.merge import merge_views
from comfuse.inductor.policy import Policy
from tests.inductor.graphs import Builder, has_order, is_convex

aten = torch.ops.aten
prims = torch.ops.prims

M, N, K = 48, 64, 64


def one(graph: Graph, force: bool = False) -> Candidate:
    """The only region of a graph."""
    (candidate,), _ = find(graph, Policy(force=force))
    assert is_convex(candidate.nodes)
    return candidate


def left(graph: Graph, force: bool = False) -> str:
    """Why the only GEMM of a graph has no region."""
    candidates, (verdict,) = find(graph, Policy(force=force))
    assert candidates == []
    assert not verdict.fused
    return verdict.reason


def product(make: Builder, dtype: torch.dtype = torch.bfloat16) -> Node:
    return make.mm(make.input(M, K, dtype=dtype), make.input(K, N, dtype=dtype))


def cast(make: Builder, x: Node, dtype: torch.dtype) -> Node:
    return make.call(prims.convert_element_type.default, x, dtype)


# --- GEMMs that are left -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64], ids=str)
def test_factors_of_other_dtypes_are_left(dtype: torch.dtype) -> None:
    make = Builder()
    y = make.call(aten.add.Tensor, product(make, dtype), make.input(M, N, dtype=dtype))
    assert str(dtype) in left(make.output(y), force=True)


def test_batched_products_are_answered_too() -> None:
    make = Builder()
    a, b = make.input(4, M, K, dtype=torch.float32), make.input(4, K, N, dtype=torch.float32)
    plain = make.call(aten.bmm.default, a, b)
    added = make.call(aten.baddbmm.default, plain, a, b)
    _, verdicts = find(make.output(added), Policy(force=True))
    assert [v.anchor for v in verdicts] == [plain.name, added.name]
    assert [v.shape for v in verdicts] == [(4 * M, N, K)] * 2


def test_a_product_of_unknown_shape_is_left() -> None:
    """Passes of others may leave nodes without one."""
    make = Builder()
    y = make.call(aten.relu.default, product(make))
    del y.args[0].meta["val"]
    assert "shape" in left(make.output(y))


def test_a_product_alone_or_with_a_bias_is_left() -> None:
    make = Builder()
    assert left(make.output(product(make)), force=True).startswith("nothing to fuse behind it: its result is")
    make = Builder()
    addmm = make.call(aten.addmm.default, make.input(N), make.input(M, K), make.input(K, N))
    assert "nothing to fuse" in left(make.output(addmm), force=True)
    make = Builder()
    graph = make.output(make.call(aten.add.Tensor, product(make), make.input(N)))
    assert "but a bias" in left(graph)
    assert one(graph, force=True).outputs


def test_views_and_casts_behind_a_product_are_nothing_to_fuse() -> None:
    make = Builder()
    wide = cast(make, product(make), torch.float32)
    assert "nothing to fuse" in left(make.output(make.call(aten.permute.default, wide, [1, 0])), force=True)


def test_what_the_graph_writes_to_is_not_read_later() -> None:
    make = Builder()
    x, state = make.input(M, K), make.input(M, N)
    before = make.call(aten.mul.Tensor, state, 2)
    make.call(aten.copy_.default, state, make.input(M, N))
    h = make.mm(x, make.input(K, N))
    y = make.call(aten.relu.default, make.call(aten.add.Tensor, h, before))
    candidate = one(make.output(y))
    assert before in candidate.inputs, "computed from the state before it is written"
    make = Builder()
    x = make.input(M, K)
    make.call(aten.copy_.default, x, make.input(M, K))
    h = make.mm(make.call(aten.reshape.default, x, [M, K]), make.input(K, N))
    assert "in place" in left(make.output(make.call(aten.relu.default, h)), force=True)


# --- what is absorbed --------------------------------------------------------------------------------


def test_what_only_the_region_reads_is_computed_in_it() -> None:
    make = Builder()
    h, z = product(make), make.input(M, N)
    slope = make.call(aten.erf.default, cast(make, z, torch.float32))
    y = make.call(aten.mul.Tensor, h, slope)
    candidate = one(make.output(cast(make, y, torch.bfloat16)))
    assert slope in candidate.nodes
    assert z in candidate.inputs


def test_what_others_read_too_is_read() -> None:
    make = Builder()
    h = product(make)
    slope = make.call(aten.erf.default, make.input(M, N))
    y = make.call(aten.relu.default, make.call(aten.mul.Tensor, h, slope))
    assert slope in one(make.output(y, slope)).inputs


def test_a_mask_is_read_and_not_what_it_is_made_of() -> None:
    """Four bytes of random numbers for a mask of one are stored for nobody else."""
    make = Builder()
    h = product(make)
    seed = make.input(dtype=torch.int64)
    numbers = make.call(prims.inductor_random.default, [M, N], seed, "rand")
    mask = make.call(aten.gt.Scalar, numbers, 0.1)
    y = make.call(aten.relu.default, make.call(aten.mul.Tensor, h, mask))
    assert mask in one(make.output(y)).inputs


def test_factors_are_not_computed_in_the_region() -> None:
    make = Builder()
    a = make.call(aten.relu.default, make.input(M, K))
    y = make.call(aten.relu.default, make.mm(a, make.input(K, N)))
    assert a in one(make.output(y)).inputs


# --- where it ends -----------------------------------------------------------------------------------


def test_it_ends_on_the_narrow_cast_and_before_views() -> None:
    make = Builder()
    wide = make.call(aten.exp.default, cast(make, product(make), torch.float32))
    narrow = cast(make, wide, torch.bfloat16)
    turned = make.call(aten.permute.default, narrow, [1, 0])
    copied = make.call(aten.clone.default, turned)
    for force in (False, True):
        assert one(make.graph if force else make.output(copied), force).outputs == (narrow,)


def test_it_does_not_end_on_a_wide_value_that_only_pointwise_nodes_read() -> None:
    make = Builder()
    narrow = make.call(aten.relu.default, product(make))
    wide = make.call(aten.mul.Tensor, cast(make, narrow, torch.float32), 2.0)
    stop = make.call(aten.cumsum.default, wide, 0)
    outside = make.call(aten.add.Tensor, wide, stop)
    candidate = one(make.output(narrow, cast(make, outside, torch.bfloat16)))
    assert candidate.outputs[0] is narrow
    assert candidate.stopped[0][0] == stop.name


def test_uses_outside_become_outputs() -> None:
    make = Builder()
    h = product(make)
    y = make.call(aten.relu.default, h)
    s = make.call(aten.sum.dim_IntList, y, [-1], True)
    assert one(make.output(h, y, s)).outputs == (h, y, s)


def test_column_sums_are_outputs() -> None:
    make = Builder()
    y = make.call(aten.relu.default, product(make))
    s = make.call(aten.sum.dim_IntList, y, [0])
    assert one(make.output(y, s)).outputs == (y, s)


def test_all_results_of_an_operator_go_together() -> None:
    make = Builder()
    y = make.call(aten.relu.default, product(make))
    extreme = make.graph.call_function(aten.max.dim, (y, 0))  # over the rows: no index in a kernel
    extreme.meta["val"] = aten.max.dim(y.meta["val"], 0)
    items = [make.call(aten.neg.default, make.call(operator.getitem, extreme, i)) for i in (0, 1)]
    candidate = one(make.output(y, *items), force=True)
    assert candidate.outputs == (y,)


def test_it_is_cut_where_the_front_end_refuses() -> None:
    make = Builder()
    y = make.call(aten.relu.default, product(make))
    quarter = make.call(aten.mul.Tensor, make.call(aten.slice.Tensor, y, 1, 0, N // 4), 2.0)
    behind = make.call(aten.add.Tensor, quarter, 1.0)
    candidate = one(make.output(y, behind), force=True)
    assert candidate.outputs == (y,)
    assert "part of the columns" in dict(candidate.stopped)[quarter.name]


# --- several GEMMs -----------------------------------------------------------------------------------


def test_a_sum_of_two_products_goes_to_the_later() -> None:
    make = Builder()
    first, second = product(make), product(make)
    y = make.call(aten.relu.default, make.call(aten.add.Tensor, first, second))
    candidates, verdicts = find(make.output(y), Policy())
    assert [c.anchors for c in candidates] == [(second,)]
    assert first in candidates[0].inputs
    assert "another matrix product" in verdicts[0].reason


def test_a_sum_goes_to_the_product_whose_region_saves_more() -> None:
    make = Builder()
    first, second = product(make), product(make)
    active = make.call(aten.relu.default, first)
    total = make.call(aten.sum.dim_IntList, active, [0])  # else read once more
    y = make.call(aten.add.Tensor, active, second)
    candidates, _ = find(make.output(y, total), Policy())
    assert [c.anchors for c in candidates] == [(first,)]
    assert y in candidates[0].nodes
    assert second in candidates[0].inputs


@pytest.mark.parametrize("force", [False, True])
def test_regions_leave_each_other_an_order(force: bool) -> None:
    """``last`` depends on the first product, and through a cumsum on the region that reads that product."""
    make = Builder()
    first, second = product(make), product(make)
    active = make.call(aten.relu.default, second)
    total = make.call(aten.sum.dim_IntList, active, [0])
    both = make.call(aten.add.Tensor, active, first)
    accumulated = make.call(aten.cumsum.default, active, 0)
    last = make.call(aten.mul.Tensor, make.call(aten.relu.default, first), accumulated)
    graph = make.output(both, total, last)
    candidates, _ = find(graph, Policy(force=force))
    settled = next(c for c in candidates if second in c.anchors)
    assert {active, both} < set(settled.nodes)
    assert not any(last in c.nodes for c in candidates)
    assert has_order(graph, candidates)


def test_what_a_settled_region_computes_is_read_from_it() -> None:
    make = Builder()
    first = product(make)
    wide = make.call(aten.exp.default, first)
    total = make.call(aten.sum.dim_IntList, wide, [0])
    active = make.call(aten.relu.default, first)  # read by nobody but the other region
    accumulated = make.call(aten.cumsum.default, wide, 0)
    second = make.mm(accumulated, make.input(N, N))
    y = make.call(aten.add.Tensor, second, active)
    candidates, _ = find(make.output(total, y), Policy())
    assert [c.anchors for c in candidates] == [(first,), (second,)]
    assert active in candidates[0].outputs
    assert active in candidates[1].inputs


def side_by_side(make: Builder, *, widths: tuple[int, int] = (N, N), same: bool = True) -> tuple[Node, Node]:
    x = make.input(M, K)
    first = make.mm(x, make.input(K, widths[0]))
    return first, make.mm(x if same else make.input(M, K), make.input(K, widths[1]))


def test_two_products_of_the_same_factor_that_meet_are_one_region() -> None:
    make = Builder()
    gate, up = side_by_side(make)
    y = make.call(aten.mul.Tensor, make.call(aten.sigmoid.default, gate), up)
    assert one(make.output(y)).anchors == (gate, up)


def test_products_that_do_not_meet_are_two_regions() -> None:
    make = Builder()
    both = [make.call(aten.relu.default, x) for x in side_by_side(make)]
    candidates, _ = find(make.output(*both), Policy())
    assert [len(c.anchors) for c in candidates] == [1, 1]


def test_products_of_other_factors_are_no_pair() -> None:
    make = Builder()
    gate, up = side_by_side(make, same=False)
    y = make.call(aten.mul.Tensor, make.call(aten.sigmoid.default, gate), up)
    assert one(make.output(y)).anchors == (up,)


def test_of_three_products_two_are_a_pair() -> None:
    make = Builder()
    x = make.input(M, K)
    a, b, c = (make.mm(x, make.input(K, N)) for _ in range(3))
    y = make.call(aten.mul.Tensor, make.call(aten.mul.Tensor, a, b), make.call(aten.relu.default, c))
    candidates, verdicts = find(make.output(y), Policy())
    assert sum(len(c.anchors) for c in candidates) + len(verdicts) == 3
    assert [c.anchors for c in candidates] == [(b, c)]


# --- views -------------------------------------------------------------------------------------------


def test_gemms_of_equal_views_read_one_node() -> None:
    make = Builder()
    x, weight = make.input(2, M, K), make.input(N, K)
    pairs = []
    for _ in range(3):
        rows = make.call(aten.reshape.default, make.call(aten.clone.default, x), [2 * M, K])
        pairs.append((rows, make.call(aten.permute.default, weight, [1, 0])))
    products = [make.mm(*pair) for pair in pairs]
    graph = make.output(*products)
    merge_views(graph)
    assert [node.args for node in products] == [pairs[0]] * 3
    graph.lint()


def test_copies_that_are_returned_stay_two() -> None:
    make = Builder()
    x = make.input(M, K)
    copies = tuple(make.call(aten.clone.default, x) for _ in range(2))
    graph = make.output(*copies)
    merge_views(graph)
    assert graph.output_node().args[0] == copies


def test_copies_before_and_after_a_write_stay_two() -> None:
    make = Builder()
    state, weight = make.input(M, K), make.input(K, N)
    before = make.mm(make.call(aten.clone.default, state), weight)
    make.call(aten.copy_.default, state, make.input(M, K))
    after = make.mm(make.call(aten.clone.default, state), weight)
    merge_views(make.output(before, after))
    assert before.args[0] is not after.args[0]
