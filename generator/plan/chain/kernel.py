"""How a chain runs: the planner's answer, and its refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral import Deferred
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.kernel_plan import TileShape

ROWS = 64  # of a warpgroup's tile
BLOCK = 64  # columns of H that are computed, handed on and multiplied at a time
MOST_COLUMNS = 256  # of a later GEMM's tile, which holds whole rows
MOST_LINKS = 3


@dataclass(frozen=True)
class ChainShape:
    """One way to divide the registers of a CTA.

    Attributes:
        warpgroups: those that multiply, each with tiles of 64 rows of its own.
        buffers: results of the first GEMM, of 64 columns each, that a warpgroup holds.  With two, the tensor
            cores compute the next while it runs the middle program on this one.
        rows_in_registers: whether a warpgroup holds the rows of X in registers; otherwise the tensor cores
            read them from shared memory for each block of H.
    """

    warpgroups: int
    buffers: int
    rows_in_registers: bool

    @property
    def name(self) -> str:
        """Short and unique, e.g. ``3x64-b1-shared``."""
        rows = "registers" if self.rows_in_registers else "shared"
        return f"{self.warpgroups}x{ROWS}-b{self.buffers}-{rows}"

    @property
    def label(self) -> str:
        buffers = "1 buffer" if self.buffers == 1 else f"{self.buffers} buffers"
        rows = "registers" if self.rows_in_registers else "shared memory"
        return f"{self.warpgroups} warpgroups of {ROWS} rows, {buffers} of {BLOCK} columns, X in {rows}"


CHAIN_SHAPES: tuple[ChainShape, ...] = tuple(
    ChainShape(warpgroups, buffers, rows_in_registers)
    for warpgroups in (2, 3)
    for buffers in (2, 1)
    for rows_in_registers in (True, False)
)

Residence = Literal["resident", "resident_first", "streamed"]


@dataclass(frozen=True)
class Weights:
    """Which weights stay in shared memory for the life of a CTA, and how deep the ring is for the others.

    ``"resident"``: all.  ``"resident_first"``: those of the first link; blocks of the later ones pass through
    the ring.  ``"streamed"``: none; blocks of all pass through one ring.
    """

    residence: Residence
    ring: int  # blocks; 0 where all stay


@dataclass(frozen=True)
class ChainPlan:
    """Everything that the emitted kernel of a chain depends on, and the estimates behind the choice."""

    spec: ChainSpec
    deferred: Deferred  # the same with its middle reductions deferred, as the kernel runs it
    middle: PhaseProgram  # of the first link, as split_middle gives it
    further: tuple[PhaseProgram, ...]  # of the links between the first and the last
    program: PhaseProgram  # of the last link
    shape: ChainShape
    weights: Weights
    tile_slots: int  # a warpgroup
    rows_operand: int | None  # of the last link: where it is A itself, it is read from A's rows
    tile_n: int
    shared_bytes: int
    registers: int  # estimate, that a thread holds while GEMMs run
    decisions: tuple[str, ...]
    gpu: str
    predicted_us: float  # for the M that was asked for
    floor_us: float  # no kernel can be faster: arithmetic or memory traffic alone
    apart_us: float  # predicted for several kernels, each of a link or of some, with the rest stored between


@dataclass(frozen=True)
class ChainRefusal:
    """A shape that cannot run a chain, and the constraint that it breaks."""

    shape: ChainShape
    constraint: str
    reason: str
    times: float


def tile_columns(n: int) -> int:
    """Of a later GEMM's tile, for rows of ``n`` columns."""
    return _whole_blocks(n)


def outer_tile(n: int) -> TileShape:
    """The last GEMM's tile, as what is said of other kernels' tiles takes it: a warpgroup has one."""
    return TileShape("pingpong", ROWS, tile_columns(n), 1)


def blocks(h: int) -> int:
    """Blocks of H; the last may hold columns beyond it."""
    return -(-h // BLOCK)


def padded_k(k: int) -> int:
    """K as it lies in shared memory, in lines of 64 elements."""
    return _whole_blocks(k)


def _whole_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
