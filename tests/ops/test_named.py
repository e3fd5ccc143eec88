"""The named ops on CPU tensors: numbers, shapes, dtypes, layouts, gradients, torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from comfuse import fallbacks, ops
from comfuse.generator.spec import Space
from comfuse.ops import named, programs, resolver, schema
from comfuse.reference import TORCH_DTYPES
from tests.ops.cases import BF16, BY_NAME, CASES, FP16, FP32, Case, N

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
with_tiles = pytest.mark.parametrize("case", [c for c in CASES if c.tiles], ids=lambda case: case.name)


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(x.float(), y.float()) for x, y in zip(a, b, strict=True))


@every_case
@pytest.mark.parametrize("dtype, other", [(BF16, BF16), (FP16, FP16), (BF16, FP32), (FP16, BF16)])
def test_numbers(case: Case, dtype: torch.dtype, other: torch.dtype) -> None:
    arguments = case.arguments((33,), dtype, other)
    case.check(case(arguments), arguments)
    assert not fallbacks.counts()


@every_case
@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (1, 1, 5), (0,), (2, 0, 3)])
def test_leading_shapes(case: Case, lead: tuple[int, ...]) -> None:
    arguments = case.arguments(lead, BF16, BF16)
    case.check(case(arguments), arguments)


@with_tiles
def test_a_tile_may_be_flat(case: Case) -> None:
    arguments = case.arguments((2, 3), BF16, BF16)
    flat = arguments | {name: arguments[name].view(6, N) for name in case.tiles}
    assert same(case(flat), case(arguments))


@with_tiles
@pytest.mark.parametrize(
    "part", [lambda t: t[:1], lambda t: t[:, :1], lambda t: t[0], lambda t: t[0, 0], lambda t: t[:1, :1]]
)
def test_a_tile_may_be_broadcast(case: Case, part: Callable[[Tensor], Tensor]) -> None:
    arguments = case.arguments((2, 3), BF16, BF16)
    some = arguments | {name: part(arguments[name]) for name in case.tiles}
    whole = {name: t.expand(2, 3, N).contiguous() if name in case.tiles else t for name, t in some.items()}
    assert same(case(some), case(whole))
    case.check(case(some), whole)


@every_case
def test_tensors_that_are_not_contiguous(case: Case) -> None:
    arguments = case.arguments((4, 6), BF16, BF16)
    other = {name: t.t().contiguous().t() if t.ndim == 2 else t for name, t in arguments.items()}
    other["x"] = other["x"].transpose(0, 1).contiguous().transpose(0, 1)
    case.check(case(other), arguments)


@every_case
def test_x_along_m(case: Case) -> None:
    arguments = case.arguments((6,), BF16, BF16)
    case.check(case(arguments | {"x": arguments["x"].t().contiguous().t()}), arguments)


@every_case
def test_sizes_that_no_kernel_takes_work_on_a_cpu(case: Case) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 7).bfloat16()
    weights = {name: torch.randn(13, 7).bfloat16() for name in case.weights}
    rest = {name: torch.randn(13) for name in case.rows} | {name: torch.randn(5, 13) for name in case.tiles}
    results = case({"x": x, **weights, **rest})
    empty = case({"x": x[:, :0], **{name: w[:, :0] for name, w in weights.items()}, **rest})
    zeros = case({"x": x * 0, **weights, **rest})
    assert [t.shape for t in empty] == [t.shape for t in results]
    assert same(empty, zeros)  # K = 0: the program applied to zeros


@every_case
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(case: Case, dynamic: bool) -> None:
    arguments = case.arguments((2, 6), BF16, BF16)

    def f(x: Tensor, **rest: Tensor) -> tuple[Tensor, ...]:
        results = case.op(x * 2, **rest, **case.options)
        return tuple(y.float() + 1 for y in (results if isinstance(results, tuple) else (results,)))

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    assert same(compiled(**arguments), f(**arguments))
    assert not fallbacks.counts()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layernorm all", "colsum gelu"])
def test_compiled_by_inductor(name: str) -> None:
    case = BY_NAME[name]
    arguments = case.arguments((2, 6), BF16, BF16)
    torch.compiler.reset()
    compiled = torch.compile(lambda **t: [y.relu() for y in case(t)], fullgraph=True)
    assert same(compiled(**arguments), tuple(y.relu() for y in case(arguments)))


@pytest.mark.parametrize("name", ["layernorm all", "softmax all", "quantize"])
def test_one_trace_serves_every_m(name: str) -> None:
    case = BY_NAME[name]
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda **t: case(t), fullgraph=True, backend=counter, dynamic=True)
    traces = []
    for m in (3, 7, 12):
        arguments = case.arguments((2, m), BF16, BF16)
        for static in ("weight", *case.rows):
            torch._dynamo.mark_static(arguments[static])
        case.check(compiled(**arguments), arguments)
        traces.append(counter.frame_count)
    assert len(set(traces)) == 1


# --- fused_gemm(out=) ---


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 6, N).bfloat16(),
        lambda: torch.zeros(2, 6, 100).bfloat16()[..., 3 : N + 3],
        lambda: torch.zeros(N, 6, 2).bfloat16().permute(2, 1, 0),
        lambda: torch.zeros(2 * 6 * N + 1).bfloat16()[1:].view(2, 6, N),
    ],
    ids=["contiguous", "slice", "turned", "misaligned"],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_out(make: Callable[[], Tensor], compiled: bool) -> None:
    case = BY_NAME["gemm gelu"]
    arguments = case.arguments((2, 6), BF16, FP32)
    out = make()
    function = case.op
    if compiled:
        torch.compiler.reset()
        function = torch.compile(case.op, fullgraph=True, backend="aot_eager")
    y = function(**arguments, **case.options, out=out)
    if not compiled:
        assert y is out
    assert torch.equal(out, case(arguments)[0])
    assert torch.equal(y, out)


def test_out_where_k_is_0() -> None:
    out = torch.ones(5, 13).bfloat16()
    x, weight = torch.zeros(5, 0).bfloat16(), torch.zeros(13, 0).bfloat16()
    BY_NAME["gemm"].op(x, weight, torch.full((13,), 2.0), out=out)
    assert torch.equal(out, torch.full((5, 13), 2.0).bfloat16())


@every_case
@pytest.mark.parametrize("compiled", [False, True])
def test_fallbacks_are_counted_by_the_op_s_name(
    case: Case, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no kernel serves its program; of two layers, where none serves one of them."""
    monkeypatch.setenv("COMFUSE_STRICT", "0")
    monkeypatch.setattr(programs, "_NAMES", {})
    monkeypatch.setattr(resolver, "reason", lambda spec, a: "of a test")
    arguments = case.arguments((3,), BF16, BF16)
    for op in named._OPS.values():
        monkeypatch.setattr(op, "texts", {})
    torch.compiler.reset()
    function = torch.compile(lambda t: case(t), backend="aot_eager") if compiled else case
    function(arguments)
    assert set(programs._NAMES.values()) == {case.op.__name__}
    (text,) = programs._NAMES
    x, weight, operands, scalars = of_shapes(programs.parse(text))
    for _ in range(2):
        schema._fall_back(text, x, weight, operands, scalars)
    assert fallbacks.counts() == {(case.op.__name__, "of a test"): 2}
    assert {programs.name_of(text) for text in programs._NAMES} == {case.op.__name__}


