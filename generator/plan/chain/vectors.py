"""Values a column that a chain's kernel computes once: each CTA at its start, in float32, into shared memory.

A CTA's tiles have all columns in common, and many rows: what depends on columns only is paid for once.
"""

from __future__ import annotations

from functools import lru_cache

from comfuse.generator.deferral import Deferred
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import FusedSpec, Space


def of_middle(deferred: Deferred, number: int = 0) -> tuple[int, ...]:
    """Nodes of a link that is not the last."""
    return _vectors(deferred.links.links[number], 0)


def of_program(deferred: Deferred) -> tuple[int, ...]:
    """Nodes of the last link; what the middle hands on, ``deferred.vectors``, is not among them."""
    return _vectors(deferred.links.last, len(deferred.vectors))


@lru_cache(maxsize=256)
def _vectors(spec: FusedSpec, handed: int) -> tuple[int, ...]:
    """The largest values a column that phases read and that are made of operands.

    ``handed``: this many of the last operands are what the middle hands on.
    """
    made = computed(spec, handed)
    live = _read_by_phases(spec)
    read_elsewhere = {j for i in live - made for j in spec.nodes[i].inputs}
    return tuple(sorted(made & read_elsewhere))


def computed(spec: FusedSpec, handed: int = 0) -> frozenset[int]:
    """All values a column that phases read and that are made of operands, what they are made of among them.

    ``row_index`` and the like are cheap, and left where they are.
    """
    own = len(spec.operands) - handed
    space, live = spaces(spec), _read_by_phases(spec)
    made: set[int] = set()
    for i, node in enumerate(spec.nodes):
        if space[i] is not Space.ROW or i not in live:
            continue
        if node.op == "load":
            assert node.operand is not None
            if node.operand < own:
                made.add(i)
        elif node.op in ELEMENTWISE and all(j in made for j in node.inputs if space[j] is Space.ROW):
            made.add(i)
    return frozenset(made)


def _read_by_phases(spec: FusedSpec) -> frozenset[int]:
    """Nodes that an output needs: others are for what is folded into the second factor, by itself."""
    live = {output.node for output in spec.outputs}
    for i in reversed(range(len(spec.nodes))):
        if i in live:
            live.update(spec.nodes[i].inputs)
    return frozenset(live)
