"""What was measured of regions of each kind, against what the planner predicted for them.

Times are medians in microseconds on an H200, bf16, from the bench's results that :data:`ROWS` names; those
of one row stand in one results file, so that their ratios mean something.  Predictions are by the constants
that the planner has of an H200: no other GPU's, and none that were calibrated, are corrected by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from statistics import fmean

from comfuse.generator.plan.gpus import Gpu, find

_GPU = find("h200")  # that was measured, with the constants of its predictions


class Kind(Enum):
    """What a region's kernels have to do besides the GEMM; the hardest part decides."""

    ELEMENTWISE = "elementwise work"
    ROW_OUTPUTS = "reductions over rows that are stored"
    COLUMNS = "reductions over columns"
    ROWS = "a reduction that its rows wait for"
    ROWS_TWICE = "reductions that its rows wait for, one after the other"
    TWO_PRODUCTS = "two products"
    CHAIN = "GEMMs back to back"


@dataclass(frozen=True)
class Row:
    """One workload of the bench.

    Attributes:
        workload: its name, which ends with the shape; its results file starts with the same word.
        kind: of its region.
        gemm_us: torch.mm, all products; of a chain one after the other.
        fused_us: ComFuse.
        unfused_us: the better of TorchInductor's modes that were run; None if it was not run.
        predicted_gemm_us: the planner's prediction of our kernel for the products alone; of a chain of a
            kernel for each.
        predicted_us: the planner's prediction of the kernel that was measured; of chains of today's, so that
            nothing is counted on that a kernel which has changed since may save.
    """

    workload: str
    kind: Kind
    gemm_us: float
    fused_us: float
    unfused_us: float | None
    predicted_gemm_us: float
    predicted_us: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, N, K); of a chain (M, H, K, N), where H are the columns between its GEMMs."""
        sizes = tuple(map(int, self.workload.rsplit("-", 1)[1].split("x")))
        if self.kind is not Kind.CHAIN:
            return sizes
        m, k, h, n = sizes  # as the bench names it
        return m, h, k, n

    @property
    def gemm(self) -> float:
        """What a GEMM takes, over what was predicted."""
        return self.gemm_us / self.predicted_gemm_us

    @property
    def excess_ps(self) -> float:
        """What it takes longer than predicted, in picoseconds an element of its first GEMM's result."""
        m, n = self.shape[:2]
        return 1e6 * (self.fused_us - self.predicted_us * self.gemm) / (m * n)


@dataclass(frozen=True)
class Correction:
    """How predictions of a class of regions are corrected.

    Attributes:
        gemm: factor for everything that was predicted.
        excess_ps: added to a fused region, in picoseconds an element of its first GEMM's result.
        slower: the name of a workload of this class in which ComFuse was slower than TorchInductor; None if
            there is none.
    """

    gemm: float = 1.0
    excess_ps: float = 0.0
    slower: str | None = None

    def fused_us(self, predicted_us: float, elements: int) -> float:
        """The time of a kernel for which ``predicted_us`` was predicted."""
        return predicted_us * self.gemm + 1e-6 * self.excess_ps * elements


def correction(gpu: Gpu, kind: Kind, *sizes: int) -> Correction:
    """What the measured regions of this kind say about one of these sizes: N and K, of a chain H, K and N.

    A class is a kind with all sizes to the next power of two.  Where it was not measured, the nearest one
    that was counts, and only for what it makes worse.  Dtypes and rows are no part of a class: what was
    measured is bf16 of 8192 rows and more, and counts for fp16, other operands and fewer rows too.

    Args:
        gpu: that the region is planned for.  Of the measured one, once it is calibrated, only losses count,
            which are of times alone: its own constants hold what would be corrected.  Of others nothing does.
    """
    if gpu.name != _GPU.name:
        return Correction()
    found = _correction(kind, sizes)
    return found if gpu == _GPU else Correction(slower=found.slower)


def _correction(kind: Kind, sizes: tuple[int, ...]) -> Correction:
    rows = [row for row in ROWS if row.kind is kind]
    if not rows:
        return Correction()
    nearest = min(_distance(row, sizes) for row in rows)
    rows = [row for row in rows if _distance(row, sizes) == nearest]
    gemm = fmean(row.gemm for row in rows)
    excess = fmean(row.excess_ps for row in rows)
    if nearest:
        return Correction(gemm, max(excess, 0.0))
    slower = (row.workload for row in rows if row.unfused_us is not None and row.fused_us > row.unfused_us)
    return Correction(gemm, excess, next(slower, None))


def _distance(row: Row, sizes: tuple[int, ...]) -> int:
    return sum(abs(_power(own) - _power(size)) for own, size in zip(row.shape[1:], sizes, strict=True))


def _power(size: int) -> int:
    """The exponent of the next power of two."""
    return (size - 1).bit_length()


