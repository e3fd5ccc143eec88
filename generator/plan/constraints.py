"""What a kernel must satisfy.  Each constraint is stated once: the chooser, the checks and the tests use it.

A constraint is a function that gives None, or a sentence for a person: what was got, what is allowed.
Those on a program name the node (or operand) at fault; those on a tile shape have only the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from comfuse.generator.phases import PhaseProgram, axis
from comfuse.generator.plan import cost, memory
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.kernel_plan import SCHEDULES, SHAPES, TileShape
from comfuse.generator.plan.reasons import Reason
from comfuse.generator.plan.registers import registers
from comfuse.generator.spec import DType, FusedSpec, Major, Space

# Sizes of the arrays of csrc/include/comfuse/abi.h.
MAX_OPERANDS = 16
MAX_OUTPUTS = 8
MAX_SCALARS = 16
MAX_FACTORS = 3  # beside A
ALIGNMENT = 8  # elements: rows of 16-bit factors start at multiples of 16 bytes
BLOCK = 64  # rows of a factor that is contiguous along them
PERMUTED = 32  # rows of a B that TMA permutes
WIDE = 256  # columns of one wgmma, and of one box of TMA
# Columns of a group: whole pieces, so that each lies within one tile of some width.
GROUPS = tuple(
    sorted(
        {
            g
            for s in SHAPES
            for g in range(memory.PIECE_COLUMNS, s.tile_n + 1, memory.PIECE_COLUMNS)
            if s.tile_n % g == 0
        }
    )
)


@dataclass(frozen=True)
class Candidate:
    """A tile shape for a program on a GPU, before anyone knows whether it works."""

    spec: FusedSpec
    program: PhaseProgram
    shape: TileShape
    stages: int
    slots: int
    gpu: Gpu
    m: int | None = None  # rows to plan for; None: any number


# --- on the program alone ---


def k_is_aligned(spec: FusedSpec) -> str | None:
    """Where memory is contiguous along K.  Where it is not, for A and B, K may be anything."""
    for pair in spec.pairs:
        if Major.K in (pair.a_major, pair.b_major) and pair.k % ALIGNMENT:
            return (
                f"K = {pair.k} must be a multiple of {ALIGNMENT} where rows of A or B are contiguous along K"
            )
    return None


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


def groups_are_whole(spec: FusedSpec) -> str | None:
    name = _first(spec, "group")
    if name is None or (spec.group in GROUPS and spec.n % spec.group == 0):
        return None
    allowed = ", ".join(map(str, GROUPS))
    return (
        f"{name}: groups of {spec.group} columns of N = {spec.n}; groups of {allowed} are possible where "
        "they divide N"
    )


def batches_do_not_meet(spec: FusedSpec) -> str | None:
    name = _first(spec, "col", "full")
    if name is None or not spec.batched:
        return None
    return f"{name}: a reduction over the rows of a batch; batched programs reduce along rows only"


def _first(spec: FusedSpec, *axes: str) -> str | None:
    """The name of the first reduction over one of these axes."""
    return next((node.name for i, node in enumerate(spec.nodes) if axis(spec, i) in axes), None)


# --- on a tile shape for it ---


def groups_are_in_tiles(c: Candidate) -> Reason | None:
    name = _first(c.spec, "group")
    if name is None or c.spec.group is None or c.shape.tile_n % c.spec.group == 0:
        return None
    text = f"{name}: groups of {c.spec.group} columns do not fit tiles of {c.shape.tile_n}"
    return Reason(text, c.spec.group / c.shape.tile_n)


def b_is_in_blocks(c: Candidate) -> Reason | None:
    """TMA swizzles what is contiguous along N in blocks of 64 columns."""
    if all(pair.b_major is Major.K for pair in c.spec.pairs) or c.shape.tile_n % BLOCK == 0:
        return None
    return Reason(f"B is contiguous along N: tiles of {c.shape.tile_n} columns are no blocks of {BLOCK}")


def shared_b_is_in_boxes(c: Candidate) -> Reason | None:
    """Each CTA of a cluster along M loads its part of B by whole boxes of TMA."""
    part = c.shape.tile_n // c.shape.cluster_m
    whole = PERMUTED if all(pair.b_major is Major.K for pair in c.spec.pairs) else BLOCK
    if c.shape.cluster_m == 1 or part % whole == 0:
        return None
    return Reason(
        f"{c.shape.cluster_m} CTAs share a tile's {c.shape.tile_n} columns of B: parts of {part} columns are "
        f"no multiples of {whole}, in which they are loaded"
    )


def cluster_is_of_one_batch(c: Candidate) -> Reason | None:
    """Row blocks are counted through, so that two neighbours may lie in two batches."""
    if c.shape.cluster_m == 1 or not c.spec.batched:
        return None
    return Reason("batched: the row blocks of a cluster along M may lie in batches with a B each")


def wide_tiles_are_of_rows(c: Candidate) -> Reason | None:
    """A box of TMA has at most 256 rows of an unpermuted B, and ptxas spills registers of the others."""
    if c.spec.products_of_a * c.shape.tile_n <= WIDE:
        return None
    if not (cost.loads_permuted(c.spec) and c.spec.n % memory.PIECE_COLUMNS == 0):
        return Reason(
            f"tiles of {c.shape.tile_n} columns need one batch, B contiguous along K and N a multiple of "
            f"{memory.PIECE_COLUMNS}"
        )
    if (name := _first(c.spec, "col", "full")) is not None:
        return Reason(
            f"{name}: tiles of {c.shape.tile_n} columns have no registers for reductions over their rows"
        )
    return None


def shared_memory_fits(c: Candidate) -> Reason | None:
    if c.stages >= memory.MIN_STAGES:
        return None
    least = memory.shared_bytes(c.program, c.shape, memory.MIN_STAGES, c.slots)
    have = c.gpu.shared_bytes
    text = f"{memory.MIN_STAGES} stages need {least} bytes of shared memory, the GPU has {have}"
    return Reason(text, least / have)


def registers_fit(c: Candidate) -> Reason | None:
    needed = registers(c.program, c.shape)
    limit = SCHEDULES[c.shape.schedule].registers
    if needed <= limit:
        return None
    return Reason(f"needs about {needed} registers a thread, at most {limit} are possible", needed / limit)


def row_group_is_resident(c: Candidate) -> Reason | None:
    """Tiles that wait for each other must all be running.  Those of a tail do not wait."""
    clusters = c.gpu.processors // c.shape.cluster_size
    if not c.program.waits or c.shape.clusters_n(c.spec.n) <= clusters:
        return None
    most = clusters * c.shape.cluster_n * c.shape.tile_n
    return Reason(
        f"a row reduction over N = {c.spec.n} that the row's own elements read spans more tiles than can run "
        f"at once; N <= {most} fits",
        c.spec.n / most,
    )


def most_rows(program: PhaseProgram, shape: TileShape, gpu: Gpu) -> int | None:
    """The largest M of a launch in which all tiles run at once; None where they need not."""
    if not program.columns_wait:
        return None
    clusters = gpu.processors // shape.cluster_size
    return clusters // shape.clusters_n(program.spec.n) * shape.cluster_m * shape.tile_m


def columns_are_resident(c: Candidate) -> Reason | None:
    """Tiles that wait for all others of their columns run at once, one in each CTA."""
    most = most_rows(c.program, c.shape, c.gpu)
    if most is None:
        return None
    if SCHEDULES[c.shape.schedule].teams > 1:
        return Reason(
            "tiles read column reductions, so that each CTA has one tile: a second team would have none"
        )
    if c.m is not None and c.m <= most:
        return None
    return Reason(
        f"tiles read column reductions, so that all of them have to run at once; M <= {most} fits, "
        f"planned for {'any M' if c.m is None else f'M = {c.m}'}",
        (c.m or cost.LARGE_M) / max(most, 1),
    )


def cluster_is_used(c: Candidate) -> Reason | None:
    if c.shape.tiles_n(c.spec.n) < c.shape.cluster_n:
        one, size = f"N = {c.spec.n} is one tile", c.shape.cluster_n
    elif c.m is not None and -(-c.m // c.shape.tile_m) < c.shape.cluster_m:
        one, size = f"M = {c.m} is one row block", c.shape.cluster_m
    else:
        return None
    return Reason(f"{one}: a cluster of {size} would hold phantoms only")


SpecConstraint = Callable[[FusedSpec], "str | None"]
ShapeConstraint = Callable[[Candidate], "Reason | None"]

SPEC_CONSTRAINTS: tuple[SpecConstraint, ...] = (
    dtype_is_16_bit,
    k_is_aligned,
    operands_fit,
    scalars_fit,
    outputs_fit,
    groups_are_whole,
    batches_do_not_meet,
)
SHAPE_CONSTRAINTS: tuple[ShapeConstraint, ...] = (
    cluster_is_used,
    groups_are_in_tiles,
    b_is_in_blocks,
    shared_b_is_in_boxes,
    cluster_is_of_one_batch,
    wide_tiles_are_of_rows,
    row_group_is_resident,
    columns_are_resident,
    shared_memory_fits,
    registers_fit,
)
