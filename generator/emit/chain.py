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
    rows = "RowsInRegisters" if shape.rows_in_registers else "RowsInShared"
    arguments = [
        gemm(chain.links[0]),
        "Middle",
        gemm(chain.links[1]),
        _schedule(shape),
        f"cf::{rows}</*K=*/{chain.links[0].k}>",
        _weights(plan.weights),
        f"cf::TileSlots<{plan.tile_slots}>",
    ]
    declarations = declare_chain(plan.program, plan.middle, plan.further, plan.deferred)
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


def _weights(weights: Weights) -> str:
    template = f"cf::{_RESIDENCES[weights.residence]}"
    return template if weights.ring == 0 else f"{template}</*Ring=*/{weights.ring}>"
