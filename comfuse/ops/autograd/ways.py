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
class Layers:
    """Two layers, by what the ways differ in: x (..., k), the middle (..., h), y (..., n)."""

    n: int
    k: int
    h: int
    dtype: DType
    activation: str | None = None
    b0: DType | None = None


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


def way_of(x: Tensor, w0: Tensor, b0: Tensor | None, w1: Tensor, activation: str | None) -> str:
    """:data:`KEPT`, :data:`ANEW_CHAIN` or :data:`ANEW_LAYERS`; a trace plans for many rows."""
    rows = None if torch.compiler.is_compiling() else _rows(x)
    # index: the shape of a weight is no symbol.
    sizes = [index(size) for size in (w1.shape[0], w0.shape[1], w0.shape[0])]
    b0_dtype = None if b0 is None else SPEC_DTYPES[b0.dtype]
    return _way(sizes, AB_DTYPES[x.dtype], activation, b0_dtype, rows, x.device.index if x.is_cuda else None)


def _rows(x: Tensor) -> int | None:
    """Rounded up to a power of two, so that few numbers are planned for."""
    rows = x.shape[:-1].numel()
    return 1 << (rows - 1).bit_length() if isinstance(rows, int) and rows > 0 else None


@constant_when_traced
def _way(
    sizes: list[int],
    dtype: DType,
    activation: str | None,
    b0: DType | None,
    rows: int | None,
    device: int | None,
) -> str:
    wanted = settings.recompute()
    if wanted == "never" or 0 in sizes:
        return KEPT
    gpu = GPUS["h200"] if device is None else calibrated_gpu(device)
    found = predicted(Layers(*sizes, dtype, activation, b0), rows, gpu, chains=settings.chains())
    return found.way_anew if wanted == "always" else found.way


@lru_cache(maxsize=1024)
def predicted(layers: Layers, rows: int | None, gpu: Gpu | str, *, chains: bool = True) -> Predicted:
    """What the cost model says of each way.

    Args:
        rows: None: many.
        chains: whether both layers may be one kernel.
    """
    p, target = layers, find(gpu)
    of_b0 = {"bias": p.b0, "activation": p.activation}
    second = _us(catalog.linear(p.n, p.h, p.dtype), rows, target)
    kept = _us(catalog.linear(p.h, p.k, p.dtype, **of_b0, saved=_keeps_pre(p)), rows, target)
    kept += second + _us(catalog.linear(p.h, p.n, p.dtype, layouts=Layouts(b=Major.MN)), rows, target)
    kept += _passes_us(layers, rows, target)
    if p.activation not in catalog.DERIVATIVES:
        return Predicted(kept, math.inf, math.inf)
    sums = p.b0 is not None
    backward = _us(
        catalog.middle_gradient(p.h, p.k, p.n, p.dtype, b0=p.b0, activation=p.activation, sums=sums),
        rows,
        target,
    )
    chain = math.inf
    if chains:
        chain = _us(catalog.mlp(p.n, p.k, p.h, p.dtype, b0=p.b0, activation=p.activation), rows, target)
    first = _us(catalog.linear(p.h, p.k, p.dtype, **of_b0), rows, target)
    return Predicted(kept, chain + backward, first + second + backward)


def _keeps_pre(layers: Layers) -> bool:
    return layers.activation is not None and layers.activation not in FROM_RESULT


def _passes_us(layers: Layers, rows: int | None, gpu: Gpu) -> float:
    """Over the middle in the backward: two reads and a store of the activation's, and a read for the sums."""
    count, launches = 0, 0
    if layers.activation is not None:
        count, launches = 3, 1
    if layers.b0 is not None:
        count, launches = count + 1, launches + 1
    moved = count * (rows or LARGE_M) * layers.h * layers.dtype.nbytes
    return 1e6 * moved / gpu.bandwidth + launches * gpu.constants.launch_us


def _us(program: FusedSpec | ChainSpec, rows: int | None, gpu: Gpu) -> float:
    try:
        return plan(program, gpu, rows).predicted_us
    except PlanError:
        return math.inf
