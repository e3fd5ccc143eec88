"""Runs a program node by node, on tensors of shape (batch, M, N) that may have ones for sizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from comfuse.errors import ArgumentError
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Node, Output, Space
from comfuse.reference.dtypes import store
from comfuse.reference.elementwise import ELEMENTWISE
from comfuse.reference.operands import load, over_batches
from comfuse.reference.reductions import Fields, reduce

Tensor = torch.Tensor


def evaluate(
    spec: FusedSpec,
    a: Tensor,
    b: Tensor | Sequence[Tensor],
    operands: Sequence[Tensor] = (),
    scalars: Sequence[float] = (),
    *,
    dtype: torch.dtype = torch.float32,
    round_outputs: bool = True,
) -> list[Tensor]:
    """Runs ``spec`` on tensors of any device.

    Args:
        a: (..., K); of a batched spec (batch, M, K).  Any strides.
        b: (N, K), of a batched spec (batch, N, K) or (N, K).  Any strides.  A list of two for a spec with
            two products; of three if the second has an A of its own, which then comes before its B and has
            a's leading sizes.
        operands: the non-scalar operands in the order of the spec.  A tile: (..., N) with a's leading sizes
            or (M, N), and for a strided one whatever broadcasts to (..., N).  A row vector: N elements.  A
            column vector: M elements.  Of a batched spec each for all batches, or with a batch in front:
            (batch, M, N); (batch, N) or (batch, 1, N); (batch, M) or (batch, M, 1); or with two dimensions
            (outer, inner) in the place of the batch, of which either may be 1 for all that there are of it,
            as may b: (outer, inner, M, N), (outer, inner, 1, N), (outer, inner, M, 1).
        scalars: the scalar operands in the order of the spec.
        dtype: what is computed in: ``torch.float32``, or ``torch.float64`` for an oracle.
        round_outputs: give outputs in the dtypes of the spec; False leaves them in ``dtype``.

    Returns:
        One tensor an output, with a's leading sizes L: (*L, N) for a tile, or (*L[:-1], N / D, L[-1], D) if
        it is split in heads of size D; L for a column vector; (*L, N / group) for groups; (N,) for a row
        vector and () for a scalar, of a batched spec (batch, N) and (batch,).

    Raises:
        ArgumentError: too few or too many factors, operands or scalars, or one of the wrong size.
    """
    rank = 3 if spec.batched else a.ndim
    leading = a.shape[:-1]
    allowed = f"(batch, M, {spec.k})" if spec.batched else f"(..., {spec.k})"
    _check("a", a, a.ndim == rank >= 1 and a.shape[-1] == spec.k, allowed)
    batch, m = (leading[0], leading[1]) if spec.batched else (1, leading.numel())
    pairs = _pairs(spec, a, b, batch)
    with torch.autocast(a.device.type, enabled=False):
        run = _Run(spec, (batch, m, spec.n), load(spec, leading, operands, scalars, a.device, dtype), dtype)
        run.products = [_gemm(x.reshape(batch, m, x.shape[-1]), factor, dtype) for x, factor in pairs]
        for node in spec.nodes:
            run.values.append(run.node(node))
        results = []
        for output in spec.outputs:
            value = _shaped(spec, run.plain(output.node), output, leading)
            results.append(store(value, output.dtype) if round_outputs else value)
    return results


class _Run:
    """The values of a program's nodes, as far as they are computed."""

    def __init__(
        self, spec: FusedSpec, shape: tuple[int, int, int], loaded: Sequence[Tensor], dtype: torch.dtype
    ) -> None:
        self.spec = spec
        self.spaces = spaces(spec)
        self.shape = shape
        self.loaded = loaded
        self.dtype = dtype
        self.products: list[Tensor] = []
        self.values: list[Tensor | Fields] = []

    def plain(self, i: int) -> Tensor:
        value = self.values[i]
        assert isinstance(value, Tensor), f"{self.spec.nodes[i].name} has several fields"
        return value

    def node(self, node: Node) -> Tensor | Fields:
        _, m, n = self.shape
        if node.op == "gemm":
            return self.products[node.product]
        if node.op == "load":
            assert node.operand is not None
            return self.loaded[node.operand]
        if node.op == "const":
            assert node.value is not None
            return self._number(node.value)
        if node.op == "row_index":
            return self._numbers(m).view(1, m, 1)
        if node.op == "column_index":
            return self._numbers(n).view(1, 1, n)
        if node.op == "row_count":
            return self._number(m)
        if node.op == "field":
            fields = self.values[node.inputs[0]]
            assert isinstance(fields, dict)
            assert node.field is not None
            return fields[node.field]
        if node.op in REDUCTIONS:
            reduction = REDUCTIONS[node.op]
            x = self.plain(node.inputs[0]).expand(self.shape)
            fields = reduce(x, reduction.axis, reduction.monoid.name, self.spec.group)
            return fields["value"] if reduction.is_plain else fields
        inputs = [self.plain(i) for i in node.inputs]
        kinds = [self.spaces[i] for i in node.inputs]
        if Space.GROUP in kinds and set(kinds) & {Space.TILE, Space.ROW}:
            inputs = [
                x.repeat_interleave(self.spec.group or 1, dim=-1) if kind is Space.GROUP else x
                for x, kind in zip(inputs, kinds, strict=True)
            ]
        return ELEMENTWISE[node.op](*inputs)

    def _number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=self.dtype, device=self.products[0].device)

    def _numbers(self, count: int) -> Tensor:
        return torch.arange(count, device=self.products[0].device).to(self.dtype)


