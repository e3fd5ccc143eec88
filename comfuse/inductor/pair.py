"""Two GEMMs side by side: the gate and the value of a gated layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from comfuse.inductor.grow import Field, grow
from comfuse.inductor.nodes import factors, is_free, tensor


def partner(graph: Field, anchor: Node, others: Sequence[Node]) -> Node | None:
    """The last of ``others`` that a kernel can compute beside ``anchor``, and that meets it behind both.

    Both have the same left factor and as many columns, and neither depends on the other.
    """
    columns = tensor(anchor).shape[-1]
    like = [
        other
        for other in others
        if other is not anchor
        and other.target is anchor.target
        and factors(other)[0] is factors(anchor)[0]
        and tensor(other).shape[-1] == columns
    ]
    if not like:
        return None
    own = grow(graph, (anchor,))
    for other in reversed(like):
        theirs = grow(graph, (other,))
        if other in own.below or anchor in theirs.below:
            continue
        if any(not is_free(node) for node in own.behind & theirs.behind):
            return other
    return None
