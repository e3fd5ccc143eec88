"""Both links of a deferred chain, from what the first one was taken apart into."""

from __future__ import annotations

from dataclasses import replace

from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral.deferred import Deferred
from comfuse.generator.deferral.first import Affine, FirstLink
from comfuse.generator.deferral.rounding import kept_wide
from comfuse.generator.errors import PlanError
from comfuse.generator.passes import normalize
from comfuse.generator.passes.graph import Graph, distinct, moved
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import DType, FusedSpec, Node, Operand, Output, Space


def deferred_links(first: FirstLink, last: FusedSpec) -> Deferred:
    """What a chain becomes whose second link is ``last``.

    Raises:
        PlanError: what the first hands on has no part without reductions, that part is no exponential where
            others are summed, fp16 cannot hold it, or it is shifted by its row and was never rounded before.
    """
    output = first.spec.outputs[0]
    form = first.form(output.node)
    if form.tile is None:
        raise PlanError("no part of it is a tile without reductions", output.name)
    scaled = form.scale is not None or form.terms
    if first.spec.dtype is DType.FP16 and scaled and not first.reads_peak(form.tile):
        raise PlanError("before it is scaled by its row it may be too large for fp16", output.name)
    shifted = any(t in first.late for t, _ in form.terms)
    if shifted:
        _check_rounding(first, output.name, form.tile)
    columns = list(dict.fromkeys(x for x in (form.scale, *(t for t, _ in form.terms)) if x is not None))
    vectors = [c for _, c in form.terms]
    taken = {operand.name for operand in last.operands}
    names = [distinct(f"{output.name}_{first.graph.nodes[x].name}", taken) for x in (*columns, *vectors)]
    handed = [Output(name, x, DType.FP32) for name, x in zip(names, (*columns, *vectors), strict=True)]
    built = first.graph.spec((replace(output, node=form.tile), *handed))
    peak = next((i for i in range(len(built.nodes)) if _is_peak(built, i)), None)
    if peak is not None and not first.reads_peak(form.tile):
        raise PlanError(
            "no exponential itself, but scaled by a sum of some: what is accumulated of it would be scaled"
            " when their maximum grows",
            output.name,
        )
    outputs = built.outputs[: 1 + len(columns)]
    return Deferred(
        ChainSpec((replace(built, outputs=outputs), _behind(last, form, columns, names))),
        tuple(o.node for o in built.outputs[len(outputs) :]),
        peak,
        shifted,
    )


def _check_rounding(first: FirstLink, name: str, tile: int) -> None:
    half = first.spec.dtype
    wide = kept_wide(first.graph.nodes, first.graph.operands, half, tile)
    if wide is not None:
        raise PlanError(
            f"it is shifted by its row behind the second GEMM, and rounded to {half.value} before, while"
            f" {wide}, which is not {half.value}, keeps what is shifted in float32: where the shift cancels"
            f" most of it, its rounding is all that is left; convert {wide} to {half.value}, or use a norm"
            " that only scales",
            name,
        )


def _is_peak(spec: FusedSpec, i: int) -> bool:
    """Whether a node is the maximum that a tile is shifted by."""
    readers = [r for r, reader in enumerate(spec.nodes) if i in reader.inputs]
    return spec.nodes[i].op == "row_max" and any(spaces(spec)[r] is Space.TILE for r in readers)


def _behind(last: FusedSpec, form: Affine, columns: list[int], names: list[str]) -> FusedSpec:
    """The second link, which reads ``scale * acc + t * v + ...`` where it read its GEMM.

    ``names``: of its new operands, ``columns`` and then what the vectors become.
    """
    own = len(last.operands)
    operands = tuple(
        Operand(name, Space.COLUMN if position < len(columns) else Space.ROW)
        for position, name in enumerate(names)
    )
    graph, place = Graph(replace(last, operands=(*last.operands, *operands))), list[int]()

    def load(position: int) -> int:
        return graph.add(Node(names[position], "load", operand=own + position))

    for node in last.nodes:
        new = graph.add(moved(node, place))
        if node.op == "gemm":
            if form.scale is not None:
                new = graph.op("scaled", "mul", new, load(columns.index(form.scale)))
            for number, (t, _) in enumerate(form.terms):
                term = load(len(columns) + number)
                if t is not None:
                    term = graph.op(f"shift{number}", "mul", term, load(columns.index(t)))
                new = graph.op(f"shifted{number}", "add", new, term)
        place.append(new)
    return normalize(graph.spec(tuple(replace(o, node=place[o.node]) for o in last.outputs)))
