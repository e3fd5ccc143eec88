"""ChainPlan -> KernelSource: the text of a chain's kernel, types and constants only."""

from __future__ import annotations

from comfuse.generator.emit import names
from comfuse.generator.emit.declarations import declare_chain, middle_names
from comfuse.generator.emit.emit import PLACEHOLDER, KernelSource, Text, gemm
from comfuse.generator.emit.readable import describe_chain
from comfuse.generator.plan.chain import ChainPlan, ChainShape, Weights
from comfuse.generator.plan.chain.kernel import BLOCK

_RESIDENCES = {"resident": "Resident", "resident_first": "ResidentFirst", "streamed": "Streamed"}


def emit_chain(plan: ChainPlan) -> KernelSource:
    """The source of a chain's planned kernel; equal plans give equal bytes."""
    chain, shape = plan.spec, plan.shape
    declarations = declare_chain(plan.program, plan.middle, plan.further, plan.deferred)
    arguments = [
        gemm(chain.links[0]),
        "Middle",
        gemm(chain.links[1]),
        _schedule(shape),
        _rows(plan, declarations.last_operands),
        _weights(plan.weights),
        f"cf::TileSlots<{plan.tile_slots}>",
    ]
    further = [
        f"cf::Link<{name}, {gemm(link)}>"
        for name, link in zip(middle_names(len(plan.further)), chain.links[2:], strict=True)
    ]
    text = Text("FusedChain", describe_chain(chain), declarations, arguments, further=further)
    name = names.chain_stem(plan, text.render(PLACEHOLDER))
    return KernelSource(name, text.render(name), plan)


def _schedule(shape: ChainShape) -> str:
    numbers = {"Warpgroups": shape.warpgroups, "Block": BLOCK, "Buffers": shape.buffers}
    return f"cf::ChainSchedule<{', '.join(f'/*{name}=*/{number}' for name, number in numbers.items())}>"


def _rows(plan: ChainPlan, operands: list[str]) -> str:
    template = "RowsInRegisters" if plan.shape.rows_in_registers else "RowsInShared"
    arguments = [f"/*K=*/{plan.spec.links[0].k}"]
    if plan.rows_operand is not None:
        arguments.append(operands[plan.rows_operand])
    return f"cf::{template}<{', '.join(arguments)}>"


def _weights(weights: Weights) -> str:
    template = f"cf::{_RESIDENCES[weights.residence]}"
    return template if weights.ring == 0 else f"{template}</*Ring=*/{weights.ring}>"
