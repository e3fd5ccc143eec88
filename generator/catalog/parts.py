"""What the programs of the catalogue are made of."""

from __future__ import annotations

from dataclasses import dataclass

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import DType, FusedSpec, Major, Pair, Space


@dataclass(frozen=True)
class Layouts:
    """How the tensors of a program lie in memory.

    Attributes:
        a: which dimension of A (M, K) is contiguous.
        b: which dimension of each B (N, K) is.
        batched: A is (batch, M, K).
        strided: names of the tile operands that are broadcast over a part of the rows, and of the tile
            outputs whose strides the caller gives.
    """

    a: Major = Major.K
    b: Major = Major.K
    batched: bool = False
    strided: tuple[str, ...] = ()


PLAIN = Layouts()


class Build(SpecBuilder):
    """A builder whose operands may be left out, and which knows the layouts."""

    def __init__(
        self,
        n: int,
        k: int,
        dtype: DType,
        layouts: Layouts,
        *,
        products: int = 1,
        second: Pair | None = None,
    ) -> None:
        super().__init__(n, k, dtype, products, layouts.a, layouts.b, layouts.batched, second=second)
        self._strided = layouts.strided

    def tile(self, name: str, dtype: DType) -> int:
        return self.load(name, Space.TILE, dtype, strided=name in self._strided)

    def row(self, name: str, dtype: DType) -> int:
        return self.load(name, Space.ROW, dtype)

    def scalar(self, name: str) -> int:
        return self.load(name, Space.SCALAR)

    def store(self, name: str, node: int, dtype: DType) -> None:
        self.output(name, node, dtype, strided=name in self._strided)

    def stored(self, name: str, node: int, dtype: DType) -> FusedSpec:
        """The spec whose last output this is."""
        self.store(name, node, dtype)
        return self.spec()


def affine(b: Build, bias: DType | None, residual: DType | None = None, name: str = "x") -> int:
    """``a @ b.T + bias + residual``."""
    x = b.gemm()
    if bias is not None:
        last = residual is None
        x = b.op("add", x, b.row("bias", bias), name=name if last else None)
    if residual is not None:
        x = b.op("add", x, b.tile("residual", residual), name=name)
    return x


def activated(b: Build, x: int, activation: str | None) -> int:
    return x if activation is None else b.op(activation, x, name=activation)


def layer_norm(b: Build, x: int, weight: int | None, bias: int | None, eps: int) -> tuple[int, int, int]:
    """``(x - mean) * rstd * weight + bias`` along the row, ``rstd = rsqrt(var + eps)``; mean and rstd."""
    stats = b.op("row_welford", x, name="stats")
    mean = b.field(stats, "mean", name="mean")
    rstd = b.op("rsqrt", b.op("add", b.field(stats, "var", name="var"), eps), name="rstd")
    y = b.op("mul", b.op("sub", x, mean), rstd, name="x_hat")
    if weight is not None:
        y = b.op("mul", y, weight)
    if bias is not None:
        y = b.op("add", y, bias, name="y")
    return y, mean, rstd


def rms_norm(
    b: Build, x: int, weight: int | None, eps: int, offset: int | None = None, *, suffix: str = ""
) -> tuple[int, int]:
    """``x * rrms * (weight + offset)`` along the row, with ``rrms = rsqrt(mean(x * x) + eps)``; and rrms."""
    mean_square = b.op("mul", b.op("row_sumsq", x, name=f"sumsq{suffix}"), b.const(1.0 / b.n, "inverse_n"))
    rrms = b.op("rsqrt", b.op("add", mean_square, eps), name=f"rrms{suffix}")
    y = b.op("mul", x, rrms)
    if weight is None:
        return y, rrms
    scale = weight if offset is None else b.op("add", weight, offset, name=f"scale{suffix}")
    return b.op("mul", y, scale, name=f"normed{suffix}"), rrms
