"""What the front end makes of a candidate, and where it says that one has to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from comfuse.frontend.errors import TraceError
from comfuse.frontend.symbols import concrete, is_symbolic, samples
from comfuse.generator.spec import Space
from comfuse.inductor.candidate import Found
from comfuse.inductor.lowerer import lowered
from tests.inductor.interpreted import interpreted
from tests.inductor.regions import behind, half, products

N, K, M = 64, 48, 40


def outcome(
    fn: Callable[..., Any], *args: torch.Tensor, dynamic: tuple[int, ...] = (), whole: bool = False
) -> Found | TraceError:
    """What becomes of all GEMMs of ``fn`` and all behind them, in the graph that TorchInductor makes of it.

    Args:
        dynamic: the arguments whose first dimension is symbolic.
        whole: what stands before the GEMMs is part of the candidate too.
    """
    outcomes: list[Found | TraceError] = []
    names: set[str] = set()

    def take(graph: Graph) -> None:
        anchors = products(graph)
        before = [n for n in graph.nodes if n.op == "call_function" and n < anchors[0]] if whole else []
        candidate = replace(behind(graph, *before, *anchors), anchors=tuple(anchors))
        names.update(node.name for node in candidate.nodes)
        try:
            outcomes.append(lowered(candidate))
        except TraceError as e:
            outcomes.append(e)

    torch._dynamo.reset()
    for i in dynamic:
        torch._dynamo.mark_dynamic(args[i], 0)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=take), torch.no_grad():
        torch.compile(fn, backend=interpreted, fullgraph=True)(*args)
    (result,) = outcomes
    assert isinstance(result, Found) or result.node in names
    return result


def refusal(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> TraceError:
    result = outcome(fn, *args, **options)
    assert isinstance(result, TraceError)
    return result


def spec(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> str:
    result = outcome(fn, *args, **options)
    assert isinstance(result, Found), result
    assert result.dynamic == bool(options.get("dynamic"))
    return result.lowered.spec.text()


def norm(x, w, r, g):
    return F.rms_norm(F.linear(x, w) + r, (N,), g)


def of_norm(rows: int) -> tuple[torch.Tensor, ...]:
    return half(rows, K), half(N, K), half(rows, N), half(N)


def test_equal_layers_have_equal_specs():
    def other_names(gain, matrix, before, residual):
        hidden = F.linear(before, matrix)
        return F.rms_norm(hidden + residual, (N,), gain)

    x, w, r, g = of_norm(M)
    assert spec(other_names, g, w, x, r) == spec(norm, x, w, r, g)


def test_symbolic_rows_have_the_spec_of_any():
    assert spec(norm, *of_norm(M), dynamic=(0, 2)) == spec(norm, *of_norm(7))


def test_rows_divided_by_a_number():
    def pairs(x, w):
        return F.relu(F.linear(x.view(-1, 2, K), w)).view(-1, 2 * N)

    assert spec(pairs, half(M, K), half(N, K), dynamic=(0,)) == spec(pairs, half(M, K), half(N, K))


def test_symbolic_columns_and_inner_sizes_are_refused():
    columns = refusal(lambda w, x: F.relu(F.linear(x, w)), half(N, K), half(M, K), dynamic=(0,))
    inner = refusal(lambda x, y: F.relu(x.t() @ y), half(M, K), half(M, N), dynamic=(0, 1))
    assert columns.reason.startswith("its N = s")
    assert inner.reason.startswith("its K = s")
    assert "mm" in columns.node
    assert "mm" in inner.node


def test_a_kernel_that_depends_on_symbolic_rows_is_refused():
    def scaled(x, w):
        return F.linear(x, w) * x.shape[0]

    assert "depends on the number of rows" in refusal(scaled, half(M, K), half(N, K), dynamic=(0,)).reason
    spec(scaled, half(M, K), half(N, K))


def test_no_rows():
    assert "no rows" in refusal(lambda x, w: F.relu(x @ w), half(0, K), half(K, N)).reason


def test_results_in_another_order_end_the_region():
    def heads(x, w):
        return F.relu(F.linear(x, w)).view(8, 5, 4, 16).transpose(1, 2)

    error = refusal(heads, half(M, K), half(N, K))
    assert "another order" in error.reason
    assert error.node.startswith("permute")


def test_two_products_that_are_read_as_one():
    def packed(x, w):
        h = F.linear(x, w)
        return F.silu(h[:, : N // 2]) * h[:, N // 2 :], h

    error = refusal(packed, half(M, K), half(N, K))
    assert "the halves of its columns apart" in error.reason
    assert error.node.startswith("mm")


def test_a_part_of_the_rows_ends_the_region():
    error = refusal(lambda x, w: F.relu(x @ w)[:8], half(M, K), half(K, N))
    assert error.node.startswith("slice")


def test_inputs_that_need_a_copy_end_the_region():
    def turned(x, w, r):
        return F.linear(x, w).view(8, 5, N) + r.view(5, 8, N).transpose(0, 1)

    error = refusal(turned, half(M, K), half(N, K), half(M, N))
    assert "would have to be copied" in error.reason
    assert error.node.startswith("add")


def test_a_number_where_the_factors_are_is_an_operand():
    """On a CPU as on a GPU: a kernel reads it from the memory that it reads all else from."""
    found = outcome(lambda x, w, s: (x @ w) * s, half(M, K), half(K, N), torch.tensor(2.0))
    assert isinstance(found, Found)
    assert [operand.space for operand in found.lowered.operands] == [Space.ROW]
    assert not found.lowered.scalars


def test_fills_become_numbers():
    def masked(x, w, mask):
        return torch.where(mask, x @ w, torch.full((), 3.0, dtype=x.dtype))

    found = outcome(masked, half(M, K), half(K, N), torch.rand(M, N) < 0.5)
    assert isinstance(found, Found)
    assert [node.value for node in found.lowered.spec.nodes if node.op == "const"] == [3.0]
    assert len(found.lowered.operands) == 1


def test_a_factor_converted_inside_is_refused():
    error = refusal(lambda x, w: F.relu(x.to(torch.bfloat16) @ w), torch.randn(M, K), half(K, N), whole=True)
    assert "converted" in error.reason
    assert error.node.startswith("convert")


def test_operators_of_torch_inductor_alone():
    def backward(dy, y):
        scores = torch.matmul(dy, y.transpose(-1, -2))
        return torch.ops.aten._softmax_backward_data(scores, scores, -1, torch.bfloat16)

    found = outcome(backward, half(6, 32, 16), half(6, 64, 16))
    assert isinstance(found, Found)
    targets = {str(node.target) for node in found.candidate.nodes}
    assert "row_sum" in {node.op for node in found.lowered.spec.nodes}
    assert "prims.fma.default" in targets or torch.__version__ < "2.14"


def test_samples_have_the_divisors_of_the_sizes():
    env = ShapeEnv()
    rows = env.create_unbacked_symint()
    size = (rows // 8) * 8 + rows // 6
    tables = samples([rows, size, 3])
    assert len(tables) == 2
    assert len({concrete(rows, table) for table in tables}) == 2
    for table in tables:
        assert concrete(rows, table) % 24 == 0
    assert is_symbolic(size)
    assert samples([3, torch.empty(2)]) == ({},)
