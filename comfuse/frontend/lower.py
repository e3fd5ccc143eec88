"""From an aten graph to a spec or a chain, and to how its arguments and results belong to it."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch

from comfuse.frontend import views
from comfuse.frontend.capture import Captured
from comfuse.frontend.chains import cut, joined
from comfuse.frontend.errors import TraceError
from comfuse.frontend.gemm import FACTORS, SideBySide
from comfuse.frontend.handlers import ELEMENTWISE, FILLS, REDUCTIONS, explain_unknown
from comfuse.frontend.lowered import Link, Lowered
from comfuse.frontend.lowering import Lowering, UseSideBySide
from comfuse.frontend.names import rename
from comfuse.frontend.placing import Frame, Joined, Result, Term, Value
from comfuse.frontend.results import Results
from comfuse.frontend.source import value_names
from comfuse.frontend.views import Picked, arguments, name_of, refuse, shape_of
from comfuse.generator.errors import PlanError, SpecError
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.generator.stages import stages
from comfuse.reference import SPEC_DTYPES

aten = torch.ops.aten


def lower(captured: Captured) -> Lowered:
    """The spec of a captured function, or the chain where a GEMM's left factor comes from another.

    Raises:
        TraceError: no GEMM, too many, or a node that has no place behind it; names the node.
    """
    return _from_link(captured, 0)


def _from_link(captured: Captured, number: int) -> Lowered:
    """``number``: of the function's first GEMM in the chain that it is the rest of."""
    found = cut(captured)
    if found is None:
        return _of_one_link(captured)
    first = _of_one_link(found.first, f"middle{number or ''}")
    return joined(found, first, _from_link(found.rest, number + 1))


def _of_one_link(captured: Captured, unnamed: str = "y") -> Lowered:
    """``unnamed``: what results are called that the user gave no name."""
    try:
        return _Walk(captured, None, unnamed).lowered()
    except UseSideBySide as wanted:
        return _Walk(captured, wanted.split, unnamed).lowered()


