"""The C++ binding on host tensors: lookup, checks, copies, workspaces, errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
from torch import Tensor

from comfuse import fallbacks
from comfuse.generator import catalog
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.library import abi
from tests.ops.emulated import emulate
from tests.ops.host_binding import Host

BF16 = DType.BF16
K = 32
# A spec of its own for each test, since nothing is ever taken out of the table.
_SIZES = count(16, 8)


def linear() -> FusedSpec:
    return catalog.linear(next(_SIZES), K, BF16, bias=BF16, residual=DType.FP32)


def tensors(spec: FusedSpec, *lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    bf16 = torch.bfloat16
    return (
        torch.randn(*lead, K).to(bf16),
        torch.randn(spec.n, K).to(bf16),
        torch.randn(spec.n).to(bf16),
        torch.randn(*lead, spec.n),
    )


def expected(a: Tensor, b: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return (a.float() @ b.float().t() + bias.float() + residual.reshape(*a.shape[:-1], -1)).to(torch.bfloat16)


def test_arguments_reach_the_kernel(host: Host) -> None:
    spec = linear()
    host.register(spec, run=emulate(spec))
    a, b, bias, residual = tensors(spec, 5)
    y = host.call(spec, a, b, (bias, residual))
    assert y.shape == (5, spec.n)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=0)
    (launch,) = host.launched
    assert (launch.args.abi_version, launch.args.m, launch.args.k) == (abi.ABI_VERSION, 5, K)
    assert launch.workspace is None
    assert launch.stream == 0x10
    assert host.copies == [0, 0, 0]


@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3), (2, 1, 3), (1, 1, 1, 5)])
def test_leading_shapes(host: Host, lead: tuple[int, ...]) -> None:
    spec = linear()
    host.register(spec, run=emulate(spec))
    a, b, bias, residual = tensors(spec, *lead)
    y = host.call(spec, a, b, (bias, residual))
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=0)
    assert host.copies == [0, 0, 0]


def test_rows_with_a_stride_are_not_copied(host: Host) -> None:
    spec = linear()
    host.register(spec, run=emulate(spec))
    a, b, bias, residual = tensors(spec, 4, 6)
    wide = torch.zeros(4, 6, K + 16, dtype=a.dtype)
    wide[..., 8 : K + 8] = a
    y = host.call(spec, wide[..., 8 : K + 8], b, (bias, residual))
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=0)
    assert host.copies == [0, 0, 0]
    assert host.launched[0].args.a.stride == K + 16


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda a: a.transpose(0, 1).contiguous().transpose(0, 1), id="leading dimensions swapped"
        ),
        pytest.param(lambda a: a.transpose(1, 2).contiguous().transpose(1, 2), id="columns apart"),
        pytest.param(lambda a: a[:1].expand(4, 6, K), id="rows repeated"),
        pytest.param(
            lambda a: torch.cat([a.new_zeros(1), a.flatten()])[1:].view(a.shape), id="misaligned pointer"
        ),
        pytest.param(lambda a: torch.nn.functional.pad(a, (0, 1))[..., :K], id="misaligned rows"),
    ],
)
def test_what_cannot_be_read_in_place_is_copied(host: Host, make: Callable[[Tensor], Tensor]) -> None:
    spec = linear()
    host.register(spec, run=emulate(spec))
    a, b, bias, residual = tensors(spec, 4, 6)
    a = make(a)
    y = host.call(spec, a, b, (bias, residual))
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=0)
    assert host.copies == [1, 0, 0]


def test_weights_and_tiles_are_copied_too(host: Host) -> None:
    spec = linear()
    host.register(spec, run=emulate(spec))
    a, b, bias, residual = tensors(spec, 6)
    y = host.call(spec, a, b.t().contiguous().t(), (bias, residual.t().contiguous().t()))
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=0)
    assert host.copies == [0, 1, 1]


def test_vectors_may_have_any_stride(host: Host) -> None:
    spec = linear()
    host.register(spec)
    a, b, bias, residual = tensors(spec, 6)
    for vector, stride in [
        (bias, 1),
        (torch.stack([bias, bias], dim=1)[:, 0], 2),
        (bias[:1].expand(spec.n), 0),
        (bias.view(1, 1, spec.n), 1),
    ]:
        host.call(spec, a, b, (vector, residual))
        assert host.launched[-1].args.operands[0].stride == stride
        assert host.launched[-1].args.operands[0].data == vector.data_ptr()
    assert host.copies == [0, 0, 0]


def test_a_tile_may_be_flat(host: Host) -> None:
    spec = linear()
    host.register(spec, run=emulate(spec))
    a, b, bias, residual = tensors(spec, 2, 3)
    y = host.call(spec, a, b, (bias, residual.view(6, spec.n)))
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=0)


def test_scalars_and_columns(host: Host) -> None:
    n = next(_SIZES)
    b = SpecBuilder(n, K, BF16)
    scaled = b.op("mul", b.op("mul", b.gemm(), b.load("scale", Space.COLUMN)), b.load("alpha", Space.SCALAR))
    b.output("total", b.op("row_sum", scaled), DType.FP32)
    b.output("y", scaled, BF16)
    spec = b.spec()
    host.register(spec)
    a, weight = torch.zeros(2, 3, K, dtype=torch.bfloat16), torch.zeros(n, K, dtype=torch.bfloat16)
    apart = torch.ones(2, 3, 4)[..., 0]
    for scale, stride in ((torch.ones(2, 3), 1), (torch.ones(2, 3, 1), 1), (torch.ones(6), 1), (apart, 4)):
        total, y = torch.ops.comfuse_host.region(spec.text(), a, weight, [scale], [0.5])
        assert (total.shape, total.dtype) == ((2, 3), torch.float32)
        assert (y.shape, y.dtype) == ((2, 3, n), torch.bfloat16)
        args = host.launched[-1].args
        assert args.scalars[0] == 0.5
        assert args.operands[0].stride == stride
        assert args.outputs[0].stride == 1
        assert args.outputs[1].stride == n


def test_a_call_without_operands(host: Host) -> None:
    """AOTInductor cannot pass an empty list of tensors: it calls a form that has none."""
    b = SpecBuilder(next(_SIZES), K, BF16)
    acc = b.gemm()
    for op in ("row_max", "row_sum", "row_min"):
        b.output(op, b.op(op, acc), DType.FP32)
    spec, other = b.spec(), linear()
    host.register(spec)
    host.register(other)
    x, w = torch.randn(2, 3, K).bfloat16(), torch.randn(spec.n, K).bfloat16()
    results = torch.ops.comfuse_host.region.alone(spec.text(), x, w, [])
    assert [(y.shape, y.dtype) for y in results] == [((2, 3), torch.float32)] * 3
    args = host.launched[-1].args
    assert [args.outputs[i].data for i in range(3)] == [y.data_ptr() for y in results]
    with pytest.raises(RuntimeError, match="operands is a list of 0; allowed: 2"):
        torch.ops.comfuse_host.region.alone(other.text(), x, w, [])


def test_no_rows_launch_nothing(host: Host) -> None:
    spec = linear()
    asked = []

    def resolve(text: str, rows: int) -> int:
        asked.append(rows)
        host.register_program(spec)
        return 0

    host.resolve = resolve
    a, b, bias, residual = tensors(spec, 0)
    assert host.call(spec, a, b, (bias, residual)).shape == (0, spec.n)
    assert asked == [0]  # for the program alone
    a, b, bias, residual = tensors(spec, 2, 0, 3)
    assert host.call(spec, a, b, (bias, residual)).shape == (2, 0, 3, spec.n)
    assert not host.launched
    assert asked == [0]


def test_the_resolver_is_asked_once_a_class(host: Host) -> None:
    spec = linear()
    asked = []

    def resolve(text: str, rows: int) -> int:
        assert text == spec.text()
        asked.append(rows)
        host.register_program(spec)
        if rows > 128:
            host.register(spec, min_rows=129)
        elif rows > 0:
            host.register(spec, max_rows=128)
        return 0

    host.resolve = resolve
    for m in (4, 128, 300, 129, 5):
        a, b, bias, residual = tensors(spec, m)
        host.call(spec, a, b, (bias, residual))
    assert asked == [0, 4, 300]
    assert len({launch.name for launch in host.launched}) == 2


def launched_by(host: Host, spec: FusedSpec, m: int = 5) -> str:
    a, b, bias, residual = tensors(spec, m)
    host.call(spec, a, b, (bias, residual))
    return host.launched[-1].name


def test_a_kernel_that_is_registered_later_takes_over(host: Host) -> None:
    spec = linear()
    first = host.register(spec)
    assert [launched_by(host, spec) for _ in range(2)] == [first] * 2
    second = host.register(spec, max_rows=64)
    assert [launched_by(host, spec) for _ in range(2)] == [second] * 2
    assert launched_by(host, spec, 65) == first
    assert launched_by(host, spec) == second


def test_many_specs_in_turn(host: Host) -> None:
    """More than a thread remembers, some of which look alike."""
    specs = [linear() for _ in range(40)]
    names = [host.register(spec) for spec in specs]
    for _ in range(3):
        assert [launched_by(host, spec) for spec in specs] == names


def test_many_threads(host: Host) -> None:
    specs = [linear() for _ in range(8)]
    for spec in specs:
        host.register(spec, run=emulate(spec))

    def work(spec: FusedSpec) -> None:
        a, b, bias, residual = tensors(spec, 3)
        wanted = expected(a, b, bias, residual)
        for _ in range(50):
            assert torch.equal(host.call(spec, a, b, (bias, residual)), wanted)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, spec) for spec in specs * 2]:
            future.result()


def test_too_many_rows(host: Host) -> None:
    spec = linear()
    host.register(spec)
    _, b, bias, residual = tensors(spec, 1)
    a = torch.zeros(1, K, dtype=torch.bfloat16).expand(2**31, K)
    with pytest.raises(
        RuntimeError, match=r"a is of shape \(2147483648, 32\); allowed: at most 2147483647 rows in all"
    ):
        host.call(spec, a, b, (bias, residual))


def test_a_resolver_may_choose_the_reference(host: Host) -> None:
    spec = linear()
    host.register(spec, min_rows=1000)
    a, b, bias, residual = tensors(spec, 5)
    y = host.call(spec, a, b, (bias, residual))
    torch.testing.assert_close(y, expected(a, b, bias, residual), rtol=0, atol=1e-2)
    assert not host.launched
    assert sum(fallbacks.counts().values()) == 1


def test_another_gpu_runs_the_reference(host: Host) -> None:
    spec = linear()
    host.register(spec)
    host.library.fake_set_supported(0)
    a, b, bias, residual = tensors(spec, 5)
    host.call(spec, a, b, (bias, residual))
    assert not host.launched


def test_the_resolver_s_error_is_raised(host: Host) -> None:
    spec = linear()
    host.resolve = lambda text, m: "[BuildError] it does not compile"
    a, b, bias, residual = tensors(spec, 5)
    with pytest.raises(RuntimeError, match=r"comfuse: \[BuildError\] it does not compile"):
        host.call(spec, a, b, (bias, residual))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: {"a": t["a"][..., :-8]}, r"\[ShapeError\] a is of shape \(6, 24\)"),
        (lambda t: {"a": t["a"].half()}, r"\[DTypeError\] a is torch\.\w+; allowed: torch\.bfloat16"),
        (lambda t: {"b": t["b"][:-1]}, r"\[ShapeError\] b is of shape"),
        (lambda t: {"b": t["b"][0]}, r"\[ShapeError\] b is of shape \(32,\)"),
        (lambda t: {"b": t["b"].float()}, r"\[DTypeError\] b is torch\.\w+; allowed: torch\.bfloat16"),
        (lambda t: {"bias": t["bias"][:-1]}, r"\[ShapeError\] bias is of shape"),
        (
            lambda t: {"bias": t["bias"].double()},
            r"\[DTypeError\] bias is torch\.\w+; allowed: torch\.bfloat16",
        ),
        (lambda t: {"residual": t["residual"][:-1]}, r"\[ShapeError\] residual is of shape"),
        (lambda t: {"residual": t["residual"].t()}, r"\[ShapeError\] residual is of shape"),
        (lambda t: {"residual": t["residual"].view(2, 3, -1)[:, :2]}, r"\[ShapeError\] residual is of shape"),
    ],
)
def test_arguments_are_checked(
    host: Host, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    spec = linear()
    host.register(spec)
    named = dict(zip(("a", "b", "bias", "residual"), tensors(spec, 6), strict=True))
    named |= change(named)
    with pytest.raises(RuntimeError, match=message):
        host.call(spec, named["a"], named["b"], (named["bias"], named["residual"]))
    assert not host.launched


def test_counts_are_checked(host: Host) -> None:
    spec = linear()
    host.register(spec)
    a, b, bias, _ = tensors(spec, 6)
    with pytest.raises(RuntimeError, match=r"\[ArgumentError\] operands is a list of 1; allowed: 2"):
        host.call(spec, a, b, (bias,))
    for number, allowed in ((18, "2"), (19, "at most 18")):  # 16 and two further factors
        with pytest.raises(RuntimeError, match=rf"operands is a list of {number}; allowed: {allowed}"):
            torch.ops.comfuse_host.region(spec.text(), a, b, [bias] * number, [])


@pytest.mark.parametrize(
    "code, message",
    [(-2, "misaligned, or a size"), (-3, "TMA descriptor"), (-5, "all tiles at once"), (700, "fake error")],
)
def test_a_failed_launch_says_why(host: Host, code: int, message: str) -> None:
    spec = linear()
    name = host.register(spec, code=code)
    a, b, bias, residual = tensors(spec, 6)
    with pytest.raises(RuntimeError, match=rf"\[LaunchError\] {name}: .*{message}"):
        host.call(spec, a, b, (bias, residual))
