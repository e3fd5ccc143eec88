"""Specs and plans in words, for :func:`comfuse.explain` and the command line."""

from __future__ import annotations

from collections.abc import Iterable

from comfuse.generator.emit import describe
from comfuse.generator.phases import Phase, PhaseProgram, moves_rows
from comfuse.generator.plan import SCHEDULES, KernelPlan, Refusal
from comfuse.generator.plan.gpus import find
from comfuse.generator.spec import FusedSpec, Major, Operand, Space


def program_text(spec: FusedSpec, rows: str) -> list[str]:
    """Sizes, what is computed, and the operands."""
    sizes = [rows, f"N = {spec.n}", f"K = {spec.k}", spec.dtype.value]
    if spec.products > 1:
        sizes.append(f"{spec.products} products")
    if spec.batched:
        sizes.append("batched")
    if spec.a_major is Major.MN:
        sizes.append("A contiguous along M")
    if spec.b_major is Major.MN:
        sizes.append("B contiguous along N")
    lines = [f"  {', '.join(sizes)}", "", *(f"  {line}" for line in describe(spec)), "", "operands"]
    return lines + ([f"  {_operand(o)}" for o in spec.operands] or ["  none"])


def _operand(operand: Operand) -> str:
    shapes = {
        Space.TILE: "(M, N)",
        Space.ROW: "(N,)",
        Space.COLUMN: "(M,)",
        Space.SCALAR: "a run-time scalar",
    }
    strided = ", rows at any strides" if operand.strided else ""
    return f"{operand.name}: {shapes[operand.space]} {operand.dtype.value}{strided}"


# --- phases ---------------------------------------------------------------------------------------------


def phases_text(plan: KernelPlan) -> list[str]:
    """What a tile does phase by phase, and what the last tile to finish does behind them."""
    lines = []
    for number, phase in enumerate(plan.program.phases):
        lines.append(f"  {number}  {phase.cost:.0f} issue slots an element")
        lines += [f"     {line}" for line in _phase(plan.program.spec, phase)]
    tails = _tails(plan.program)
    if tails:
        lines += ["  behind them, without waiting", *(f"     {line}" for line in tails)]
    return lines


def _phase(spec: FusedSpec, phase: Phase) -> list[str]:
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
        said.append(f"stores {_outputs(spec, phase.stores)}")
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
    "row_group": "between the tiles of a row block, through a workspace in L2",
}


def kernel_text(p: KernelPlan, name: str) -> list[str]:
    """How a kernel runs, what it occupies, how long it should take, and what was decided."""
    rows = [
        ("name", name),
        ("tile", f"{p.tile_m} x {p.tile_n} x {p.tile_k}, {p.schedule}, cluster 1 x {p.cluster_n}"),
        ("pipeline", f"{p.stages} stages for A and B, {p.tile_slots} slots for tile operands"),
        ("rows", "any number" if p.max_m is None else f"at most {p.max_m}: all tiles run at once"),
        ("reductions", f"along rows: {_SCOPES[p.scope]}"),
        ("registers", f"about {p.registers} a thread of {SCHEDULES[p.schedule].registers}"),
        ("shared", f"{p.shared_bytes} bytes of {find(p.gpu).shared_bytes}"),
        (
            "time",
            f"predicted {p.predicted_us:.1f} us (a model, not a measurement), floor {p.floor_us:.1f} us",
        ),
    ]
    return [f"  {label:<11}{value}" for label, value in rows] + [f"  {'':<11}{d}" for d in p.decisions]


def shape_text(c: KernelPlan | Refusal) -> str:
    """A tile shape in one line: its predicted time, or why not."""
    if isinstance(c, Refusal):
        return f"{c.shape.label}: {c.reason}"
    return f"{c.shape.label}: predicted {c.predicted_us:.1f} us"
