"""Who computes a workload: each provider is a function (workload, inputs) -> callable without arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import comfuse
from bench import rivals, stock
from bench.direct import launching, spec_of
from bench.launch import SHAPES, forced_plan
from bench.programs import Inputs, program
from bench.programs.chains import ChainInputs
from bench.programs.norms import NormInputs
from bench.workloads import ChainWorkload, NormWorkload, Workload
from comfuse import ops
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import KernelSource, emit
from comfuse.generator.errors import PlanError
from comfuse.generator.plan import TileShape, force
from comfuse.generator.plan.chain import CHAIN_SHAPES, ChainShape, force_chain
from comfuse.generator.spec import DType
from comfuse.library import tuned
from comfuse.ops.resolver import m_class

Call = Callable[[], "Tensor | tuple[Tensor, ...]"]


@dataclass(frozen=True)
class Provider:
    """``baseline`` providers compete with ComFuse for the best Inductor time; a ``rival`` computes the whole
    workload with another library.

    ``only_gemm``: computes the GEMMs alone, and gives the first.  ``rounds_once``: float32 until the store,
    so held to that error.  ``source``: the kernel of ours that it will launch, to compile it ahead.
    """

    name: str
    title: str
    prepare: Callable[[Workload, Inputs], Call]
    only_gemm: bool = False
    baseline: bool = False
    rounds_once: bool = False
    rival: bool = False
    source: Callable[[Workload], KernelSource] | None = None


def _mm(w: Workload, i: Inputs) -> Call:
    gemms = [(a, b, a.new_empty(a.shape[0], b.shape[1])) for a, b in i.gemms()]

    def call() -> Tensor:
        for a, b, out in gemms:
            torch.mm(a, b, out=out)
        return gemms[0][2]

    return call


def _eager(w: Workload, i: Inputs) -> Call:
    function, arguments = program(w), i.tensors()
    return lambda: function(*arguments)


def _inductor(**compile_options: Any) -> Callable[[Workload, Inputs], Call]:
    def prepare(w: Workload, i: Inputs) -> Call:
        torch._dynamo.reset()
        compiled = torch.compile(program(w), dynamic=False, fullgraph=True, **compile_options)
        arguments = i.tensors()
        return lambda: compiled(*arguments)

    return prepare


def _comfuse(w: Workload, i: Inputs) -> Call:
    """Norms and chains through their ops, other graphs as functions that ComFuse fuses."""
    if isinstance(w, ChainWorkload):
        return _mlp(w, i)
    if not isinstance(w, NormWorkload):
        fused, arguments = comfuse.fuse(program(w)), i.tensors()
        return lambda: fused(*arguments)
    assert isinstance(i, NormInputs)
    if w.norm == "layernorm":
        return lambda: ops.fused_gemm_layernorm(
            i.x, i.weight, i.bias, i.residual, i.norm_weight, i.norm_bias, w.eps
        )
    position = w.residual or "before"
    return lambda: ops.fused_gemm_rmsnorm(
        i.x,
        i.weight,
        i.bias,
        i.residual,
        i.norm_weight,
        w.eps,
        weight_offset=w.weight_offset,
        residual_position=position,
    )


def _mlp(w: ChainWorkload, i: Inputs) -> Call:
    assert isinstance(i, ChainInputs)
    options: dict[str, Any] = {}
    if w.norm:
        options = {"norm": "layernorm", "norm_weight": i.norm_weight, "norm_bias": i.norm_bias, "eps": w.eps}
        options |= {"residual": i.x, "residual_position": "after"}
    return lambda: ops.fused_mlp(i.x, i.w0, i.b0, i.w1, i.b1, w.activation, **options)


def _stock(variant: stock.Variant) -> Callable[[Workload, Inputs], Call]:
    def prepare(w: Workload, i: Inputs) -> Call:
        assert isinstance(i, NormInputs)
        stock_library = stock.load(variant)
        out = torch.empty(w.m, w.n, device=i.x.device, dtype=i.x.dtype)
        pointers = (i.x.data_ptr(), i.weight.data_ptr(), out.data_ptr())

        def call() -> Tensor:
            stream = torch.cuda.current_stream().cuda_stream
            code = stock_library.stock_gemm_launch(*pointers, w.m, w.n, w.k, stream)
            if code:
                raise RuntimeError(f"{variant.name}: the launch returned {code}")
            return out

        return call

    return prepare


def _planned(w: Workload) -> KernelSource:
    """What ComFuse's resolver takes for it."""
    return emit(tuned.plan(spec_of(w), m=m_class(w.m)))