class _Walk:
    """One pass over the graph."""

    def __init__(self, captured: Captured, split: SideBySide | None, unnamed: str) -> None:
        self._captured = captured
        self._unnamed = unnamed
        self._low = Lowering(captured, split)
        self._gemms: dict[int, Value] = {}
        self._names = value_names(captured.graph.nodes) if captured.named else {}
        self._user_names: dict[int, str] = {}

    def lowered(self) -> Lowered:
        for node in self._captured.graph.nodes:
            if node.op == "call_function":
                self._low.current = node
                self._visit(node)
        if self._low.products.a is None:
            raise TraceError("no matrix product (F.linear, x @ w.t()) among what the results depend on")
        return self._finish()

    # --- nodes --------------------------------------------------------------------------------------

    def _visit(self, node: torch.fx.Node) -> None:
        env = self._low.env
        if node.target in FACTORS:
            env[node] = self._product(node)
        elif node.target in FILLS:  # ones_like(h) takes no more than a shape from h
            return
        elif any(i in env for i in node.all_input_nodes):
            env[node] = self._result(node)
        found, name = env.get(node), self._names.get(node)
        if name is not None and isinstance(found, Term) and found.space is not Space.SCALAR:
            for value in found.values:
                self._user_names.setdefault(value.node, name)

    def _product(self, node: torch.fx.Node) -> Term:
        low = self._low
        numbers, layout = low.products.add(node)
        for number in numbers:
            if number not in self._gemms:
                self._gemms[number] = Value(low.builder.gemm(number), Space.TILE)
        accumulated = [self._gemms[number] for number in numbers]
        given = arguments(node)
        if "beta" not in given:
            return Term(tuple(accumulated), layout)
        frames = low.frames_of(node, layout)
        return Term(
            tuple(self._with_bias(node, v, f) for v, f in zip(accumulated, frames, strict=True)), layout
        )

    def _with_bias(self, node: torch.fx.Node, product: Value, frame: Frame) -> Value:
        """``beta * bias + alpha * product``."""
        low, given = self._low, arguments(node)
        if given["alpha"] != 1:
            product = low.emit("mul", product, low.value(given["alpha"], frame, node))
        if given["beta"] == 0:  # torch ignores the bias then, NaN included
            return product
        bias = low.value(given["self"], frame, node)
        if given["beta"] != 1:
            bias = low.emit("mul", bias, low.value(given["beta"], frame, node))
        return low.emit("add", product, bias)

    def _result(self, node: torch.fx.Node) -> Result:
        """A node that depends on the GEMM."""
        low = self._low
        if views.is_split(node):
            return low.env[node.args[0]]  # type: ignore[index]
        found = views.view_of(node)
        if found is not None:
            source, view = found
            if source not in low.env:  # a shape alone depends on the GEMM
                raise refuse(node, explain_unknown(node))
            return low.moved(node, source, view)
        if node.target is operator.getitem:
            return self._item(node)
        if node.target in (aten.cat.default, aten.stack.default):
            return self._joined(node)
        if node.target in views.CASTS:
            (source,) = node.all_input_nodes
            return self._cast(node, source)
        if node.target in REDUCTIONS:
            return low.reduction(node)
        if node.target not in ELEMENTWISE:
            raise refuse(node, explain_unknown(node))
        frames = low.frames(node)
        values = tuple(low.elementwise(node, frame) for frame in frames)
        return Term(values, frames[0].layout)

    def _cast(self, node: torch.fx.Node, source: torch.fx.Node) -> Term | Joined:
        def cast(term: Term) -> Term:
            return replace(term, values=tuple(low.cast(node, v, source) for v in term.values))

        low = self._low
        low.check_rounding(source, node)
        found = low.env[source]
        if isinstance(found, Joined):
            return Joined(tuple((cast(term), dims) for term, dims in found.parts))
        assert isinstance(found, Term)
        return cast(found)

    def _joined(self, node: torch.fx.Node) -> Joined:
        given = arguments(node)
        stacked = node.target is aten.stack.default
        dim = given["dim"] % len(shape_of(node))
        start, parts = 0, []
        for x in given["tensors"]:
            term = self._low.term(x, node)
            if term.is_wide or term.space is not Space.TILE:
                raise refuse(
                    node, f"it joins {name_of(x)}, which is not one number an element: return it alone"
                )
            dims = views.picked(term.layout)
            size = 1 if stacked else dims[dim].size
            own = Picked(shape_of(node)[dim], () if stacked else dims[dim].walk, start)
            parts.append((term, (*dims[:dim], own, *dims[dim if stacked else dim + 1 :])))
            start += size
        return Joined(tuple(parts))

    def _item(self, node: torch.fx.Node) -> Term:
        source, index = node.args
        results = self._low.env[source]  # type: ignore[index]
        assert isinstance(results, tuple)
        found = results[index]  # type: ignore[index]
        if found is None:
            raise refuse(node, f"result {index} of {source} is not available in a fused kernel")
        return found

    # --- the end ------------------------------------------------------------------------------------

    def _finish(self) -> Lowered:
        low, products = self._low, self._low.products
        assert products.a is not None
        rows, sources = products.rows()
        results = Results(low, rows, self._captured.outputs, self._user_names, self._unnamed)
        builder = low.builder
        builder.n, builder.k, builder.dtype = products.n, products.k, SPEC_DTYPES[products.dtype]
        builder.products, builder.batched = len(products.b), products.batch > 1
        link = Link(
            spec=builder.spec(),
            b=tuple(products.b),
            operands=tuple(low.operands.reads),
            scalars=tuple(low.operands.scalars),
        )
        lowered = Lowered(
            links=(link,),
            rows=rows,
            sources=sources or (),
            lead=results.lead,
            a=products.a,
            results=tuple(results.forms),
            reads_rows=sources is None,
        )
        builder.a_major, builder.b_major = self._majors(lowered, len(products.b))
        spec = rename(builder.spec(), results.names)
        self._check(spec)
        return lowered.with_specs(lambda _: spec)

    def _check(self, spec: FusedSpec) -> None:
        """Raises what the generator has against a program, with its place in the graph."""
        try:
            stages(spec)
        except (SpecError, PlanError) as e:
            found = next((i for i, node in enumerate(spec.nodes) if node.name == e.node), None)
            origin = None if found is None else self._low.origins.get(found)
            if origin is None:
                raise TraceError(str(e)) from e
            raise refuse(origin, f"its value {e.reason}" if isinstance(e, PlanError) else e.reason) from e

    def _majors(self, lowered: Lowered, products: int) -> tuple[Major, Major]:
        """Which dimension of A and of B is contiguous, for the strides that the function was traced with."""
        placeholders = {position: node for node, position in self._captured.arguments.items()}
        a, *b = (
            arrangement.major(placeholders[read.position].meta["val"])
            for read, arrangement in zip(lowered.reads, lowered.arrangements(), strict=True)
        )
        of_b = set(b[:products])
        return a, of_b.pop() if len(of_b) == 1 else Major.K
