"""Whether what lies between two layers is computed anew in the backward, or kept by the forward.

Kept: a kernel for each layer, of which the first stores what the activation read beside its result; in the
backward a plain GEMM, an elementwise kernel and the sums of the first bias.  Anew: the two layers as one
kernel, or two that store less, and one kernel in the backward.  Everything else is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any

import torch
from torch import Tensor

from comfuse import settings
from comfuse.errors import PlanError
from comfuse.generator import catalog
from comfuse.generator.catalog import Layouts
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan import GPUS, Gpu
from comfuse.generator.plan.cost import LARGE_M
from comfuse.generator.plan.gpus import find
from comfuse.generator.plan.program import plan
from comfuse.generator.spec import DType, FusedSpec, Major
from comfuse.ops.autograd.derivatives import FROM_RESULT
from comfuse.ops.faults import AB_DTYPES
from comfuse.ops.resolver import calibrated_gpu
from comfuse.ops.tracing import constant_when_traced
from comfuse.reference import SPEC_DTYPES

KEPT, ANEW_CHAIN, ANEW_LAYERS = "kept", "anew, one kernel forward", "anew, a kernel a layer forward"


@dataclass(frozen=True)
class Predicted:
    """Microseconds of a training step, without what all ways have in common.

    Infinite where the planner refuses, or the activation has no derivative in a kernel.
    """

    kept: float
    chain: float
    layers: float

    @property
    def way(self) -> str:
        """The fastest; of equals that which keeps nothing."""
        return KEPT if self.kept < self.anew else self.way_anew

    @property
    def anew(self) -> float:
        return min(self.chain, self.layers)

    @property
    def way_anew(self) -> str:
        """The faster of those that keep nothing, or the other where no kernel can."""
        if math.isinf(self.anew):
            return KEPT
        return ANEW_CHAIN if self.chain <= self.layers else ANEW_LAYERS


def way_of(
    x: Tensor,
    w0: Tensor,
    b0: Tensor | None,
    w1: Tensor,
    b1: Tensor | None,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    activation: str | None,
    norm: str | None,
    position: str,
) -> str:
    """:data:`KEPT`, :data:`ANEW_CHAIN` or :data:`ANEW_LAYERS`; a trace plans for many rows.

    Of an MLP without a gate, whose arguments have been checked.
    """
    rows = None if torch.compiler.is_compiling() else _rows(x)
    # index: the shape of a weight is no symbol.
    sizes = [index(size) for size in (w1.shape[0], w0.shape[1], w0.shape[0])]
    operands = (b0, b1, residual, norm_weight, norm_bias)
    dtypes = [None if t is None else SPEC_DTYPES[t.dtype] for t in operands]
    repeats = residual is not None and residual.numel() * sizes[1] != x.numel() * sizes[0]
    options = [activation, norm, position]
    device = x.device.index if x.is_cuda else None
    return _way(sizes, AB_DTYPES[x.dtype], dtypes, True if repeats else False, options, rows, device)  # noqa: SIM210


def _rows(x: Tensor) -> int | None:
    """Rounded up to a power of two, so that few numbers are planned for."""
    rows = x.shape[:-1].numel()
    return 1 << (rows - 1).bit_length() if isinstance(rows, int) and rows > 0 else None


@constant_when_traced
def _way(
    sizes: list[int],
    dtype: DType,
    operands: list[DType | None],
    repeats: bool,
    options: list[Any],
    rows: int | None,
    device: int | None,
) -> str:
    wanted = settings.recompute()
    if wanted == "never" or 0 in sizes:
        return KEPT
    chain = _chain(tuple(sizes), dtype, tuple(operands), repeats, tuple(options))
    gpu = GPUS["h200"] if device is None else calibrated_gpu(device)
    found = predicted(chain, options[0], rows, gpu, chains=settings.chains())
    return found.way_anew if wanted == "always" else found.way


@lru_cache(maxsize=1024)
def _chain(
    sizes: tuple[int, ...],
    dtype: DType,
    operands: tuple[DType | None, ...],
    repeats: bool,
    options: tuple[Any, ...],
) -> ChainSpec:
    """What runs as one kernel, with what a norm keeps."""
    given = dict(zip(("b0", "b1", "residual", "norm_weight", "norm_bias"), operands, strict=True))
    chosen: dict[str, Any] = dict(zip(("activation", "norm", "residual_position"), options, strict=True))
    strided = ("residual",) if repeats else ()
    return catalog.mlp(*sizes, dtype, **given, **chosen, strided=strided, saved=True)


@lru_cache(maxsize=1024)
def predicted(
    chain: ChainSpec, activation: str | None, rows: int | None, gpu: Gpu | str, *, chains: bool = True
) -> Predicted:
    """What the cost model says of each way.

    Args:
        chain: :func:`comfuse.generator.catalog.mlp` without a gate, with what a norm saves.
        activation: that of its middle.
        rows: None: many.
        chains: whether both layers may be one kernel.
    """
    target = find(gpu)
    first, second = chain.links
    h, k, n, dtype = first.n, first.k, second.n, first.dtype
    b0 = first.operands[0].dtype if first.operands else None
    keeps_pre = activation is not None and activation not in FROM_RESULT
    kept = sum(
        _us(spec, rows, target)
        for spec in (
            catalog.linear(h, k, dtype, bias=b0, activation=activation, saved=keeps_pre),
            second,
            catalog.linear(h, n, dtype, layouts=Layouts(b=Major.MN)),
        )
    )
    kept += _passes_us(first, activation, rows, target)
    if activation not in catalog.DERIVATIVES:
        return Predicted(kept, math.inf, math.inf)
    gradient = catalog.middle_gradient(h, k, n, dtype, b0=b0, activation=activation, sums=b0 is not None)
    backward = _us(gradient, rows, target)
    forward = _us(chain, rows, target) if chains else math.inf
    layers = _us(first, rows, target) + _us(second, rows, target)
    return Predicted(kept, forward + backward, layers + backward)


def _passes_us(first: FusedSpec, activation: str | None, rows: int | None, gpu: Gpu) -> float:
    """Over the middle in the backward: two reads and a store of the activation's, and a read for the sums."""
    count, launches = (0, 0) if activation is None else (3, 1)
    if first.operands:
        count, launches = count + 1, launches + 1
    moved = count * (rows or LARGE_M) * first.n * first.dtype.nbytes
    return 1e6 * moved / gpu.bandwidth + launches * gpu.constants.launch_us


def _us(program: FusedSpec | ChainSpec, rows: int | None, gpu: Gpu) -> float:
    try:
        return plan(program, gpu, rows).predicted_us
    except PlanError:
        return math.inf
