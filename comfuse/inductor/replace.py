"""A call of the op in the place of a candidate's nodes.

The graph changes as a whole or not at all.  No size is compared in a way that adds a guard: where rows are
symbolic, all operands get the leading sizes of A, as the graph itself has them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from comfuse.frontend import axes
from comfuse.frontend.arguments import Arrangement
from comfuse.frontend.calls import Step, steps
from comfuse.frontend.forms import ResultForm
from comfuse.frontend.lowered import OperandRead
from comfuse.frontend.symbols import concrete, is_symbolic
from comfuse.frontend.views import refuse
from comfuse.generator.spec import Space
from comfuse.generator.stages import Source
from comfuse.inductor.candidate import Found
from comfuse.inductor.emitter import Emitter, Size, product, sort
from comfuse.ops import programs
from comfuse.ops.schema import ALONE, FIXED, GENERAL, MAX_FIXED

aten = torch.ops.aten


def replace(graph: Graph, found: Found) -> dict[Node, Node]:
    """Puts calls of the op in the place of the candidate's nodes, one for each of its kernels.

    Returns:
        For each output of the candidate, which is no node of the graph any more, what took its place: of the
        same shape, strides and dtype.

    Raises:
        TraceError: it has no place in this graph, which is left as it was.
    """
    candidate = found.candidate
    inside = set(candidate.nodes)
    order = [node for node in graph.nodes if node in inside]
    _check_between(order, inside)
    emitter = Emitter(graph, order[-1], candidate.anchors[0])
    users = {user for output in candidate.outputs for user in output.users if user not in inside}
    before = [(user, user.args, user.kwargs) for user in users]
    try:
        results = _Region(emitter, found).results()
        for old, new in results.items():
            old.replace_all_uses_with(new, lambda user: user not in inside)
        sort(graph)
        graph.lint()
    except BaseException:
        for user, args, kwargs in before:
            user.args, user.kwargs = args, kwargs
        emitter.undo()
        sort(graph)
        raise
    for node in reversed(order):
        graph.erase_node(node)
    return results


def _check_between(order: Sequence[Node], inside: set[Node]) -> None:
    """Checks that all nodes can be computed at the place of the last one.

    Raises:
        TraceError: something is written in between, perhaps what the region reads.
    """
    after: set[Node] = set()  # what depends on the region, and is not part of it
    node = order[0]
    while node is not order[-1].next:
        reads_after = any(i in after for i in node.all_input_nodes)
        if node in inside:
            assert not reads_after, f"{node} depends on its own region by a way around it"
        elif reads_after or any(i in inside for i in node.all_input_nodes):
            after.add(node)
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise refuse(node, "it writes to a tensor between the nodes of a region")
        node = node.next


class _Region:
    """The nodes of one region."""

    def __init__(self, emitter: Emitter, found: Found) -> None:
        self._emit = emitter
        self._found = found
        self._lowered = found.lowered
        self._named = _named(found)
        self._lead = _lead(found, self._named)

    def results(self) -> dict[Node, Node]:
        outputs = self._outputs()
        results = {}
        for old, form in zip(self._found.candidate.outputs, self._lowered.results, strict=True):
            assert isinstance(form, ResultForm), f"{old} is no output of the op"
            new = self._emit.reshaped(outputs[form.index], old.meta["val"].shape)
            _check_same(old, new)
            results[old] = new
        return results

    # --- arguments ----------------------------------------------------------------------------------

    def _inputs(self) -> tuple[Node, list[Node], list[Node]]:
        """A, the other factors and the operands, link by link."""
        low = self._lowered
        arrangements = iter(low.arrangements())
        a = self._arranged(low.a.position, next(arrangements), (*self._lead, low.k))
        b, operands = [], []
        for link in low.links:
            n, k = link.spec.n, link.spec.k
            shape = (*self._lead[:1], n, k) if low.batched else (n, k)
            for read in link.b:
                found = next(arrangements)
                b.append(self._arranged(read.position, found, shape[-len(found.shape) :]))
            shapes = {Space.ROW: (n,), Space.COLUMN: self._lead, Space.TILE: (*self._lead, n)}
            for operand in link.operands:
                found = next(arrangements)
                if found.is_of_two_levels(low.batched):
                    shape = self._of_two_levels(operand, found)
                else:
                    shape = shapes[operand.space][-len(found.shape) :]
                operands.append(self._arranged(operand.position, found, shape))
        return a, b, operands

    def _of_two_levels(self, operand: OperandRead, found: Arrangement) -> Sequence[Size]:
        """The shape of an operand that varies over a part of the batches; with symbols it is not expanded."""
        if not self._found.dynamic:
            return found.shape
        outer, inner, _, n = found.shape
        rows = axes.atoms_along([dim.walk for dim in operand.dims], axes.Axis.ROWS)
        batches, own = axes.batches_and_rows(rows, self._lowered.m)
        varies_inside = any(atom.stride == 1 for atom in batches)
        size = self._named.get(inner if varies_inside else outer)
        if size is None or (operand.space is Space.COLUMN and not own):
            node = self._found.candidate.inputs[operand.position]
            raise refuse(node, "it varies over a part of the batches, in a way that its shape does not say")
        leading = (1, size) if varies_inside else (size, 1)
        return (*leading, self._lead[1] if own else 1, n)

    def _arranged(self, position: int, arrangement: Arrangement, shape: Sequence[Size]) -> Node:
        """An input as the op takes it.  One with symbolic rows is read whole, dimension by dimension."""
        node = self._found.candidate.inputs[position]
        symbolic = is_symbolic((node.meta["val"], *shape))
        whole = symbolic or (self._found.dynamic and arrangement.is_of_two_levels(self._lowered.batched))
        split = node.meta["val"].shape if symbolic else arrangement.split
        for dim, part in enumerate(arrangement.slices or ()):
            if part != slice(0, arrangement.of[dim], 1):
                node = self._emit.call(aten.slice.Tensor, node, dim, part.start, part.stop, part.step)
        if arrangement.order != tuple(range(len(arrangement.order))):
            node = self._emit.reshaped(node, split)
            node = self._emit.call(aten.permute.default, node, list(arrangement.order))
        if arrangement.repeated != arrangement.expanded and not whole:
            node = self._emit.reshaped(node, arrangement.expanded)
            node = self._emit.call(aten.expand.default, node, list(arrangement.repeated))
        return self._emit.reshaped(node, shape)

    # --- kernels ------------------------------------------------------------------------------------

    def _outputs(self) -> dict[int, Node]:
        """The outputs of the whole program, one kernel after the other."""
        a, b, given = self._inputs()
        stored: list[list[Node]] = []
        outputs: dict[int, Node] = {}
        for step in steps(self._lowered.spec):
            read = zip(step.operands, step.spec.operands, strict=True)
            operands = [self._of_stage(source, o.space, given, stored) for source, o in read]
            first, rest = programs.parse(step.text).joined(b, operands)
            stored.append(self._run(step, a, first, rest))
            outputs |= {i: y for i, y in zip(step.outputs, stored[-1], strict=True) if i is not None}
        return outputs

    def _of_stage(
        self, source: Source, space: Space, given: Sequence[Node], stored: Sequence[Sequence[Node]]
    ) -> Node:
        if source.stage is None:
            return given[source.index]
        node = stored[source.stage][source.index]
        if node.meta["val"].dim():
            return node
        sizes = self._emit.sizes(self._lead if space is Space.COLUMN else (self._lowered.last.n,), node)
        return self._emit.call(aten.expand.default, node, sizes)

    def _run(self, step: Step, a: Node, b: Node, operands: Sequence[Node]) -> list[Node]:
        """A kernel's outputs."""
        count = len(step.outputs)
        if count in FIXED and len(operands) <= MAX_FIXED:
            run = self._emit.call(FIXED[count][len(operands)], step.text, a, b, *operands)
            if count == 1:
                return [run]
        elif operands:
            run = self._emit.call(GENERAL, step.text, a, b, list(operands), [])
        else:
            run = self._emit.call(ALONE, step.text, a, b, [])
        return [self._emit.call(operator.getitem, run, i) for i in range(count)]


