"""Values a column that a chain's kernel computes once: each CTA at its start, in float32, into shared memory.

A CTA's tiles have all columns in common, and many rows: what depends on columns only is paid for once.
"""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.deferral import Deferred
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Space


def of_middle(deferred: Deferred) -> tuple[int, ...]:
    """Nodes of the first link."""
    return _vectors(deferred.links.links[0], 0)


def of_program(deferred: Deferred) -> tuple[int, ...]:
    """Nodes of the last link; what the middle hands on, ``deferred.vectors``, is not among them."""
    return _vectors(deferred.links.last, len(deferred.vectors))


@lru_cache(maxsize=256)
def _vectors(spec: FusedSpec, handed: int) -> tuple[int, ...]:
    """The largest values a column of a link that are made of operands, not of its last ``handed`` ones.

    ``row_index`` and the like are cheap, and left where they are.
    """
    own = len(spec.operands) - handed
    space = spaces(spec)
    made: set[int] = set()  # of operands
    for i, node in enumerate(spec.nodes):
        if space[i] is not Space.ROW:
            continue
        if node.op == "load":
            assert node.operand is not None
            if node.operand < own:
                made.add(i)
        elif node.op in ELEMENTWISE and all(j in made for j in node.inputs if space[j] is Space.ROW):
            made.add(i)
    readers: dict[int, list[int]] = {i: [] for i in made}
    for i, node in enumerate(spec.nodes):
        for j in node.inputs:
            if j in made:
                readers[j].append(i)
    return tuple(i for i in sorted(made) if any(r not in made for r in readers[i]))