def test_fallbacks_of_chains_are_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are those of its links, which then run apart."""
    monkeypatch.setenv("COMFUSE_STRICT", "0")
    monkeypatch.setattr(programs, "_NAMES", {})
    monkeypatch.setattr(resolver, "reason", lambda spec, a: "of a test")
    w0, w1, q = torch.ones(64, 32).to(BF16), torch.ones(32, 64).to(BF16), torch.ones(2, 8, 32).to(BF16)
    ops.fused_b2b_gemm(torch.ones(3, 32).to(BF16), w0, w1, activation0="relu")
    (text,) = programs._NAMES
    schema._fall_back(text, *of_shapes(programs.parse(text)))
    assert fallbacks.counts() == {("fused_b2b_gemm", "of a test"): 1}
    assert set(programs._NAMES.values()) == {"fused_b2b_gemm"}
    assert len(programs._NAMES) == 3
    ops.fused_attention(q, q, q)
    assert "fused_attention" in programs._NAMES.values()


def of_shapes(program: programs.Program) -> tuple[Tensor, Tensor, list[Tensor], list[float]]:
    """A call of a program that is not batched."""
    dtype = TORCH_DTYPES[program.dtype]
    factors = [torch.ones(f.n or 3, f.k, dtype=dtype) for f in program.factors]
    sizes = {Space.ROW: lambda n: (n,), Space.COLUMN: lambda n: (3,), Space.TILE: lambda n: (3, n)}
    tensors = [
        torch.zeros(sizes[t.operand.space](t.n), dtype=TORCH_DTYPES[t.operand.dtype]) for t in program.tensors
    ]
    b, operands = program.joined(factors, tensors)
    return torch.ones(3, program.k, dtype=dtype), b, operands, [1.0] * program.scalar_count
