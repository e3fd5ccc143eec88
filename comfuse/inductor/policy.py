"""What a user may ask of the pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What is fused, and for which GPU.

    Attributes:
        force: fuse whatever one kernel can do, also where it is not expected to pay.
        gpu: the planner's name of the GPU; None: that of the current CUDA device, ``"h200"`` where there is
            none.
        jit: as ``COMFUSE_JIT``; None: what the environment says.
    """

    force: bool = False
    gpu: str | None = None
    jit: str | None = None

    def key(self) -> str:
        """Equal for policies that decide alike."""
        return f"force={self.force},gpu={self.gpu},jit={self.jit}"
