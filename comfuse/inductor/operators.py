"""Operators that only TorchInductor's graphs have, for the front end's tables.

They are defined when TorchInductor is imported, which ``import comfuse`` does not do.
"""

from __future__ import annotations

from torch._inductor import inductor_prims

from comfuse.frontend.handlers import ELEMENTWISE
from comfuse.frontend.handlers.elementwise import multiply_add


def register() -> None:
    """Teaches the front end the operators that this version of torch has."""
    fma = getattr(inductor_prims, "fma", None)  # newer than torch 2.11's decompositions
    if fma is not None:
        ELEMENTWISE[fma] = multiply_add
