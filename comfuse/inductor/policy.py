"""What a user may ask of the pass."""

from __future__ import annotations

from dataclasses import dataclass

from comfuse import settings
from comfuse.errors import ArgumentError
from comfuse.generator.plan import gpus


@dataclass(frozen=True)
class Policy:
    """What is fused, and for which GPU.

    Attributes:
        force: fuse whatever one kernel can do, also where it is not expected to pay.  Two layers become one
            kernel only where that is predicted to be faster than one for each.
        gpu: the planner's name of the GPU; None: that of the current CUDA device, ``"h200"`` where there is
            none.
        jit: as ``COMFUSE_JIT``; None: what the environment says.
    """

    force: bool = False
    gpu: str | None = None
    jit: str | None = None

    def __post_init__(self) -> None:
        """Raises PlanError for an unknown GPU, and ArgumentError for an unknown mode."""
        if self.gpu is not None:
            gpus.find(self.gpu)
        if self.jit is not None and self.jit not in settings.JIT.allowed.split(", "):
            raise ArgumentError("policy", "jit", repr(self.jit), settings.JIT.allowed)

    def key(self) -> str:
        """Equal for policies that decide alike."""
        return f"force={self.force},gpu={self.gpu},jit={self.jit}"
