"""How a program runs: the planner's answer, and its refusals."""

from __future__ import annotations

from dataclasses import dataclass

from comfuse.generator.phases import PhaseProgram
from comfuse.generator.spec import FusedSpec

TILE_K = 64


@dataclass(frozen=True)
class Schedule:
    """How a CTA's warpgroups share its tiles.

    A team of warpgroups computes a tile, each its part of the rows.  With two teams, which take the tiles
    in turn, the epilogue of one hides behind the other's GEMM.
    """

    name: str
    teams: int
    team_size: int  # warpgroups
    template: str  # C++ type
    registers: int  # a thread may have

    @property
    def warpgroups(self) -> int:
        return self.teams * self.team_size


SCHEDULES: dict[str, Schedule] = {
    s.name: s
    for s in (
        Schedule("pingpong", 2, 1, "Pingpong", 232),
        Schedule("pingpong2", 2, 2, "Cooperative", 112),
        Schedule("cooperative", 1, 2, "Cooperative", 232),
    )
}


@dataclass(frozen=True)
class TileShape:
    """One way to cut the work.

    A tile is ``tile_m`` x ``tile_n`` of the result, of each product's where there are two; one team computes
    it at a time.  A cluster's CTAs have neighbouring tiles, along M or along N.
    """

    schedule: str  # a key of SCHEDULES
    tile_m: int
    tile_n: int
    cluster_n: int  # CTAs that share the rows of A
    cluster_m: int = 1  # CTAs that share those of B, where ``cluster_n`` is 1

    @property
    def name(self) -> str:
        """Short and unique, e.g. ``pingpong-128x128-c2``, along M ``pingpong-128x128-m2``."""
        cluster = f"c{self.cluster_n}" if self.cluster_m == 1 else f"m{self.cluster_m}"
        return f"{self.schedule}-{self.tile_m}x{self.tile_n}-{cluster}"

    @property
    def label(self) -> str:
        tile = f"{self.schedule} {self.tile_m}x{self.tile_n}x{TILE_K}"
        return f"{tile}, cluster {self.cluster_m}x{self.cluster_n}"

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def rows_of_warpgroup(self) -> int:
        """Rows of a tile that one warpgroup computes."""
        return self.tile_m // SCHEDULES[self.schedule].team_size

    def tiles_n(self, n: int) -> int:
        """Tiles of a row block that hold columns."""
        return -(-n // self.tile_n)

    def clusters_n(self, n: int) -> int:
        """Clusters of a row block; the last may have a phantom tile outside the matrix."""
        return -(-self.tiles_n(n) // self.cluster_n)

    def clusters_m(self, m: int) -> int:
        """Clusters of a column of tiles; the last may have a phantom tile below the matrix."""
        return -(-m // (self.tile_m * self.cluster_m))


def _with_clusters(*shapes: tuple[str, int]) -> tuple[TileShape, ...]:
    return tuple(TileShape(schedule, 128, n, cluster_n) for schedule, n in shapes for cluster_n in (1, 2))


# Left out: pingpong 128x192, whose programs with reductions or tile operands spill registers.
#
# Cooperative tiles are of many widths because waves are few: tiles of a row block that wait for each other
# run in one wave, so that with 256 columns a tile N = 3584 takes as many waves as N = 4096.
SHAPES: tuple[TileShape, ...] = _with_clusters(
    ("pingpong", 64),
    ("pingpong", 128),
    ("pingpong2", 128),
    ("cooperative", 64),
    ("cooperative", 128),
    ("cooperative", 192),
    ("cooperative", 224),
    ("cooperative", 256),
    ("cooperative", 288),
    ("cooperative", 320),
)
# Of two products side by side: one wgmma, of at most 256 columns, covers both, and the accumulators are
# those of a tile twice as wide.
SHAPES_OF_TWO: tuple[TileShape, ...] = _with_clusters(
    ("pingpong", 64), ("pingpong2", 64), ("cooperative", 128)
)
# Of two with an A each: the same accumulators, but a wgmma covers one product.
SHAPES_OF_TWO_A: tuple[TileShape, ...] = _with_clusters(("pingpong", 64), ("cooperative", 128))


def _along_m(*shapes: tuple[str, int]) -> tuple[TileShape, ...]:
    return tuple(TileShape(schedule, 128, n, 1, cluster_m=2) for schedule, n in shapes)


# Clusters along M, whose CTAs share B in halves of whole groups of 32 columns: of tiles whose Bs are no
# smaller than their A, as less would pass from L2 to shared memory if A were shared.  No kernel of these was
# measured yet, so that the cost model does not choose among them; the tuner does.
SHAPES_ALONG_M: tuple[TileShape, ...] = _along_m(
    ("pingpong", 128),
    ("pingpong2", 128),
    ("cooperative", 128),
    ("cooperative", 192),
    ("cooperative", 256),
    ("cooperative", 320),
)
SHAPES_OF_TWO_ALONG_M: tuple[TileShape, ...] = _along_m(
    ("pingpong", 64), ("pingpong2", 64), ("cooperative", 128)
)
SHAPES_OF_TWO_A_ALONG_M: tuple[TileShape, ...] = _along_m(("cooperative", 128))


def shapes(spec: FusedSpec) -> tuple[TileShape, ...]:
    """The tile shapes that the cost model chooses among for a program, in a fixed order."""
    if spec.products == 1:
        return SHAPES
    return SHAPES_OF_TWO if spec.second is None else SHAPES_OF_TWO_A


def shapes_to_measure(spec: FusedSpec) -> tuple[TileShape, ...]:
    """Further tile shapes, which only a measurement chooses, in a fixed order."""
    if spec.products == 1:
        return SHAPES_ALONG_M
    return SHAPES_OF_TWO_ALONG_M if spec.second is None else SHAPES_OF_TWO_A_ALONG_M


@dataclass(frozen=True)
class KernelPlan:
    """Everything that the emitted kernel depends on, and the estimates behind the choice.

    ``scope`` is how far a row reduction reaches: ``"none"`` (there is none), ``"tile"`` (a tile holds whole
    rows), ``"row_tail"`` (the last tile of a row block merges partial results, and none waits) or
    ``"row_group"`` (the tiles of a row block exchange partial results and wait for each other's), which is
    called ``"cluster"`` where one cluster has them all.
    """

    spec: FusedSpec
    program: PhaseProgram
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    schedule: str  # a key of SCHEDULES
    stages: int
    tile_slots: int
    scope: str
    shared_bytes: int
    registers: int  # estimate, a thread
    decisions: tuple[str, ...]
    max_m: int | None  # largest M that the kernel can run; None: any
    gpu: str
    predicted_us: float  # for the M that was asked for
    floor_us: float  # no kernel can be faster: arithmetic or memory traffic alone

    @property
    def shape(self) -> TileShape:
        """The tile shape, as candidates and refusals name it."""
        return TileShape(self.schedule, self.tile_m, self.tile_n, self.cluster_n, self.cluster_m)

    @property
    def label(self) -> str:
        """Short, and unique among the plans of a program, e.g. ``pingpong-128x128-c2-s6``."""
        return f"{self.shape.name}-s{self.stages}"


@dataclass(frozen=True)
class Refusal:
    """A tile shape that cannot run a program, and the constraint that it breaks (:mod:`.reasons`)."""

    shape: TileShape
    constraint: str
    reason: str
    times: float
