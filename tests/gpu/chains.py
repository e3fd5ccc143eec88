"""Chains for the tests on GPUs: cases, inputs, launches and what they have to give."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.launch import prepare
from comfuse import reference
from comfuse.generator import catalog
from comfuse.generator.catalog.parts import Build, Layouts, layer_norm, rms_norm
from comfuse.generator.chain import ChainSpec
from comfuse.generator.passes.infer import spaces
from comfuse.generator.plan.chain import ChainPlan, ChainShape, force_chain
from comfuse.generator.spec import DType, Space
from comfuse.library import LoadedKernel
from comfuse.ops import programs
from comfuse.reference import TORCH_DTYPES
from tests.generator.chain_programs import scored, three_layers
from tests.gpu.outputs import Outputs
from tests.ops.chains import every_operand

BF16, FP32 = DType.BF16, DType.FP32


@dataclass(frozen=True)
class Sizes:
    """K columns of A, H between the GEMMs, N of the result; ``h1``: behind the second of three GEMMs."""

    k: int
    h: int
    n: int
    h1: int | None = None

    def __str__(self) -> str:
        return "x".join(str(size) for size in (self.k, self.h, self.h1, self.n) if size is not None)


Make = Callable[[Sizes, DType], ChainSpec]


def _mlp(**options: object) -> Make:
    return lambda s, dtype: catalog.mlp(s.n, s.k, s.h, dtype, b0=dtype, b1=dtype, **options)  # type: ignore[arg-type]


def _operands(**options: object) -> Make:
    return lambda s, dtype: every_operand(s.n, k=s.k, h=s.h, h1=s.h1, dtype=dtype, **options)  # type: ignore[arg-type]


def _three(**options: object) -> Make:
    """Of sizes that have an ``h1``."""
    return lambda s, dtype: three_layers(s.k, s.h, s.h1 or s.h, s.n, dtype, **options)


#: By name.  The first ones are exact where all inputs are small integers.
EXACT: dict[str, Make] = {
    "relu": _mlp(activation="relu", out=FP32),
    "gated": _mlp(activation="relu", gated=True, b_gate=BF16, out=FP32),
    "operands": _operands(),
    "gated operands": _operands(gated=True, outputs=2),
    "broadcast tile behind": lambda s, dtype: catalog.b2b(
        s.n, s.k, s.h, dtype, residual1=dtype, activation0="relu", strided=("residual1",)
    ),
    "residual in the middle": lambda s, dtype: catalog.b2b(s.n, s.k, s.h, dtype, residual0=dtype, out=FP32),
}


def _normed(middle: Callable[[Build, int], int], *, out: DType | None = None, tile: bool = False) -> Make:
    """A chain with reductions between its GEMMs."""

    def make(s: Sizes, dtype: DType) -> ChainSpec:
        b = Build(s.h, s.k, dtype, Layouts())
        x = b.op("add", b.gemm(), b.row("b0", dtype), name="x")
        if tile:
            x = b.op("add", x, b.tile("mask", dtype))
        first = b.stored("p", middle(b, x), dtype)
        return ChainSpec((first, catalog.linear(s.n, s.h, dtype, bias=dtype, out=out)))

    return make


def _ties(b: Build, x: int) -> int:
    """One where the row has its maximum, else nothing: exp(-200) is zero."""
    x = b.op("mul", x, b.const(200.0))
    return b.op("exp", b.op("sub", x, b.op("row_max", x)))


def _softmax(b: Build, x: int) -> int:
    e = b.op("exp", b.op("sub", x, b.op("row_max", x)))
    return b.op("div", e, b.op("row_sum", e))


def _behind(program: Callable[[Build, int, DType], int]) -> Make:
    """A ReLU, then what a program makes of the second GEMM."""

    def make(s: Sizes, dtype: DType) -> ChainSpec:
        first, _ = catalog.b2b(s.n, s.k, s.h, dtype, activation0="relu").links
        b = Build(s.n, s.h, dtype, Layouts())
        return ChainSpec((first, b.stored("y", program(b, b.gemm(), dtype), dtype)))

    return make


#: Exact on small integers; tile operands behind the last GEMM and nowhere else.  Where the first three are
#: given A itself, they are read from A's rows.
RESIDUALS: dict[str, Make] = {
    "residual": _behind(lambda b, x, dtype: b.op("add", x, b.tile("residual", dtype))),
    "residual behind a peak": _behind(
        lambda b, x, dtype: b.op("add", b.op("sub", x, b.op("row_max", x)), b.tile("residual", dtype))
    ),
    "residual of three": lambda s, dtype: three_layers(s.k, s.h, s.h1 or s.h, s.n, dtype, residual=dtype),
    "two residuals": _behind(
        lambda b, x, dtype: b.op("add", b.op("mul", x, b.tile("gate", dtype)), b.tile("residual", FP32))
    ),
}
#: Three GEMMs; exact on small integers.
THREE: dict[str, Make] = {"three": _three(out=FP32), "three operands": _operands(outputs=2)}

#: Exact on small integers too, but what is handed on differs from what the chain says.
DEFERRED_EXACT: dict[str, Make] = {
    "times its sum": _normed(lambda b, x: b.op("mul", x, b.op("row_sum", x)), out=FP32),
    "less its sum": _normed(
        lambda b, x: b.op("mul", b.op("sub", x, b.op("row_sum", x)), b.row("weight", BF16)), out=FP32
    ),
    "less its sum and more": _normed(
        lambda b, x: b.op(
            "sub", x, b.op("add", b.op("row_sum", x), b.load("offset", Space.COLUMN, DType.FP32))
        ),
        out=FP32,
    ),
    "by its range": _normed(
        lambda b, x: b.op("mul", x, b.op("sub", b.op("row_max", x), b.op("row_min", x))), out=FP32, tile=True
    ),
    "ties": _normed(_ties, out=FP32),
    "ties of tiles": _normed(_ties, out=FP32, tile=True),
    "counted ties": _normed(
        lambda b, x: b.op("mul", _ties(b, x), b.op("row_sum", _ties(b, x))), out=FP32, tile=True
    ),
}
DEFERRED: dict[str, Make] = DEFERRED_EXACT | {
    "middle softmax": _normed(_softmax),
    "masked softmax": _normed(_softmax, tile=True),
    "middle rms": _normed(lambda b, x: rms_norm(b, x, b.row("weight", BF16), b.scalar("eps"))[0]),
    "middle layernorm": _normed(
        lambda b, x: layer_norm(b, x, b.row("weight", BF16), b.row("shift", BF16), b.scalar("eps"))[0]
    ),
}
PROGRAMS: dict[str, Make] = (
    EXACT
    | RESIDUALS
    | THREE
    | DEFERRED
    | {
        "gelu": _mlp(),
        "gelu_tanh": _mlp(activation="gelu_tanh"),
        "swiglu": _mlp(activation="silu", gated=True),
        "edge": _mlp(
            activation="silu",
            norm="layernorm",
            norm_weight=BF16,
            norm_bias=BF16,
            residual=BF16,
            residual_position="after",
        ),
        "post-norm": _mlp(activation="silu", norm="layernorm", residual=BF16),
        "rms": _mlp(activation="mish", norm="rmsnorm", norm_weight=FP32),
        "three gelu": _three(activation="gelu"),
        "edge network": _three(
            norm="layernorm", norm_weight=BF16, norm_bias=BF16, residual=BF16, residual_position="after"
        ),
        "three post-norm": _three(activation="silu", norm="layernorm", residual=BF16),
        "scored": lambda s, dtype: scored(s.n, s.k, s.h, dtype),
    }
)


@dataclass(frozen=True)
class ChainCase:
    """A program at one size, by the plan of a shape; ``shape`` None: what the planner finds fastest."""

    program: str
    sizes: Sizes
    dtype: DType = BF16
    shape: ChainShape | None = None

    def __str__(self) -> str:
        parts = [self.program.replace(" ", "_"), str(self.sizes), self.dtype.value]
        return "-".join([*parts, self.shape.name if self.shape else "planned"])

    @property
    def chain(self) -> ChainSpec:
        return PROGRAMS[self.program](self.sizes, self.dtype)

    @property
    def may_be_refused(self) -> bool:
        """A chain need not fit every shape, but one of them has to fit."""
        return self.shape is not None

    def plan(self) -> ChainPlan:
        return force_chain(self.chain, self.shape)


@dataclass
class ChainInputs:
    """The arguments of one launch.  ``operands`` as ops.region takes them: without the first factor."""

    case: ChainCase
    a: Tensor
    b: Tensor
    operands: list[Tensor]
    scalars: list[float]

    def of_itself(self) -> ChainInputs:
        """With A as every tile operand of A's size; M has to differ from what else there is."""
        operands = [
            self.a if t.shape == self.a.shape and t.dtype == self.a.dtype else t for t in self.operands
        ]
        return replace(self, operands=operands)

    @property
    def split(self) -> tuple[list[Tensor], list[Tensor]]:
        return programs.parse(self.case.chain.text()).split(self.b, self.operands)

    def reference(self, *, round_middle: bool) -> list[Tensor]:
        """The results in float64."""
        factors, rest = self.split
        return reference.evaluate_chain(
            self.case.chain,
            self.a,
            factors,
            rest,
            self.scalars,
            dtype=torch.float64,
            round_middle=round_middle,
            round_outputs=False,
        )

    def outputs(self, layout: str = "") -> Outputs:
        """Poisoned outputs; ``layout`` of all tiles, as Outputs has it."""
        last = self.case.chain.last
        found = [spaces(last)[o.node] for o in last.outputs]
        tiles = [o.name for o, space in zip(last.outputs, found, strict=True) if space is Space.TILE]
        layouts = dict.fromkeys(tiles, layout)
        return Outputs(last, found, tuple(self.a.shape[:-1]), layouts, device=str(self.a.device))

    def launcher(self, kernel: LoadedKernel, out: Outputs) -> Callable[[], None]:
        factors, rest = self.split
        return prepare(kernel, self.case.chain, self.a, factors, rest, out.tensors, self.scalars)


