"""The meaning of a spec or a chain, in torch: what CPU tensors run, and what kernels are tested against.

Everything between load and store is computed in one dtype (float32, or float64 for an oracle); values are
rounded once, at the store.
"""

from __future__ import annotations

from comfuse.reference.chain import evaluate_chain
from comfuse.reference.dtypes import LARGEST_EXACT, SPEC_DTYPES, TORCH_DTYPES, store
from comfuse.reference.elementwise import ELEMENTWISE
from comfuse.reference.evaluate import evaluate
from comfuse.reference.reductions import MONOIDS

__all__ = [
    "ELEMENTWISE",
    "LARGEST_EXACT",
    "MONOIDS",
    "SPEC_DTYPES",
    "TORCH_DTYPES",
    "evaluate",
    "evaluate_chain",
    "store",
]
