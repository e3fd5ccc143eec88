"""Functions of GEMMs back to back: cut where the result of one is the left factor of the next.

Each part is lowered as a function of its own, the next with what is handed on, its *middle*, as an argument.
The middle stays on the chip, so that nobody else may read what the first GEMM gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from comfuse.frontend.axes import Atom, Axis
from comfuse.frontend.capture import Captured
from comfuse.frontend.errors import TraceError
from comfuse.frontend.gemm import FACTORS
from comfuse.frontend.handlers import FILLS
from comfuse.frontend.lowered import Lowered
from comfuse.frontend.rounding import never_rounded
from comfuse.frontend.views import dtype_of, is_view, name_of, refuse, source
from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral import defer
from comfuse.generator.errors import PlanError, SpecError
from comfuse.generator.plan.chain import check_chain

aten = torch.ops.aten

MIDDLE = -1  # the position of what a link hands on, which is no argument of the function


@dataclass(frozen=True)
class Cut:
    """A function in two.

    Attributes:
        first: what gives the middle.
        rest: what reads it, and gives the results.
        middle: the node that is handed on.
        anchor: the first product that reads it.
        before: the product that it comes from.
    """

    first: Captured
    rest: Captured
    middle: Node
    anchor: Node
    before: Node

    def refused(self, reason: str) -> TraceError:
        """Why the two are no chain."""
        middle, before = name_of(self.middle), name_of(self.before)
        return refuse(self.anchor, f"its left factor is {middle}, computed from {before}: {reason}")


def cut(captured: Captured) -> Cut | None:
    """A function, cut ahead of the first product whose left factor comes from another; None: there is none.

    Raises:
        TraceError: what the first product gives is read elsewhere too.
    """
    depends: dict[Node, Node] = {}  # what is computed from a product, and the first such one
    for node in captured.graph.nodes:
        if node.op != "call_function" or node.target in FILLS:
            continue
        if node.target in FACTORS:
            left = _factor(node, 0)
            if left in depends:
                return _cut(captured, node, depends)
            depends[node] = node
        elif found := [depends[i] for i in node.all_input_nodes if i in depends]:
            depends[node] = found[0]
    return None


def _cut(captured: Captured, anchor: Node, depends: dict[Node, Node]) -> Cut:
    middle = source(_factor(anchor, 0))
    order = [*captured.graph.nodes]
    first = _needed([middle], set())
    rest = _needed(captured.outputs, {middle})
    found = Cut(
        first=_part(captured, [n for n in order if n in first], (middle,)),
        rest=_part(captured, [n for n in order if n in rest and n is not middle], captured.outputs, middle),
        middle=middle,
        anchor=anchor,
        before=depends[middle],
    )
    shared = {node for node in first if node in depends}
    for node in order:
        reason = _reads_first(node, shared - {middle}, middle) if node in rest - first else None
        if reason is not None:
            raise found.refused(reason)
    for output in captured.outputs:
        if source(output) in shared:
            raise found.refused(_stored(source(output), "the function returns it"))
    return found


def _reads_first(node: Node, inner: set[Node], middle: Node) -> str | None:
    """Why a node behind the cut keeps the middle, or what it comes from, from being on the chip alone."""
    if node.op != "call_function" or node.target in FILLS or is_view(node):
        return None
    for read in node.all_input_nodes:
        origin = source(read)
        is_left = node.target in FACTORS and [i for i, x in enumerate(node.args) if x is read] == [
            FACTORS[node.target][0]
        ]
        if origin in inner or (origin is middle and not is_left):
            return _stored(origin, f"{name_of(node)} reads it too")
    return None


def _stored(node: Node, why: str) -> str:
    return f"{name_of(node)} would have to be stored, as {why}; one kernel hands it on and stores nothing"


def _factor(product: Node, side: int) -> Node:
    found = product.args[FACTORS[product.target][side]]
    assert isinstance(found, Node)
    return found


def _needed(nodes: Iterable[Node], known: set[Node]) -> set[Node]:
    """The nodes and what they are computed from, up to what is known."""
    found: set[Node] = set()
    pending = [*nodes]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in known and node.target not in FILLS:
                pending += node.all_input_nodes
    return found


def _part(
    captured: Captured, nodes: Iterable[Node], outputs: tuple[Node, ...], middle: Node | None = None
) -> Captured:
    """A part of a graph as a function, of the same arguments and of ``middle``."""
    graph = Graph()
    env: dict[Node, Node] = {}
    arguments: dict[Node, int] = {}
    if middle is not None:
        env[middle] = copy = graph.create_node("placeholder", middle.name, name=middle.name)
        copy.meta = {**middle.meta, "val": _contiguous(middle.meta["val"])}
        arguments[copy] = MIDDLE
    for node in nodes:
        if node.target in FILLS:  # it may take a shape from the other part
            args: Any = ([], FILLS[node.target](node))
            env[node] = copy = graph.create_node("call_function", aten.full.default, args, name=node.name)
        else:
            args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = copy = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
        copy.meta = node.meta
        if node in captured.arguments:
            arguments[copy] = captured.arguments[node]
    return replace(
        captured,
        graph=graph,
        arguments=arguments,
        outputs=tuple(env[node] for node in outputs),
        structure=captured.structure if middle is not None else pytree.tree_structure(0),
    )


def _contiguous(val: torch.Tensor) -> torch.Tensor:
    """A middle lies nowhere; its rows are as a kernel makes them."""
    with FakeTensorMode():
        return torch.empty(val.shape, dtype=val.dtype, device=val.device)


# --- both parts together --------------------------------------------------------------------------------


def joined(found: Cut, first: Lowered, rest: Lowered) -> Lowered:
    """The function as a chain, of what its two parts were lowered to.

    Raises:
        TraceError: the middle is rearranged between them, or the generator has no kernel for such a chain, or
            one that rounds what the function does not.
    """
    arrangement = rest.arrangements()[0]
    in_order = (
        rest.a.position == MIDDLE
        and arrangement.slices is None
        and arrangement.order == tuple(range(len(arrangement.order)))
        and arrangement.repeated == arrangement.expanded
        and (rest.rows.count, rest.k) == (first.rows.count, first.last.n)
    )
    if not in_order or not first.is_reshaped(first.results[0]):
        raise found.refused("it is handed on in another order of rows and columns than the first one has")
    chain = replace(
        rest,
        links=(*first.links, *rest.links),
        rows=first.rows,
        sources=first.sources,
        lead=_lead(found, first, rest),
        a=first.a,
        reads_rows=first.reads_rows or rest.reads_rows,
    )
    try:
        shifted = defer(check_chain(ChainSpec(tuple(link.spec for link in chain.links)))).shifted
    except (SpecError, PlanError) as e:
        raise found.refused(f"no kernel takes both: {e}") from e
    wide = never_rounded(found.first.graph) if shifted else None
    if wide is not None:
        raise found.refused(
            f"{name_of(wide)} is computed in float32 and shifted by its row, which one kernel does behind the"
            f" second product, when it has rounded it: convert {name_of(wide)} to {dtype_of(found.middle)}"
        )
    return chain


def _lead(found: Cut, first: Lowered, rest: Lowered) -> tuple[Atom, ...]:
    """The dimensions of the rows as both parts need them: cut wherever one of them is."""
    if first.batched or first.lead == rest.lead:
        return rest.lead
    ends = {atom.stride * atom.size for low in (first, rest) for atom in low.lead}
    sizes = sorted(ends - {1} | {first.rows.count})
    heads = any(getattr(form, "heads", None) is not None for form in rest.results)
    if heads:  # split by what the innermost dimension counts
        sizes = [size for size in sizes if size % rest.lead[-1].size == 0]
    if any(outer % inner for inner, outer in pairwise(sizes)):
        raise found.refused("their operands and results divide the rows in ways that do not nest")
    lead = [Atom(Axis.ROWS, inner, outer // inner) for inner, outer in zip([1, *sizes], sizes, strict=False)]
    return tuple(lead[::-1])
