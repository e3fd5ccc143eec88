"""Passes from FusedSpec to FusedSpec.  The order of ``PASSES`` is the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from comfuse.generator.passes.canonicalise import canonicalise
from comfuse.generator.passes.fold_shifts import fold_shifts
from comfuse.generator.passes.fuse_activations import fuse_activations
from comfuse.generator.passes.fuse_derivatives import fuse_derivatives
from comfuse.generator.passes.fuse_moments import fuse_moments
from comfuse.generator.passes.fuse_softmax import fuse_softmax
from comfuse.generator.passes.infer import infer
from comfuse.generator.passes.verify import verify
from comfuse.generator.spec import FusedSpec

Pass = Callable[[FusedSpec], FusedSpec]

PASSES: tuple[Pass, ...] = (
    verify,  # what came in is well formed
    infer,  # every node has a space, every output can be stored
    canonicalise,
    fuse_activations,
    fuse_derivatives,
    fuse_moments,
    fuse_softmax,
    canonicalise,  # clears what the fusions left over
    fold_shifts,
    canonicalise,
    verify,  # what goes out is too
)


@lru_cache(maxsize=256)
def normalize(spec: FusedSpec) -> FusedSpec:
    """The canonical form of a program: same operands, outputs and float64 meaning, fewest nodes.

    Idempotent.

    Raises:
        SpecError: the spec is malformed.
    """
    for transform in PASSES:
        spec = transform(spec)
    return spec
