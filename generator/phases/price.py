"""Issue slots an element, beside the ops' own costs of the op table."""

from __future__ import annotations

from comfuse.generator.ops import ELEMENTWISE, REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases.access import RUN, moves_rows
from comfuse.generator.spec import FusedSpec, Space

KEEP_COST = 0.5
_LOAD = {Space.TILE: 8.0, Space.ROW: 1.0, Space.COLUMN: 0.25, Space.SCALAR: 0.0}
_STORE = 2.0
# A tile at strides: in runs of eight columns as a rule, element by element where N does not come in such.
_LOAD_STRIDED, _LOAD_BY_ELEMENT = 10.0, 14.0
_STORE_STRIDED, _STORE_BY_ELEMENT = 3.0, 6.0
# A row's elements lie in four threads, which merge once a tile; those of a group once a group; those of a
# column in eight threads of each warp, which merge for every 32 columns.
_MERGE = {"row": 0.0, "group": 0.5, "col": 1.5, "full": 0.0}


def price(spec: FusedSpec, evaluated: list[int]) -> float:
    """Of nodes that are evaluated element by element."""
    cost = 0.0
    for i in evaluated:
        node, space = spec.nodes[i], spaces(spec)[i]
        if node.op == "load" and node.operand is not None:
            whole = space is not Space.TILE or moves_rows(spec, spec.operands[node.operand])
            cost += _LOAD[space] if whole else _of_run(spec, _LOAD_STRIDED, _LOAD_BY_ELEMENT)
        elif node.op in REDUCTIONS:  # of columns: the results lie beside the row vectors
            cost += _LOAD[Space.ROW] * REDUCTIONS[node.op].state_floats
        elif node.op in ELEMENTWISE and space is not Space.SCALAR:
            cost += ELEMENTWISE[node.op].cost
    return cost


def effects_price(spec: FusedSpec, reductions: tuple[int, ...], stores: tuple[int, ...]) -> float:
    """Of reductions and stores, whatever is kept."""
    cost = 0.0
    for r in reductions:
        reduction = REDUCTIONS[spec.nodes[r].op]
        cost += reduction.cost + _MERGE[reduction.axis]
    for output in (spec.outputs[o] for o in stores):
        if spaces(spec)[output.node] is Space.TILE:
            whole = moves_rows(spec, output)
            cost += _STORE if whole else _of_run(spec, _STORE_STRIDED, _STORE_BY_ELEMENT)
    return cost


def _of_run(spec: FusedSpec, in_runs: float, by_element: float) -> float:
    return by_element if spec.n % RUN else in_runs