def _named(found: Found) -> dict[int, Size]:
    """The sizes of the inputs, by the numbers that the front end read in their place."""
    inputs = [node.meta["val"] for node in found.candidate.inputs]
    return {concrete(size, found.table): size for val in inputs for size in getattr(val, "shape", ())}


def _lead(found: Found, named: dict[int, Size]) -> tuple[Size, ...]:
    """The leading sizes of A as the op gets it."""
    if not found.dynamic:
        return found.lowered.lead_shape
    (*rows, _) = found.candidate.anchors[0].meta["val"].shape
    if found.lowered.batched:
        return tuple(rows)
    lead = [named.get(size) for size in found.lowered.lead_shape]
    return (product(rows),) if None in lead else tuple(lead)


def _check_same(old: Node, new: Node) -> None:
    """Checks that the rest of the graph sees no difference.

    Raises:
        TraceError: TorchInductor lays the result out in another way than the op.
    """
    was, now = old.meta["val"], new.meta["val"]
    assert was.dtype == now.dtype, f"{old} is {was.dtype}, and its output {now.dtype}"
    for size, stride, own in zip(was.shape, was.stride(), now.stride(), strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(sym_eq(stride, own))):
            raise refuse(old, f"it has strides {tuple(was.stride())}, and as an output {tuple(now.stride())}")
