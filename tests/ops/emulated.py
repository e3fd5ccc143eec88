"""A kernel on a host: reads and writes memory as abi.h says, and computes with the reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from comfuse import reference
from comfuse.generator.chain import ChainSpec
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases.access import moves_rows
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.library import abi
from comfuse.reference import TORCH_DTYPES

ALIGNMENT = 16


def emulate(spec: FusedSpec | ChainSpec) -> Callable[[abi.Args], None]:
    """What a kernel for ``spec`` does with its arguments."""
    links = spec.links if isinstance(spec, ChainSpec) else (spec,)
    last = links[-1]

    def run(args: abi.Args) -> None:
        m, batches, dtype = args.m, args.batches, TORCH_DTYPES[last.dtype]
        a = _factor(args.a, links[0].a_major, batches, m, args.k, dtype)
        factors: list[Tensor] = []
        loaded: list[Tensor] = []
        scalars: list[float] = []
        for link in links:
            for product in range(link.products):
                pair, b = link.pair_of(product), args.b[len(factors)]
                factors.append(_factor(b, pair.b_major, batches, link.n, pair.k, dtype))
            if link.second is not None:
                assert args.k1 == link.second.k
                own = _factor(args.a1, link.second.a_major, batches, m, args.k1, dtype)
                factors.insert(1, own)
            for operand in link.operands:
                if operand.space is Space.SCALAR:
                    scalars.append(args.scalars[len(scalars)])
                else:
                    loaded.append(_operand(link, operand, args.operands[len(loaded)], batches, m))
        if not last.batched:
            a, factors, loaded = a[0], [f[0] for f in factors], [t[0] for t in loaded]
        tiles = replace(last, outputs=tuple(_without_heads(o) for o in last.outputs))
        if isinstance(spec, ChainSpec):
            chain = ChainSpec((*links[:-1], tiles))
            results = reference.evaluate_chain(chain, a, factors, loaded, scalars)
        else:
            results = reference.evaluate(tiles, a, factors, loaded, scalars)
        for i, (output, value) in enumerate(zip(last.outputs, results, strict=True)):
            space = spaces(last)[output.node]
            _store(last, space, args.outputs[i], value.reshape(batches, -1) if last.batched else value, m)

    return run


def _without_heads(output):  # type: ignore[no-untyped-def]
    return type(output)(output.name, output.node, output.dtype, output.strided, None)


def read(memory: abi.Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements at ``places``, counted in elements from the tensor's address."""
    return _memory(memory, places, dtype)[places]


def _memory(memory: abi.Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    size = (int(places.max()) + 1) * dtype.itemsize
    raw = (ctypes.c_char * size).from_address(memory.data)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype)


def _factor(memory: abi.Tensor, major: Major, batches: int, rows: int, k: int, dtype: torch.dtype) -> Tensor:
    _check_alignment(memory, dtype)
    batch, row, column = _grid(batches, rows, k)
    far, near = (row, column) if major is Major.K else (column, row)
    return read(memory, _batches(memory, batch) + far * memory.stride + near, dtype)


def _operand(spec: FusedSpec, operand, memory: abi.Tensor, batches: int, m: int) -> Tensor:  # type: ignore[no-untyped-def]
    dtype = TORCH_DTYPES[operand.dtype]
    if operand.space is Space.ROW:
        batch, _, column = _grid(batches, 1, spec.n)
        row = read(memory, _batches(memory, batch) + column * memory.stride, dtype)
        return row.squeeze(1)
    if operand.space is Space.COLUMN:
        batch, row, _ = _grid(batches, m, 1)
        return read(memory, _batches(memory, batch) + row * memory.stride, dtype)
    if not moves_rows(spec, operand):
        assert memory.row_period > 0
        batch, row, column = _grid(batches, m, spec.n)
        return read(memory, _batches(memory, batch) + _rows(memory, row) + column, dtype)
    _check_alignment(memory, dtype)
    batch, row, column = _grid(batches, m, spec.n)
    return read(memory, _batches(memory, batch) + row * memory.stride + column, dtype)


def _store(spec: FusedSpec, space: Space, memory: abi.Tensor, value: Tensor, m: int) -> None:
    batches = value.shape[0] if spec.batched else 1
    if space is Space.SCALAR:
        places = torch.zeros(1, 1, 1, dtype=torch.int64)
    elif space is Space.ROW:
        places = _grid(1, 1, spec.n)[2] * memory.stride
    else:
        columns = {Space.COLUMN: 1, Space.GROUP: spec.n // (spec.group or 1), Space.TILE: spec.n}[space]
        batch, row, column = _grid(batches, m, columns)
        if space is Space.TILE and (spec.n % 8 or memory.column_stride != 1 or memory.row_outer):
            assert memory.row_period > 0
            assert memory.column_period > 0
        places = batch * memory.batch_stride + _rows(memory, row) + _columns(memory, column)
    _memory(memory, places, value.dtype)[places.flatten()] = value.flatten()


def _batches(memory: abi.Tensor, batch: Tensor) -> Tensor:
    assert memory.batch_period > 0
    outer = batch // memory.batch_period * memory.batch_outer
    return outer + batch % memory.batch_period * memory.batch_stride


def _rows(memory: abi.Tensor, row: Tensor) -> Tensor:
    return row // memory.row_period * memory.row_outer + row % memory.row_period * memory.stride


def _columns(memory: abi.Tensor, column: Tensor) -> Tensor:
    outer = column // memory.column_period * memory.column_outer
    return outer + column % memory.column_period * memory.column_stride


def _grid(batches: int, rows: int, columns: int) -> tuple[Tensor, ...]:
    return torch.meshgrid(torch.arange(batches), torch.arange(rows), torch.arange(columns), indexing="ij")


def _check_alignment(memory: abi.Tensor, dtype: torch.dtype) -> None:
    """What TMA demands."""
    assert memory.data % ALIGNMENT == 0
    assert memory.stride * dtype.itemsize % ALIGNMENT == 0
    assert memory.batch_stride * dtype.itemsize % ALIGNMENT == 0
    assert memory.batch_outer * dtype.itemsize % ALIGNMENT == 0
