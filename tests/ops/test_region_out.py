"""Outputs in tensors of the caller's: strides, memory, errors; in C++ and where the reference runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import Tensor

from comfuse import fallbacks, ops, reference
from comfuse.errors import ArgumentError, DeviceError, ShapeError
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec
from comfuse.ops import resolver, schema
from tests.ops.emulated import emulate
from tests.ops.host_binding import Host

K = 16
_SCALES = count(1)


def product(
    n: int = 24, *, strided: bool = True, heads: int | None = None, batched: bool = False
) -> FusedSpec:
    b = SpecBuilder(n, K, DType.BF16, batched=batched)
    y = b.op("mul", b.gemm(), b.const(2.0 + next(_SCALES) / 64))
    b.output("y", y, DType.FP32, strided=strided, heads=heads)
    return b.spec()


def every_space() -> FusedSpec:
    b = SpecBuilder(64, K, DType.BF16, group=32)
    y = b.op("mul", b.gemm(), b.const(2.0 + next(_SCALES) / 64))
    for op in ("row_max", "group_sum", "col_sum", "full_sum"):
        b.output(op, b.op(op, y), DType.FP32)
    b.output("y", y, DType.FP32, strided=True)
    return b.spec()


def factors(n: int, *lead: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(*lead, K).bfloat16(), torch.randn(n, K).bfloat16()


STRIDED: list[tuple[tuple[int, ...], Callable[[tuple[int, ...]], Tensor], str]] = [
    ((6,), lambda s: torch.zeros(s), "contiguous"),
    ((6,), lambda s: torch.zeros(s[::-1]).t(), "column-major"),
    ((6,), lambda s: torch.zeros(6, 100)[:, 3:27], "a slice of columns"),
    ((6,), lambda s: torch.zeros(12, 24)[::2], "every other row"),
    ((6,), lambda s: torch.zeros(6, 48)[:, ::2], "every other column"),
    ((2, 6), lambda s: torch.zeros(6, 2, 24).transpose(0, 1), "rows in two levels"),
    ((2, 6), lambda s: torch.zeros(24, 6, 2).permute(2, 1, 0), "all dimensions turned"),
    ((2, 3, 4), lambda s: torch.zeros(2, 24, 3, 4).permute(0, 2, 3, 1), "channels first"),
    ((), lambda s: torch.zeros(48)[::2], "one row"),
]


@pytest.mark.parametrize("lead, make, _", STRIDED, ids=[case[2] for case in STRIDED])
@pytest.mark.parametrize("on", ["kernel", "reference", "cpu"])
def test_strides(
    host: Host, lead: tuple[int, ...], make: Callable[[tuple[int, ...]], Tensor], _: str, on: str
) -> None:
    spec = product()
    a, b = factors(24, *lead)
    out = make((*lead, 24))
    whole = out._base if out._base is not None else out
    untouched = whole.numel() - out.numel()
    whole.fill_(7.0)
    if on == "cpu":
        ops.region_out(spec.text(), a, b, [], [], [out])
    else:
        host.register(spec, min_rows=1 if on == "kernel" else 1000, run=emulate(spec))
        host.call_into(spec, a, b, [], [out])
        assert len(host.launched) == (on == "kernel")
    torch.testing.assert_close(out, reference.evaluate(spec, a, b)[0])
    assert (whole == 7.0).sum() == untouched


@pytest.mark.parametrize("n", [20, 23])
def test_columns_that_are_no_multiple_of_eight_may_lie_anywhere(host: Host, n: int) -> None:
    spec = product(n, strided=False)
    host.register(spec, run=emulate(spec))
    a, b = factors(n, 6)
    out = torch.zeros(n, 6).t()
    host.call_into(spec, a, b, [], [out])
    torch.testing.assert_close(out, reference.evaluate(spec, a, b)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 3, 6, 8),
        lambda: torch.zeros(2, 6, 3, 8).transpose(1, 2),
        lambda: torch.zeros(3, 8, 2, 6).permute(2, 0, 3, 1),
    ],
)
def test_heads(host: Host, make: Callable[[], Tensor]) -> None:
    spec = product(heads=8)
    host.register(spec, run=emulate(spec))
    a, b = factors(24, 2, 6)
    out = make()
    host.call_into(spec, a, b, [], [out])
    torch.testing.assert_close(out, reference.evaluate(spec, a, b)[0])


def test_batches(host: Host) -> None:
    spec = product(batched=True)
    host.register(spec, run=emulate(spec))
    a, b = factors(24, 3, 5)
    out = torch.zeros(24, 3, 5).permute(1, 2, 0)
    host.call_into(spec, a, b, [], [out])
    torch.testing.assert_close(out, reference.evaluate(spec, a, b)[0])


def test_every_space(host: Host) -> None:
    spec = every_space()
    host.register(spec, run=emulate(spec))
    a, b = factors(64, 2, 6)
    out = [
        torch.zeros(2, 6, 3)[..., 1],
        torch.zeros(2, 6, 5)[..., 2:4],
        torch.zeros(64, 2)[:, 0],
        torch.zeros(3)[2],
        torch.zeros(64, 2, 6).permute(1, 2, 0),
    ]
    host.call_into(spec, a, b, [], out)
    for got, wanted in zip(out, reference.evaluate(spec, a, b), strict=True):
        torch.testing.assert_close(got, wanted)


def test_no_rows(host: Host) -> None:
    spec = every_space()
    host.register(spec)
    a, b = factors(64, 0)
    out = [torch.ones(0), torch.ones(0, 2), torch.ones(64), torch.ones(()), torch.ones(0, 64)]
    host.call_into(spec, a, b, [], out)
    assert torch.equal(out[2], torch.zeros(64))
    assert out[3] == 0
    assert not host.launched


Call = tuple[FusedSpec, Tensor, Tensor, list[Tensor]]
Make = Callable[[], Call]


def call(*, strided: bool = True, lead: tuple[int, ...] = (6,)) -> Call:
    spec = product(strided=strided)
    return spec, *factors(24, *lead), [torch.zeros(*lead, 24)]


def with_out(make: Callable[[], Tensor], *, strided: bool = True, lead: tuple[int, ...] = (6,)) -> Make:
    return lambda: (*call(strided=strided, lead=lead)[:3], [make()])


def with_outs(*makes: Callable[[], Tensor]) -> Make:
    """The first outputs of a program with outputs of every space."""

    def build() -> Call:
        spec = every_space()
        own = [make() for make in makes]
        shapes = [(2, 6), (2, 6, 2), (64,), (), (2, 6, 64)]
        return spec, *factors(64, 2, 6), [*own, *(torch.zeros(shape) for shape in shapes[len(own) :])]

    return build


def in_the_input() -> Call:
    spec, _, b, _ = call()
    buffer = torch.zeros(6, 40)
    return spec, buffer.view(torch.bfloat16)[:, :K], b, [buffer[:, 4:28]]


def in_each_other() -> Call:
    spec, a, b, out = with_outs()()
    buffer = torch.zeros(100)
    return spec, a, b, [buffer[:12].view(2, 6), buffer[8:32].view(2, 6, 2), *out[2:]]


PLACE = "strides that give each element a place of its own"
ONE, TWO = "rows that one stride walks", "rows that at most two strides walk"
ALIGNED = "rows that start at multiples of 16 bytes"
FAULTS: dict[str, tuple[Make, str, str]] = {
    "number": (lambda: (*call()[:3], []), "out is a list of 0", "1"),
    "shape": (with_out(lambda: torch.zeros(6, 23)), "out[0] is of shape (6, 23)", "(6, 24)"),
    "rank": (with_out(lambda: torch.zeros(144)), "out[0] is of shape (144,)", "(6, 24)"),
    "dtype": (with_out(lambda: torch.zeros(6, 24).half()), "out[0] is torch.float16", "torch.float32"),
    "repeated": (
        with_out(lambda: torch.zeros(1, 24).expand(6, 24)),
        "out[0] is of strides (0, 1)",
        PLACE,
    ),
    "overlapping": (
        with_out(lambda: torch.zeros(100).as_strided((6, 24), (12, 1))),
        "out[0] is of strides (12, 1)",
        PLACE,
    ),
    "input": (in_the_input, "out[0] is in memory that a is in too", "memory of its own"),
    "each other": (in_each_other, "out[1] is in memory that out[0] is in too", "memory of its own"),
    "three levels": (
        with_out(lambda: torch.zeros(4, 3, 2, 24).permute(2, 1, 0, 3), lead=(2, 3, 4)),
        "out[0] is of strides (24, 48, 144, 1)",
        TWO,
    ),
    "plain, two levels": (
        with_out(lambda: torch.zeros(6, 2, 24).transpose(0, 1), strided=False, lead=(2, 6)),
        "out[0] is of strides (24, 48, 1)",
        ONE,
    ),
    "plain, columns": (
        with_out(lambda: torch.zeros(24, 6).t(), strided=False),
        "out[0] is of strides (1, 6)",
        "contiguous columns, as this output is not marked as strided (FusedSpec.strided marks it)",
    ),
    "plain, address": (
        with_out(lambda: torch.zeros(145)[1:].view(6, 24), strided=False),
        "out[0] is of strides (24, 1)",
        ALIGNED,
    ),
    "plain, rows": (
        with_out(lambda: torch.zeros(6, 25)[:, :24], strided=False),
        "out[0] is of strides (25, 1)",
        ALIGNED,
    ),
    "column": (with_outs(lambda: torch.zeros(6, 2).t()), "out[0] is of strides (1, 2)", ONE),
    "group": (
        with_outs(lambda: torch.zeros(2, 6), lambda: torch.zeros(2, 6, 4)[..., ::2]),
        "out[1] is of strides (24, 4, 2)",
        "contiguous columns",
    ),
}


@pytest.mark.parametrize("make, got, allowed", FAULTS.values(), ids=FAULTS)
def test_errors_are_the_same_in_both_languages(host: Host, make: Make, got: str, allowed: str) -> None:
    spec, a, b, out = make()
    with pytest.raises(ArgumentError) as of_python:
        ops.region_out(spec.text(), a, b, [], [], out)
    assert str(of_python.value).startswith(f"region: {got}; allowed: {allowed}")
    host.register(spec)
    with pytest.raises(RuntimeError) as of_cpp:
        host.call_into(spec, a, b, [], out)
    translated = resolver.translate(of_cpp.value, "region")
    assert type(translated) is type(of_python.value)
    assert str(translated) == str(of_python.value)
    assert not host.launched


def test_another_device() -> None:
    spec, a, b, _ = call()
    with pytest.raises(DeviceError, match=r"out\[0\] is on meta; allowed: a's device, cpu"):
        schema.OUT(spec.text(), a, b, [], [], [torch.zeros(6, 24, device="meta")])


def test_slices_of_one_buffer_do_not_overlap(host: Host) -> None:
    """The columns of one tensor for the output, others for what is read."""
    spec = product()
    host.register(spec, run=emulate(spec))
    buffer = torch.zeros(6, 40)
    a, b = factors(24, 6)
    buffer.view(torch.bfloat16)[:, 16:32] = a
    out = buffer[:, 16:]
    host.call_into(spec, buffer.view(torch.bfloat16)[:, 16:32], b, [], [out])
    torch.testing.assert_close(out, reference.evaluate(spec, a, b)[0])


@pytest.mark.parametrize("strided", [False, True])
def test_opcheck(strided: bool) -> None:
    spec, a, b, out = call(strided=strided)
    if strided:
        out = [torch.zeros(24, 6).t()]
    torch.library.opcheck(schema.OUT, (spec.text(), a, b, [], [], out))


def test_compiled() -> None:
    spec, a, b, _ = call()
    text = spec.text()

    def f(a: Tensor, out: Tensor) -> Tensor:
        ops.region_out(text, a * 2, b, [], [], [out])
        return out + 1

    torch.compiler.reset()
    out = torch.zeros(24, 6).t()
    y = torch.compile(f, fullgraph=True, backend="aot_eager")(a, out)
    wanted = reference.evaluate(spec, a * 2, b)[0]
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(y, wanted + 1)


def test_autograd_sees_the_change() -> None:
    spec, a, b, (out,) = call()
    weight = torch.ones(6, 24, requires_grad=True)
    y = (weight * out).sum()
    ops.region_out(spec.text(), a, b, [], [], [out])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_the_general_form_of_the_op_is_counted_where_it_falls_back(host: Host) -> None:
    spec, a, b, out = call()
    host.register(spec, min_rows=1000)
    host.call_into(spec, a, b, [], out)
    assert sum(fallbacks.counts().values()) == 1


def test_shapes_without_data() -> None:
    spec, a, b, out = call()
    meta = [t.to("meta") for t in (a, b, out[0])]
    schema.OUT(spec.text(), meta[0], meta[1], [], [], [meta[2]])
    with pytest.raises(ShapeError, match=r"out\[0\] is of shape"):
        schema.OUT(spec.text(), meta[0], meta[1], [], [], [meta[2][:5]])