def _pairs(
    spec: FusedSpec, a: Tensor, b: Tensor | Sequence[Tensor], batch: int
) -> list[tuple[Tensor, Tensor]]:
    """The A of each product, and its B, of shape (1 or batch, N, K)."""
    factors = [b] if isinstance(b, Tensor) else list(b)
    count = spec.products + len(spec.pairs) - 1
    if len(factors) != count:
        raise ArgumentError("reference", "b", f"{len(factors)} tensors", f"{count} tensors")
    of_a = [a] * spec.products
    if spec.second is not None:
        of_a[1] = factors.pop(1)
        shape = (*a.shape[:-1], spec.second.k)
        _check("a1", of_a[1], tuple(of_a[1].shape) == shape, str(shape))
    for product, factor in enumerate(factors):
        n, k = spec.n, spec.pair_of(product).k
        shapes = [(n, k), (batch, n, k)] if spec.batched else [(n, k)]
        if spec.batched:
            with suppress(ValueError):
                factors[product] = over_batches(factor, batch)
        ok = tuple(factors[product].shape) in shapes
        _check("b", factor, ok, " or ".join(map(str, shapes)))
    wide = (factor if factor.ndim == 3 else factor.unsqueeze(0) for factor in factors)
    return list(zip(of_a, wide, strict=True))


def _gemm(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """(batch, M, K) and (1 or batch, N, K) to (batch, M, N)."""
    batch, m, _ = a.shape
    if b.shape[0] != batch or batch == 1:
        return _matmul(torch.mm, a.flatten(0, 1), b[0].t(), dtype).view(batch, m, b.shape[1])
    return _matmul(torch.bmm, a, b.transpose(1, 2), dtype)


def _matmul(function: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if a.is_cuda and dtype is torch.float32 and a.dtype is not torch.float32 and a.numel() and b.numel():
        return function(a, b, out_dtype=torch.float32)  # on the tensor cores, not rounded in between
    return function(a.to(dtype), b.to(dtype))


def _shaped(spec: FusedSpec, value: Tensor, output: Output, leading: torch.Size) -> Tensor:
    space = spaces(spec)[output.node]
    batch, m = (leading[0], leading[1]) if spec.batched else (1, leading.numel())
    of_batches = (batch,) if spec.batched else ()
    if space is Space.SCALAR:
        return value.expand(batch, 1, 1).reshape(of_batches)
    if space is Space.ROW:
        return value.expand(batch, 1, spec.n).reshape(*of_batches, spec.n)
    if space is Space.COLUMN:
        return value.expand(batch, m, 1).reshape(leading)
    if space is Space.GROUP:
        return value.reshape(*leading, spec.n // (spec.group or 1))
    tile = value.expand(batch, m, spec.n).reshape(*leading, spec.n)
    if output.heads is None:
        return tile
    if not leading:
        raise ArgumentError(
            "reference",
            "a",
            "one row",
            "a tensor of two or more dimensions",
            f"{output.name} is split in heads",
        )
    heads = tile.reshape(*leading, spec.n // output.heads, output.heads)
    return heads.transpose(-2, -3).contiguous()


def _check(name: str, tensor: Tensor, ok: bool, allowed: str) -> None:
    if not ok:
        raise ArgumentError("reference", name, f"a tensor of shape {tuple(tensor.shape)}", allowed)
