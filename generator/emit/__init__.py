"""From a plan to the text of one kernel."""

from __future__ import annotations

from comfuse.generator.emit.chain import emit_chain
from comfuse.generator.emit.emit import KernelSource
from comfuse.generator.emit.program import emit
from comfuse.generator.emit.readable import describe, describe_chain

__all__ = ["KernelSource", "describe", "describe_chain", "emit", "emit_chain"]
