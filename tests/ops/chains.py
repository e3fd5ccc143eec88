"""Chains with every kind of operand, and tensors for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, Space

BF16 = DType.BF16
K, H, N = 32, 40, 24


def every_operand(
    n: int = N,
    *,
    k: int = K,
    h: int = H,
    h1: int | None = None,
    dtype: DType = BF16,
    gated: bool = False,
    strided: bool = False,
    outputs: int = 1,
) -> ChainSpec:
    """A row vector, a column vector, a tile and a scalar in each link; with two outputs the second is (M,).

    ``h1``: of a link between the two, which there is none without.  ``strided``: the tiles are broadcast over
    a part of the rows.
    """
    first = SpecBuilder(h, k, dtype, products=2 if gated else 1)
    x = first.op("relu", first.gemm())
    if gated:
        x = first.op("mul", x, first.gemm(1))
    x = _with_operands(first, x, 0, strided)
    first.output("middle", x, dtype)
    links = [first.spec()]
    if h1 is not None:
        between = SpecBuilder(h1, h, dtype)
        x = between.op("relu", between.gemm())
        between.output("inner", _with_operands(between, x, 1, strided), dtype)
        links.append(between.spec())
    last = SpecBuilder(n, links[-1].n, dtype)
    y = _with_operands(last, last.gemm(), len(links), strided)
    last.output("y", y, dtype)
    if outputs == 2:
        last.output("total", last.op("row_sum", y), DType.FP32)
    return ChainSpec((*links, last.spec()))


def _with_operands(b: SpecBuilder, x: int, link: int, strided: bool) -> int:
    x = b.op("add", x, b.load(f"row{link}", Space.ROW, BF16))
    x = b.op("mul", x, b.load(f"column{link}", Space.COLUMN))
    x = b.op("add", x, b.load(f"tile{link}", Space.TILE, BF16, strided=strided))
    return b.op("mul", x, b.load(f"scalar{link}", Space.SCALAR))


@dataclass(frozen=True)
class Arguments:
    """A call of such a chain; ``operands`` as the ops take them, the scalars 0.5 and 2."""

    a: Tensor
    b: Tensor
    operands: tuple[Tensor, ...]
    scalars = (0.5, 2.0)

    def expected(self, gated: bool = False, *, middle: torch.dtype | None = torch.bfloat16) -> Tensor:
        """The result in float64; ``middle``: what the middle is rounded to."""
        a, b, *rest = (t.double() for t in (self.a, self.b, *self.operands))
        x = (a @ b.t()).relu()
        if gated:
            x = x * (a @ rest.pop(0).t())
        x = ((x + rest[0]) * rest[1].unsqueeze(-1) + rest[2]) * self.scalars[0]
        if middle is not None:
            x = x.float().to(middle).double()
        return ((x @ rest[3].t() + rest[4]) * rest[5].unsqueeze(-1) + rest[6]) * self.scalars[1]


def arguments(*lead: int, n: int = N, h: int = H, gated: bool = False) -> Arguments:
    torch.manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size).bfloat16()

    second = (random(h, K),) if gated else ()
    of_first = (random(h), torch.randn(lead), random(*lead, h))
    of_second = (random(n, h), random(n), torch.randn(lead), random(*lead, n))
    return Arguments(random(*lead, K), random(h, K), (*second, *of_first, *of_second))
