"""What a kernel must satisfy.  Each constraint is stated once: the chooser, the checks and the tests use it.

A constraint is a function that gives None, or a sentence for a person: what was got, what is allowed.
Those on a program name the node (or operand) at fault; those on a tile shape have only the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan import memory
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import SCHEDULES, TileShape
from comfuse.generator.spec import DType, FusedSpec, Space

# Sizes of the arrays of csrc/include/comfuse/abi.h.
MAX_OPERANDS = 16
MAX_OUTPUTS = 8
MAX_SCALARS = 16
ALIGNMENT = 8  # elements: rows of 16-bit tensors start at multiples of 16 bytes


@dataclass(frozen=True)
class Candidate:
    """A tile shape for a program on a GPU, before anyone knows whether it works."""

    spec: FusedSpec
    program: PhaseProgram
    shape: TileShape
    stages: int
    slots: int
    gpu: Gpu


# --- on the program alone ---


def n_is_aligned(spec: FusedSpec) -> str | None:
    return None if spec.n % ALIGNMENT == 0 else f"N = {spec.n} must be a multiple of {ALIGNMENT}"


def k_is_aligned(spec: FusedSpec) -> str | None:
    if spec.k >= ALIGNMENT and spec.k % ALIGNMENT == 0:
        return None
    return f"K = {spec.k} must be a positive multiple of {ALIGNMENT}"


def dtype_is_16_bit(spec: FusedSpec) -> str | None:
    if spec.dtype in (DType.BF16, DType.FP16):
        return None
    return f"A and B must be bf16 or fp16, got {spec.dtype.value}"


def operands_fit(spec: FusedSpec) -> str | None:
    count = len(spec.operands) - memory.operand_count(spec, Space.SCALAR)
    return None if count <= MAX_OPERANDS else f"{count} tensor operands, at most {MAX_OPERANDS} are possible"


def scalars_fit(spec: FusedSpec) -> str | None:
    count = memory.operand_count(spec, Space.SCALAR)
    return None if count <= MAX_SCALARS else f"{count} scalars, at most {MAX_SCALARS} are possible"


def outputs_fit(spec: FusedSpec) -> str | None:
    count = len(spec.outputs)
    return None if count <= MAX_OUTPUTS else f"{count} outputs, at most {MAX_OUTPUTS} are possible"


# --- on a tile shape for it ---


def shared_memory_fits(c: Candidate) -> str | None:
    if c.stages >= memory.MIN_STAGES:
        return None
    least = memory.shared_bytes(c.spec, c.shape, memory.MIN_STAGES, c.slots)
    have = c.gpu.shared_bytes
    return f"{memory.MIN_STAGES} stages need {least} bytes of shared memory, the GPU has {have}"


def registers_fit(c: Candidate) -> str | None:
    needed = memory.registers(c.spec, c.program, c.shape)
    limit = SCHEDULES[c.shape.schedule].registers
    if needed <= limit:
        return None
    return f"needs about {needed} registers a thread, at most {limit} are possible"


def row_group_is_resident(c: Candidate) -> str | None:
    """Tiles that wait for each other must all be running."""
    clusters = c.gpu.processors // c.shape.cluster_n
    if not c.program.reductions or c.shape.clusters_n(c.spec.n) <= clusters:
        return None
    most = clusters * c.shape.cluster_n * c.shape.tile_n
    return f"a row reduction over N = {c.spec.n} spans more tiles than can run at once; N <= {most} fits"


def cluster_is_used(c: Candidate) -> str | None:
    if c.shape.tiles_n(c.spec.n) >= c.shape.cluster_n:
        return None
    return f"N = {c.spec.n} is one tile: a cluster of {c.shape.cluster_n} would hold phantoms only"


SpecConstraint = Callable[[FusedSpec], "str | None"]
ShapeConstraint = Callable[[Candidate], "str | None"]

SPEC_CONSTRAINTS: tuple[SpecConstraint, ...] = (
    dtype_is_16_bit,
    n_is_aligned,
    k_is_aligned,
    operands_fit,
    scalars_fit,
    outputs_fit,
)
SHAPE_CONSTRAINTS: tuple[ShapeConstraint, ...] = (
    cluster_is_used,
    row_group_is_resident,
    shared_memory_fits,
    registers_fit,
)
