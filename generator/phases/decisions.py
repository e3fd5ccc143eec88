"""What was decided about a program's phases, in sentences for people."""

from __future__ import annotations

from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.passes.infer import spaces
from comfuse.generator.phases.access import RUN, moves_rows
from comfuse.generator.phases.levels import Levels, axis
from comfuse.generator.phases.program import Phase
from comfuse.generator.phases.reads import values_of_tiles
from comfuse.generator.spec import FusedSpec, Space


def decisions(spec: FusedSpec, phases: list[Phase], when: Levels) -> tuple[str, ...]:
    """One sentence each, in the order of the phases, then what comes behind them."""
    return (
        *_products(spec),
        *_kept(spec, phases),
        *_groups(spec),
        *_columns(spec, when),
        *_tails(spec, when),
        *_access(spec),
    )


def _products(spec: FusedSpec) -> list[str]:
    gemms = [node.name for node in spec.nodes if node.op == "gemm"]
    if len(gemms) == 1:
        return []
    names = " and ".join(gemms)
    if spec.second is None:
        return [f"{names} share A and accumulate side by side"]
    return [f"{names} have an A each and accumulate side by side, one after the other"]


def _kept(spec: FusedSpec, phases: list[Phase]) -> list[str]:
    nodes = spec.nodes
    said: list[str] = []
    evaluated_before: dict[int, int] = {}
    for number, phase in enumerate(phases):
        for i in _evaluated(spec, phase):
            if spaces(spec)[i] is not Space.TILE:
                continue
            if i in evaluated_before and nodes[i].op == "load":
                said.append(f"{nodes[i].name} is loaded again in phase {number}")
            elif i in evaluated_before:
                holds = nodes[phase.content].name
                said.append(f"{nodes[i].name} is recomputed in phase {number}: the accumulators hold {holds}")
            evaluated_before.setdefault(i, number)
        if phase.keep is not None:
            said.append(f"{nodes[phase.keep].name} is kept in the accumulators from phase {number} on")
        elif number + 1 < len(phases) and number == 0:
            said.append(f"{nodes[phase.content].name} stays in the accumulators")
    return said


def _evaluated(spec: FusedSpec, phase: Phase) -> list[int]:
    targets = [spec.nodes[r].inputs[0] for r in phase.reductions]
    targets += [spec.outputs[o].node for o in phase.stores]
    if phase.keep is not None:
        targets.append(phase.keep)
    return values_of_tiles(spec, phase.content, tuple(targets))


def _groups(spec: FusedSpec) -> list[str]:
    names = [n.name for n in spec.nodes if n.op in REDUCTIONS and REDUCTIONS[n.op].axis == "group"]
    if not names:
        return []
    verb = "runs" if len(names) == 1 else "run"
    return [f"{', '.join(names)} {verb} over groups of {spec.group} columns, each within one tile"]


def _columns(spec: FusedSpec, when: Levels) -> list[str]:
    if not when.columns_wait:
        return []
    names = ", ".join(n.name for i, n in enumerate(spec.nodes) if axis(spec, i) == "col")
    return [f"{names}: the tiles of a block of columns exchange partials and wait for each other's"]


def _tails(spec: FusedSpec, when: Levels) -> list[str]:
    last = "by the last tile of {} to finish; no tile waits"
    said = []
    for outputs, how in (
        (when.row_tail, last.format("a row block")),
        (
            when.column_tail,
            "by the first tile of a block of columns"
            if when.columns_wait
            else last.format("a block of columns"),
        ),
        (when.full_tail, last.format("all")),
    ):
        if outputs:
            said.append(f"{', '.join(spec.outputs[o].name for o in outputs)}: {how}")
    return said


def _access(spec: FusedSpec) -> list[str]:
    said = []
    loads = [o.name for o in spec.operands if o.space is Space.TILE and not moves_rows(spec, o)]
    if loads:
        said.append(f"{', '.join(loads)}: read by the threads from global memory, {_how(spec)}")
    is_tile = [spaces(spec)[o.node] is Space.TILE for o in spec.outputs]
    stores = [
        o.name for o, tile in zip(spec.outputs, is_tile, strict=True) if tile and not moves_rows(spec, o)
    ]
    if stores:
        said.append(f"{', '.join(stores)}: stored at any strides, {_how(spec)}")
    return said


def _how(spec: FusedSpec) -> str:
    if spec.n % RUN:
        return f"element by element, as rows of {spec.n} are not aligned"
    return f"in runs of {RUN} columns where a launch's strides allow it"
