"""ComFuse's spec of a workload, and launches of it with a chosen plan: past its choice and its binding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import comfuse
from bench.launch import prepare
from bench.programs import Inputs, make_inputs, program
from bench.programs.norms import NormInputs
from bench.workloads import NormWorkload, Workload
from comfuse import library
from comfuse.build import build
from comfuse.frontend import trace_region
from comfuse.generator import catalog
from comfuse.generator.emit import KernelSource
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Space
from comfuse.reference import TORCH_DTYPES


def spec_of(w: Workload) -> FusedSpec:
    """The spec that ComFuse makes of a workload: its ops of a norm, the front end of any other function."""
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


@dataclass(frozen=True)
class Arguments:
    a: Tensor
    b: list[Tensor]
    operands: list[Tensor]
    scalars: list[float]


# Names of the catalogue's operands, by the field of NormInputs that they are.
_FIELDS = {"bias": "bias", "residual": "residual", "ln_bias": "norm_bias"}
_FIELDS |= dict.fromkeys(("ln_weight", "rms_weight"), "norm_weight")


def arguments_of(w: Workload, i: Inputs, spec: FusedSpec) -> Arguments:
    """The workload's tensors and scalars in the order of its spec."""
    if not isinstance(w, NormWorkload):
        call = trace_region(program(w), i.tensors()).bind(i.tensors())
        return Arguments(call.a, call.b, call.operands, call.scalars)
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
        shapes = {Space.TILE: (w.m, w.n), Space.COLUMN: (w.m,), Space.ROW: (w.n,), Space.SCALAR: ()}
        outs = tuple(
            torch.empty(shapes[spaces(spec)[o.node]], device=i.x.device, dtype=TORCH_DTYPES[o.dtype])
            for o in spec.outputs
        )
        x = arguments_of(w, i, spec)
        launch = prepare(library.load(build(chosen)), spec, x.a, x.b, x.operands, outs, x.scalars)

        def call() -> tuple[Tensor, ...]:
            launch()
            return outs

        return call

    return prepare_call
