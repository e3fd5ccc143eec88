"""ComFuse: a GEMM and the elementwise work and row reductions behind it, compiled into one Hopper kernel."""

from __future__ import annotations

__version__ = "0.1.0"