def synchronize(seconds: float = 20.0) -> None:
    """Waits for all launches.  A kernel that does not end ends the process: nothing else would.

    A kernel that waits for a barrier in vain gives up by itself after half of that.
    """
    event = torch.cuda.Event()
    event.record()
    end = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > end:
            print(f"a kernel still runs after {seconds:.0f} s", file=sys.stderr, flush=True)
            os._exit(70)
    torch.cuda.synchronize()


def make_inputs(
    case: ChainCase, m: int, *, integers: bool = False, seed: int = 0, device: str = "cuda"
) -> ChainInputs:
    """Random inputs whose GEMMs have a variance of about one; or small integers, and scalars 0.5, 2, 0.5."""
    generator = torch.Generator(device).manual_seed(seed + m)

    def random(*size: int, scale: float = 1.0) -> Tensor:
        if integers:
            return torch.randint(-1, 2, size, device=device, generator=generator).float()
        return torch.randn(size, device=device, generator=generator) * scale

    program = programs.parse(case.chain.text())
    element = TORCH_DTYPES[case.dtype]
    a = random(m, program.k).to(element)
    places: dict[int, Tensor] = {}
    for factor in program.factors:
        places[factor.place] = random(factor.n, factor.k, scale=factor.k**-0.5).to(element)
    for tensor in program.tensors:
        rows = 1 if tensor.operand.strided else m
        sizes = {Space.ROW: (tensor.n,), Space.COLUMN: (m,), Space.TILE: (rows, tensor.n)}
        drawn = random(*sizes[tensor.operand.space]).to(TORCH_DTYPES[tensor.operand.dtype])
        places[tensor.place] = drawn.expand(m, tensor.n) if tensor.operand.strided else drawn
    operands = [places[i] for i in range(len(places) - 1)]
    scalars = [0.5, 2.0, 0.5][: program.scalar_count]
    return ChainInputs(case, a, places[-1], operands, scalars)
