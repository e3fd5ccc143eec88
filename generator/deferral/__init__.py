"""Row reductions between the GEMMs of a chain, deferred behind the second one.

The first GEMM's columns pass by in blocks, so that a reduction over them is finished only behind the last:
too late for the values that read it.  Where what is handed on is an affine function, row by row, of a value
that reads none,

    p[m, h] = s[m] * u[m, h] + t[m] * c[h] + ...

the second GEMM runs over ``u``, and a value a row and vectors a column do the rest behind it:

    y[m, n] = s[m] * (u @ W1.T)[m, n] + t[m] * v[n] + ...        v[n] = sum_h c[h] * W1[n, h]

RMSNorm has no ``t``; LayerNorm has one for its mean, whose ``c`` is the norm's weight, and another for its
bias.  ``v`` is summed in float32 by each CTA at its start, from W1 as it lies in memory.  The mean cannot be
taken away before: an element is rounded and multiplied before its row's mean is known.

Exponentials are shifted by the largest value so far, and everything that was accumulated is scaled when that
grows (online softmax: Milakov and Gimelshein, 2018):

    exp(x[m, h] + t[m]) = exp(x[m, h] - max(x[m])) * exp(max(x[m]) + t[m])

so that the maximum of ``x`` is the one reduction that ``u`` may read; and sums of what is proportional to
such an exponential are scaled with it.

**Rounding.**  ``u`` is rounded to the factors' type where ``p`` would be: the same relative error of each
element, whatever ``s`` is.  ``t * v`` is exact to float32, but where it cancels most of ``s * (u @ W1.T)``,
as in the LayerNorm of rows whose mean is much larger than their spread, ``u``'s error grows by that ratio.
So does that of an eager program where what the norm reads has the factors' type.  Where a float32 operand,
as a residual stream is, makes that float32, an eager program rounds behind the norm alone, and such a shift
is refused (:mod:`.rounding`); what only scales its row is as good as before.  In bfloat16 ``u`` has the range
of float32; in float16 it might overflow where ``p`` does not, so there only exponentials, which are at most
1, are deferred.
"""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.deferral.deferred import Deferred
from comfuse.generator.deferral.first import FirstLink
from comfuse.generator.deferral.links import deferred_links
from comfuse.generator.errors import PlanError
from comfuse.generator.ops import REDUCTIONS

__all__ = ["Deferred", "defer", "why_not"]


@lru_cache(maxsize=256)
def defer(chain: ChainSpec) -> Deferred:
    """A chain with its middle reductions deferred; it means the same, but for rounding.

    Raises:
        SpecError: the chain is malformed.
        PlanError: a reduction cannot be deferred; names the node that reads it, and says why.
    """
    chain = normalize_chain(chain)
    found = [node.name for link in chain.links[:-1] for node in link.nodes if node.op in REDUCTIONS]
    if not found:
        return Deferred(chain)
    if len(chain.links) > 2:
        raise PlanError("a reduction between the GEMMs of a chain of more than two", found[0])
    first, last = chain.links
    return deferred_links(FirstLink(first), last)


def why_not(chain: ChainSpec) -> str | None:
    """Why the middle reductions of a valid chain cannot be deferred; None: nothing is in the way."""
    try:
        defer(chain)
    except PlanError as e:
        return str(e)
    return None
