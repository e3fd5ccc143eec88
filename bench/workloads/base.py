"""What every workload has: a GEMM's shape, a floor, a goal.  Pure data: nothing here needs torch or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

# Ceilings measured on an H200: a device-to-device copy, bytes read plus bytes written, and a bf16
# 8192 x 8192 x 8192 torch.mm on random data.  The floor of a workload is the larger of its two times.
COPY_BYTES_PER_SECOND = 4.27e12
GEMM_FLOPS_PER_SECOND = 788e12


Against = Literal["mm", "inductor"]


@dataclass(frozen=True)
class Target:
    """A ratio of times that ComFuse has to reach.

    Attributes:
        value: ``against`` "mm" ComFuse's time over torch.mm's is at most this, ``against`` "inductor" the
            best Inductor's over ComFuse's at least this.
    """

    value: float
    against: Against

    @property
    def text(self) -> str:
        return f"≥ {self.value:.2f}x" if self.against == "inductor" else f"≤ {self.value:.2f} of mm"

    def met(self, ratio: float) -> bool:
        """Whether a ratio reaches it; not rounded before, as it is where it is printed."""
        return ratio >= self.value if self.against == "inductor" else ratio <= self.value


@dataclass(frozen=True)
class Workload(ABC):
    """M rows, N columns, K products, and a program behind the GEMM.

    ``goal`` and ``against`` are its :class:`Target`, None if no goal is set.
    """

    family: str
    model: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    goal: float | None = None
    against: Against = "mm"
    axes: ClassVar[str] = "M,N,K"  # what the numbers of its label are
    roundings: ClassVar[int] = 1  # of a value, in a program that rounds as seldom as a kernel does

    @property
    def target(self) -> Target | None:
        return None if self.goal is None else Target(self.goal, self.against)

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique over all families, without spaces."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The first cell of its row in a table."""

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether an output depends on all rows, so that a sample of them cannot be compared."""

    @property
    def products(self) -> int:
        """GEMMs side by side."""
        return 1

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.products

    @property
    @abstractmethod
    def bytes_moved(self) -> float:
        """Every tensor once."""

    @property
    def floor_us(self) -> float:
        return 1e6 * max(self.flops / GEMM_FLOPS_PER_SECOND, self.bytes_moved / COPY_BYTES_PER_SECOND)

    @property
    def floor_bound(self) -> str:
        by_flops = self.flops / GEMM_FLOPS_PER_SECOND >= self.bytes_moved / COPY_BYTES_PER_SECOND
        return "flops" if by_flops else "bytes"
