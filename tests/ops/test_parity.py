"""Python and C++ accept the same tensors and refuse the others in the same words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product

import pytest
import torch
from torch import Tensor

from comfuse.errors import ArgumentError
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.ops import checks, programs, resolver
from tests.ops.host_binding import Host

K, N = 16, 24
_SCALES = count(1)


def program(
    space: Space = Space.ROW,
    *,
    strided: bool = False,
    batched: bool = False,
    products: int = 1,
    heads: bool = False,
) -> FusedSpec:
    b = SpecBuilder(N, K, DType.BF16, batched=batched, products=products)
    y = b.op("add", b.gemm(), b.load("t", space, DType.FP32, strided=strided))
    if products == 2:
        y = b.op("mul", y, b.gemm(1))
    y = b.op("mul", y, b.const(2.0 + next(_SCALES) / 64))
    b.output("y", y, DType.BF16, heads=8 if heads else None)
    return b.spec()


def of_python(spec: FusedSpec, a: Tensor, b: Tensor, operands: Sequence[Tensor]) -> str | None:
    try:
        checks.check(programs.parse(spec.text()), a, b, operands, [])
    except ArgumentError as e:
        return f"{type(e).__name__}: {e}"
    return None


def of_cpp(host: Host, spec: FusedSpec, a: Tensor, b: Tensor, operands: Sequence[Tensor]) -> str | None:
    try:
        host.call(spec, a, b, operands)
    except RuntimeError as e:
        error = resolver.translate(e, "region")
        return f"{type(error).__name__}: {error}"
    return None


@dataclass(frozen=True)
class Shapes:
    """All small shapes that might fit an operand, for an A with these leading sizes."""

    lead: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        rows = torch.Size(self.lead).numel()
        sizes = sorted({1, *self.lead, rows, N, 5})
        for rank in range(len(self.lead) + 2):
            yield from product(sizes, repeat=rank)


@pytest.mark.parametrize(
    "lead, batched",
    [((6,), False), ((2, 3), False), ((), False), ((1, 4), False), ((2, 3), True), ((1, 1), True)],
)
@pytest.mark.parametrize(
    "space, strided", [(Space.ROW, False), (Space.COLUMN, False), (Space.TILE, False), (Space.TILE, True)]
)
def test_shapes_of_operands(
    host: Host, lead: tuple[int, ...], batched: bool, space: Space, strided: bool
) -> None:
    spec = program(space, strided=strided, batched=batched)
    host.register(spec)
    a, b = torch.zeros(*lead, K).bfloat16(), torch.zeros(N, K).bfloat16()
    accepted = 0
    for shape in Shapes(lead):
        t = torch.zeros(shape)
        in_python = of_python(spec, a, b, [t])
        assert of_cpp(host, spec, a, b, [t]) == in_python, shape
        accepted += in_python is None
    assert accepted > 0
    assert len(host.launched) == accepted


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("heads", [False, True])
def test_shapes_of_factors(host: Host, batched: bool, heads: bool) -> None:
    spec = program(batched=batched, products=2, heads=heads)
    host.register(spec)
    t = torch.zeros(N)
    fine = torch.zeros(2, 3, K).bfloat16(), torch.zeros(N, K).bfloat16()
    shapes = [s for rank in range(4) for s in product((2, 3, N, K), repeat=rank)]
    accepted = [0, 0, 0]
    for shape in shapes:
        other = torch.zeros(shape).bfloat16()
        calls = [
            (other, fine[1], [fine[1], t]),
            (fine[0], other, [fine[1], t]),
            (fine[0], fine[1], [other, t]),
        ]
        for i, (a, b, operands) in enumerate(calls):
            in_python = of_python(spec, a, b, operands)
            assert of_cpp(host, spec, a, b, operands) == in_python, shape
            accepted[i] += in_python is None
    assert accepted[0] > 0
    assert accepted[1] == accepted[2] == (2 if batched else 1)
    assert "b1 is of shape (3, 24); allowed: (24, 16)" in str(
        of_python(spec, fine[0], fine[1], [torch.zeros(3, N).bfloat16(), t])
    )


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.int16, torch.int64, torch.bool, torch.float8_e5m2, torch.complex64],
)
def test_dtypes(host: Host, dtype: torch.dtype) -> None:
    spec = program(products=2)
    host.register(spec)
    a, b, t = torch.zeros(6, K).bfloat16(), torch.zeros(N, K).bfloat16(), torch.zeros(N)
    for call in (
        (a.to(dtype), b, [b, t]),
        (a, b.to(dtype), [b, t]),
        (a, b, [b.to(dtype), t]),
        (a, b, [b, t.to(dtype)]),
    ):
        in_python = of_python(spec, *call)
        assert in_python is not None
        assert f" is {dtype}; allowed: torch." in in_python
        assert of_cpp(host, spec, *call) == in_python


def test_numbers_of_arguments(host: Host) -> None:
    spec = program(products=2)
    host.register(spec)
    a, b, t = torch.zeros(6, K).bfloat16(), torch.zeros(N, K).bfloat16(), torch.zeros(N)
    for operands in ([], [b], [b, t, t]):
        in_python = of_python(spec, a, b, operands)
        assert in_python is not None
        assert in_python.endswith(f"operands is a list of {len(operands)}; allowed: 2")
        assert of_cpp(host, spec, a, b, operands) == in_python
