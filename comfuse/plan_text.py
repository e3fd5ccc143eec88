"""Specs and plans in words, for :func:`comfuse.explain` and the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable

from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import describe, describe_chain
from comfuse.generator.phases import Phase, PhaseProgram, moves_rows
from comfuse.generator.plan import SCHEDULES, KernelPlan, Refusal
from comfuse.generator.plan.chain import ChainPlan, ChainRefusal
from comfuse.generator.plan.gpus import find
from comfuse.generator.spec import FusedSpec, Major, Operand, Space


def program_text(spec: FusedSpec | ChainSpec, rows: str) -> list[str]:
    """Sizes, what is computed, and the operands."""
    if isinstance(spec, ChainSpec):
        return _chain(spec, rows)
    sizes = [rows, f"N = {spec.n}", f"K = {spec.k}", spec.dtype.value]
    if spec.products > 1:
        sizes.append(f"{spec.products} products")
    if spec.batched:
        sizes.append("batched")
    for number, pair in enumerate(spec.pairs):
        which = number if spec.second is not None else ""
        if number > 0:
            sizes.append(f"K{which} = {pair.k}")
        if pair.a_major is Major.MN:
            sizes.append(f"A{which} contiguous along M")
        if pair.b_major is Major.MN:
            sizes.append(f"B{which} contiguous along N")
    return _program(sizes, describe(spec), [_operand(o, "N") for o in spec.operands])


def _chain(chain: ChainSpec, rows: str) -> list[str]:
    """H stands for the columns that a link hands on; with more than two links, for those of each."""
    links = chain.links
    widths = ", ".join(f"H = {link.n}" for link in links[:-1])
    sizes = [rows, f"K = {links[0].k}", widths, f"N = {chain.last.n}", links[0].dtype.value]
    if links[0].products > 1:
        sizes.append(f"{links[0].products} products first")
    operands = [
        _operand(o, "N" if number == len(links) - 1 else "H")
        for number, link in enumerate(links)
        for o in link.operands
    ]
    return _program(sizes, describe_chain(chain), operands)


def _program(sizes: list[str], description: list[str], operands: list[str]) -> list[str]:
    lines = [f"  {', '.join(sizes)}", "", *(f"  {line}" for line in description), "", "operands"]
    return lines + [f"  {o}" for o in operands or ["none"]]


def _operand(operand: Operand, n: str) -> str:
    shapes = {
        Space.TILE: f"(M, {n})",
        Space.ROW: f"({n},)",
        Space.COLUMN: "(M,)",
        Space.SCALAR: "a run-time scalar",
    }
    strided = ", rows at any strides" if operand.strided else ""
    return f"{operand.name}: {shapes[operand.space]} {operand.dtype.value}{strided}"


# --- phases ---------------------------------------------------------------------------------------------


def phases_text(plan: KernelPlan | ChainPlan) -> list[str]:
    """What a tile does phase by phase, and what the last tile to finish does behind them.

    Of a chain, first what happens between the GEMMs.
    """
    lines = []
    if isinstance(plan, ChainPlan):
        middle = plan.middle
        lines.append(f"  between the GEMMs  {middle.cost:.0f} issue slots an element")
        for phase in middle.phases:
            lines += [f"     {line}" for line in _phase(middle.spec, phase, "hands on")]
        if middle.row_tail is not None:
            lines.append(
                f"     behind the last columns hands on {_outputs(middle.spec, middle.row_tail.stores)}"
            )
        for number, between in enumerate(plan.further, 1):
            lines.append(f"  behind GEMM {number + 1}  {between.cost:.0f} issue slots an element")
            for phase in between.phases:
                lines += [f"     {line}" for line in _phase(between.spec, phase, "hands on")]
    for number, phase in enumerate(plan.program.phases):
        lines.append(f"  {number}  {phase.cost:.0f} issue slots an element")
        lines += [f"     {line}" for line in _phase(plan.program.spec, phase)]
    tails = _tails(plan.program)
    if tails:
        lines += ["  behind them, without waiting", *(f"     {line}" for line in tails)]
    return lines


def _phase(spec: FusedSpec, phase: Phase, stores: str = "stores") -> list[str]:
    said = [f"accumulators hold {spec.nodes[phase.content].name}"]
    streamed = [o for o in phase.tiles if moves_rows(spec, spec.operands[o])]
    if streamed:
        said.append(f"streams {_operands(spec, streamed)} through shared memory")
    strided = [o for o in phase.tiles if o not in streamed]
    if strided:
        said.append(f"reads {_operands(spec, strided)} from global memory")
    if phase.columns:
        said.append(f"per row, in registers: {_nodes(spec, phase.columns)}")
    if phase.groups:
        said.append(f"per row and {spec.group} columns, in registers: {_nodes(spec, phase.groups)}")
    if phase.lets:
        said.append(f"per element, once: {_nodes(spec, phase.lets)}")
    if phase.keep is not None:
        said.append(f"keeps {spec.nodes[phase.keep].name} in the accumulators")
    for r in phase.reductions:
        said.append(f"reduces {spec.nodes[spec.nodes[r].inputs[0]].name} by {spec.nodes[r].op}")
    if phase.stores:
        said.append(f"{stores} {_outputs(spec, phase.stores)}")
    return said


def _tails(program: PhaseProgram) -> list[str]:
    row_stores = program.row_tail.stores if program.row_tail is not None else ()
    return [
        f"the {which} tile of {part} stores {_outputs(program.spec, stores)}"
        for which, part, stores in (
            ("last", "each row block", row_stores),
            ("first" if program.columns_wait else "last", "each block of columns", program.column_stores),
            ("last", "all", program.full_stores),
        )
        if stores
    ]


def _nodes(spec: FusedSpec, nodes: Iterable[int]) -> str:
    return ", ".join(spec.nodes[i].name for i in nodes)


def _operands(spec: FusedSpec, operands: Iterable[int]) -> str:
    return ", ".join(spec.operands[i].name for i in operands)


def _outputs(spec: FusedSpec, outputs: Iterable[int]) -> str:
    return ", ".join(spec.outputs[i].name for i in outputs)


# --- the kernel -----------------------------------------------------------------------------------------

_SCOPES = {
    "none": "none",
    "tile": "within a tile, which holds whole rows",
    "row_tail": "by the last tile of a row block, from partials in a workspace in L2",
    "cluster": "between the tiles of a row block, through the shared memory of their cluster",
    "row_group": "between the tiles of a row block, through a workspace in L2",
}


_WEIGHTS = {
    "resident": "all stay in shared memory",
    "resident_first": "the first link's stay in shared memory, the others pass through a ring of {} blocks",
    "streamed": "pass through a ring of {} blocks",
}


def kernel_text(p: KernelPlan | ChainPlan, name: str) -> list[str]:
    """How a kernel runs, what it occupies, how long it should take, and what was decided."""
    rows = [
        ("name", name),
        *(_chain_kernel(p) if isinstance(p, ChainPlan) else _kernel(p)),
        ("shared", f"{p.shared_bytes} bytes of {find(p.gpu).shared_bytes}"),
        ("time", _time(p)),
    ]
    return [f"  {label:<11}{value}" for label, value in rows] + [f"  {'':<11}{d}" for d in p.decisions]


def _time(p: KernelPlan | ChainPlan) -> str:
    said = f"predicted {p.predicted_us:.1f} us (a model, not a measurement), floor {p.floor_us:.1f} us"
    if isinstance(p, ChainPlan) and p.apart_us < math.inf:
        apart = "a kernel a link" if len(p.spec.links) == 2 else "several kernels"
        said += f"; as {apart} {p.apart_us:.1f} us"
    return said


def _kernel(p: KernelPlan) -> list[tuple[str, str]]:
    cluster = f"cluster {p.cluster_m} x {p.cluster_n}"
    return [
        ("tile", f"{p.tile_m} x {p.tile_n} x {p.tile_k}, {p.schedule}, {cluster}"),
        ("pipeline", f"{p.stages} stages for A and B, {p.tile_slots} slots for tile operands"),
        ("rows", "any number" if p.max_m is None else f"at most {p.max_m}: all tiles run at once"),
        ("reductions", f"along rows: {_SCOPES[p.scope]}"),
        ("registers", f"about {p.registers} a thread of {SCHEDULES[p.schedule].registers}"),
    ]


def _chain_kernel(p: ChainPlan) -> list[tuple[str, str]]:
    return [
        ("tiles", p.shape.label),
        ("weights", _WEIGHTS[p.weights.residence].format(p.weights.ring)),
        ("pipeline", f"{p.tile_slots} slots a warpgroup for tile operands"),
        ("registers", f"about {p.registers} a thread, while GEMMs run"),
    ]


def shape_text(c: KernelPlan | Refusal | ChainPlan | ChainRefusal) -> str:
    """A tile shape in one line: its predicted time, or why not."""
    if isinstance(c, Refusal | ChainRefusal):
        return f"{c.shape.label}: {c.reason}"
    return f"{c.shape.label}: predicted {c.predicted_us:.1f} us"
