"""ComFuse's spec of a workload, and launches of it with a chosen plan: past its choice and its binding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import comfuse
from bench.launch import prepare
from bench.programs import Inputs, make_inputs, program
from bench.programs.chains import ChainInputs
from bench.programs.norms import NormInputs
from bench.workloads import ChainWorkload, NormWorkload, Workload
from comfuse import library
from comfuse.build import build
from comfuse.frontend import trace_region
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import KernelSource
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.ops import programs
from comfuse.reference import TORCH_DTYPES


def spec_of(w: Workload) -> FusedSpec | ChainSpec:
    """The spec that ComFuse makes of a workload: its ops of a norm or a chain, the front end of any other
    function.
    """
    if isinstance(w, ChainWorkload):
        return _mlp(w)
    if not isinstance(w, NormWorkload):
        return comfuse.trace(program(w), *make_inputs(w, device="meta").tensors())
    dtype = DType(w.dtype)
    bias = dtype if w.bias else None
    residual = dtype if w.residual else None
    if w.norm == "layernorm":
        return catalog.layernorm(
            w.n, w.k, dtype, bias=bias, residual=residual, ln_weight=dtype, ln_bias=dtype
        )
    position = w.residual or "before"
    return catalog.rmsnorm(
        w.n, w.k, dtype, bias=bias, residual=residual, rms_weight=dtype, residual_position=position
    )


def _mlp(w: ChainWorkload) -> ChainSpec:
    dtype = DType(w.dtype)
    of_norm = dict.fromkeys(("norm_weight", "norm_bias", "residual"), dtype) if w.norm else {}
    return catalog.mlp(
        w.n,
        w.k,
        w.h,
        dtype,
        b0=dtype,
        b1=dtype,
        activation=w.activation,
        norm="layernorm" if w.norm else None,
        residual_position="after" if w.norm else "before",
        **of_norm,
    )


@dataclass(frozen=True)
class Arguments:
    """Of a chain ``b`` and ``operands`` are link by link."""

    a: Tensor
    b: list[Tensor]
    operands: list[Tensor]
    scalars: list[float]


# Names of the catalogue's operands, by the field of NormInputs or ChainInputs that they are.
_FIELDS = {"bias": "bias", "residual": "residual", "ln_bias": "norm_bias"}
_CHAIN_FIELDS = {"residual": "x"}
_FIELDS |= dict.fromkeys(("ln_weight", "rms_weight"), "norm_weight")


def arguments_of(w: Workload, i: Inputs, spec: FusedSpec | ChainSpec) -> Arguments:
    """The workload's tensors and scalars in the order of its spec."""
    if isinstance(w, ChainWorkload):
        assert isinstance(spec, ChainSpec)
        assert isinstance(i, ChainInputs)
        every = [o.name for link in spec.links for o in link.operands]
        tensors = [getattr(i, _CHAIN_FIELDS.get(name, name)) for name in every if name != "eps"]
        return Arguments(i.x, [i.w0, i.w1], tensors, [w.eps] * every.count("eps"))
    if not isinstance(w, NormWorkload):
        call = trace_region(program(w), i.tensors()).bind(i.tensors())
        factors, operands = programs.parse(spec.text()).split(call.b, call.operands)
        return Arguments(call.a, factors, operands, call.scalars)
    assert isinstance(i, NormInputs)
    values = {"eps": w.eps, "weight_offset": w.weight_offset}
    names = [o.name for o in spec.operands]
    operands = [getattr(i, _FIELDS[name]) for name in names if name not in values]
    return Arguments(i.x, [i.weight], operands, [values[name] for name in names if name in values])


def launching(
    source: Callable[[Workload], KernelSource],
) -> Callable[[Workload, Inputs], Callable[[], object]]:
    """What prepares calls of the kernels that ``source`` gives, each into outputs of its own."""

    def prepare_call(w: Workload, i: Inputs) -> Callable[[], tuple[Tensor, ...]]:
        chosen = source(w)
        spec = chosen.plan.spec
        last = spec.last if isinstance(spec, ChainSpec) else spec
        shapes = {Space.TILE: (w.m, w.n), Space.COLUMN: (w.m,), Space.ROW: (w.n,), Space.SCALAR: ()}
        outs = tuple(
            torch.empty(shapes[spaces(last)[o.node]], device=i.x.device, dtype=TORCH_DTYPES[o.dtype])
            for o in last.outputs
        )
        x = arguments_of(w, i, spec)
        launch = prepare(library.load(build(chosen)), spec, x.a, x.b, x.operands, outs, x.scalars)

        def call() -> tuple[Tensor, ...]:
            launch()
            return outs

        return call

    return prepare_call
