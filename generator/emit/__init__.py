"""From a plan to the text of one kernel."""

from __future__ import annotations

from comfuse.generator.emit.emit import KernelSource, emit
from comfuse.generator.emit.readable import describe

__all__ = ["KernelSource", "describe", "emit"]