#: Of graphs-20261130-235321-23a5cd4 and graphs-20261201-063945-1235ada; of rmsnorm-20261130-215351-4511c29,
#: without TorchInductor; of postnorm-20261130-234330-23a5cd4 and postnorm-20261201-063903-1235ada; of
#: narrow-20261130-234906-23a5cd4; of plain_gemm-20261129-210955-621ddbf: our faster kernel, no epilogue; of
#: b2b-20261130-191520-030808a, where TorchInductor ran in max-autotune only, and b2b-20261201-063541-1235ada.
#: The second of two files has TorchInductor's default mode, of chains both.  The bench (page/changed.py) says
#: which are not of today's kernels.
#:
#: Left out is, of rmsnorm, RMSNorm 8192,2304,2048: another kernel is chosen since.
ROWS: tuple[Row, ...] = (
    Row("graphs-softmax-8192x2048x512", Kind.ROWS, 33.8, 40.4, 73.9, 28.4, 39.6),
    Row("graphs-relu_sum-8192x8192x1024", Kind.COLUMNS, 192.6, 174.2, 224.7, 182.0, 184.2),
    Row("graphs-logsumexp-8192x32000x4096", Kind.ROW_OUTPUTS, 2941.1, 3015.1, 3263.1, 3141.7, 3250.8),
    Row("graphs-gelu_backward-16384x4096x1024", Kind.COLUMNS, 192.3, 239.8, 347.8, 182.1, 243.5),
    Row("graphs-rmsnorm-8192x4096x4096", Kind.ROWS, 342.5, 372.7, 387.5, 355.5, 389.6),
    Row("graphs-rmsnorm-8192x3584x4096", Kind.ROWS, 301.0, 329.2, 340.1, 305.2, 335.9),
    Row("graphs-swiglu-8192x11008x4096", Kind.TWO_PRODUCTS, 2115.4, 2002.4, 2205.8, 1960.7, 2092.2),
    Row("graphs-gemma-8192x4608x4096", Kind.ROWS_TWICE, 396.1, 455.5, 478.6, 401.2, 474.8),
    Row("graphs-quantise-8192x4096x4096", Kind.ROWS, 349.1, 361.1, 381.2, 355.5, 373.3),
    Row("rmsnorm-8192x5120x5120", Kind.ROWS, 554.0, 588.9, None, 562.4, 612.5),
    Row("rmsnorm-8192x3584x14336", Kind.ROWS, 1109.0, 1141.8, None, 1118.5, 1160.0),
    Row("rmsnorm-8192x1152x1024", Kind.ROWS, 31.4, 41.2, None, 31.4, 38.7),
    Row("rmsnorm-8192x3840x4096", Kind.ROWS, 334.1, 358.5, None, 333.1, 364.7),
    Row("postnorm-16384x768x768", Kind.ROWS, 35.1, 40.3, 53.5, 31.0, 42.9),
    Row("postnorm-16384x768x3072", Kind.ROWS, 104.5, 114.6, 122.7, 103.2, 115.1),
    Row("postnorm-16384x1024x1024", Kind.ROWS, 53.0, 60.8, 79.2, 49.5, 65.6),
    Row("postnorm-16384x1024x4096", Kind.ROWS, 173.6, 188.4, 197.0, 178.4, 195.8),
    Row("postnorm-8192x2048x2048", Kind.ROWS, 92.8, 103.5, 124.8, 91.2, 109.4),
    Row("postnorm-8192x4096x4096", Kind.ROWS, 343.4, 379.6, 401.1, 355.5, 397.2),
    Row("postnorm-327680x512x512", Kind.ROWS, 268.9, 358.1, 502.6, 253.2, 410.9),
    Row("postnorm-65536x256x256", Kind.ROWS, 26.0, 31.5, 55.0, 21.9, 32.8),
    Row("narrow-65536x384x384", Kind.ROWS, 40.8, 57.0, 83.0, 36.6, 58.8),
    Row("narrow-65536x384x1536", Kind.ROWS, 114.7, 135.4, 152.5, 113.7, 136.8),
    Row("narrow-32768x512x512", Kind.ROWS, 34.2, 42.1, 59.7, 30.2, 45.4),
    Row("narrow-32768x512x2048", Kind.ROWS, 97.1, 109.4, 120.2, 95.0, 110.4),
    Row("narrow-32768x640x1024", Kind.ROWS, 66.8, 77.6, 96.3, 63.5, 77.5),
    Row("narrow-32768x640x2048", Kind.ROWS, 119.8, 133.4, 147.4, 118.2, 131.5),
    Row("plain_gemm-16384x768x768", Kind.ELEMENTWISE, 34.6, 31.0, None, 31.0, 31.0),
    Row("plain_gemm-16384x768x3072", Kind.ELEMENTWISE, 103.8, 104.8, None, 103.2, 103.2),
    Row("plain_gemm-16384x1024x1024", Kind.ELEMENTWISE, 53.0, 49.9, None, 49.5, 49.5),
    Row("plain_gemm-16384x1024x4096", Kind.ELEMENTWISE, 176.9, 177.3, None, 178.4, 178.4),
    Row("plain_gemm-8192x2048x2048", Kind.ELEMENTWISE, 92.0, 91.3, None, 91.2, 91.2),
    Row("plain_gemm-8192x4096x4096", Kind.ELEMENTWISE, 348.4, 354.7, None, 355.5, 355.5),
    Row("plain_gemm-327680x512x512", Kind.ELEMENTWISE, 268.2, 259.1, None, 253.2, 253.2),
    Row("plain_gemm-65536x256x256", Kind.ELEMENTWISE, 25.5, 21.7, None, 21.9, 21.9),
    Row("b2b-327680x128x512x128", Kind.CHAIN, 232.1, 153.1, 456.8, 201.1, 158.6),
    Row("b2b-262144x128x128x128", Kind.CHAIN, 82.5, 46.2, 129.4, 65.2, 46.1),
    Row("b2b-65536x256x1024x256", Kind.CHAIN, 123.7, 118.3, 224.6, 117.2, 115.8),
    Row("b2b-1048576x64x256x64", Kind.CHAIN, 362.5, 166.9, 717.8, 314.3, 169.1),
)