def own_gemm(schedule: str, n: int, k: int) -> KernelSource:
    """A GEMM with nothing behind it, its plan forced.  Raises PlanError if refused."""
    return emit(forced_plan(catalog.linear(n, k, DType.BF16), schedule))


def _own(schedule: str) -> Provider:
    def source(w: Workload) -> KernelSource:
        return own_gemm(schedule, w.n, w.k)

    name = f"own-{schedule}"
    return Provider(name, name, launching(source), only_gemm=True, rounds_once=True, source=source)


def _forced(shape: TileShape, stages: int | None = None) -> Provider:
    def source(w: Workload) -> KernelSource:
        spec = spec_of(w)
        if isinstance(spec, ChainSpec):
            raise PlanError("a plan of a single GEMM, and this is a chain")
        return emit(force(spec, shape, stages=stages))

    name = shape.name if stages is None else f"{shape.name}-s{stages}"
    return Provider(name, name, launching(source), rounds_once=True, source=source)


def _forced_chain(shape: ChainShape) -> Provider:
    def source(w: Workload) -> KernelSource:
        spec = spec_of(w)
        if not isinstance(spec, ChainSpec):
            raise PlanError("a plan of a chain, and this is a single GEMM")
        return emit(force_chain(spec, shape, m=m_class(w.m)))

    name = f"chain-{shape.name}"
    return Provider(name, name, launching(source), rounds_once=True, source=source)


_ALL = (
    Provider("mm", "cuBLAS mm alone", _mm, only_gemm=True),
    Provider("eager", "eager", _eager),
    Provider("inductor", "Inductor default", _inductor(), baseline=True),
    Provider(
        "inductor-max",
        "Inductor max-autotune",
        _inductor(mode="max-autotune-no-cudagraphs"),
        baseline=True,
    ),
    # Not in the default set: what Inductor leaves off by itself, and other libraries.
    Provider(
        "inductor-tma",
        "Inductor max-autotune with TMA",
        rivals.inductor_offering("tma", rivals.TMA, rivals.tma_is_ready),
        baseline=True,
    ),
    Provider(
        "inductor-cutlass",
        "Inductor max-autotune with CUTLASS",
        rivals.inductor_offering("cutlass", rivals.CUTLASS, rivals.cutlass_is_ready),
        baseline=True,
    ),
    Provider("cublaslt", "cuBLASLt epilogue", rivals.cublaslt, rival=True),
    Provider("quack", "QuACK", rivals.quack, rival=True),
    Provider("comfuse", "ComFuse", _comfuse, rounds_once=True, source=_planned),
)
# Plain GEMMs of two kernel layers: see bench.plain_gemm.
STOCK = tuple(Provider(v.name, v.name, _stock(v), only_gemm=True, rounds_once=True) for v in stock.VARIANTS)
OWN_PLANS = ("pingpong-128x128", "pingpong2-128x128", "cooperative-128x256", "cooperative-128x256-m2")
OWN = tuple(_own(s) for s in OWN_PLANS)
# Every plan that the planner might choose, forced: what its choice is held against.
PLANS = (
    *(_forced(s) for s in SHAPES.values() if s.cluster_m == 1),
    *(_forced_chain(s) for s in CHAIN_SHAPES),
)
# And those that it does not choose, as no kernel of theirs was measured yet: clusters along M.
ALONG_M = tuple(_forced(s) for s in SHAPES.values() if s.cluster_m > 1)
PROVIDERS = {p.name: p for p in (*_ALL, *STOCK, *OWN, *PLANS, *ALONG_M)}
BASELINES = tuple(p.name for p in _ALL if p.baseline)
DEFAULT = ("mm", "eager", "inductor", "inductor-max", "comfuse")


def by_name(name: str) -> Provider:
    """The provider of that name; that of a plan may end with its stages, as in ``cooperative-128x256-c2-s3``.

    A plan's name has its cluster: ``c2`` extends along N, ``m2`` along M.

    Raises:
        ValueError: there is none.
    """
    shape, _, stages = name.rpartition("-s")
    if shape in SHAPES and stages.isdecimal():
        return _forced(SHAPES[shape], int(stages))
    if name not in PROVIDERS:
        raise ValueError(f"no provider {name!r}; there are {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


def select(names: tuple[str, ...]) -> tuple[Provider, ...]:
    """The providers of these names, cuBLAS mm always first: every ratio needs it.

    "plans" stands for all forced plans of those that the planner chooses among.

    Raises:
        ValueError: there is no provider of that name.
    """
    names = tuple(m for n in names for m in ([p.name for p in PLANS] if n == "plans" else [n]))
    return tuple(by_name(n) for n in dict.fromkeys(("mm", *names)))
