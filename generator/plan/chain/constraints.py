"""What a chain must satisfy to be one kernel.  As in :mod:`comfuse.generator.plan.constraints`, each is
stated once, and gives None or a sentence for a person.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral import Deferred, defer, why_not
from comfuse.generator.ops import REDUCTIONS
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan import constraints as one_gemm
from comfuse.generator.plan.chain import memory, registers
from comfuse.generator.plan.chain.kernel import (
    MOST_COLUMNS,
    MOST_LINKS,
    ChainShape,
    Weights,
    tile_columns,
)
from comfuse.generator.plan.chain.middle import split_middle, why_not_in_blocks
from comfuse.generator.plan.gpus import Gpu
from comfuse.generator.plan.reasons import Reason
from comfuse.generator.spec import FusedSpec, Major, Space

ALIGNMENT = one_gemm.ALIGNMENT  # of K, H and N: rows of all factors start at multiples of 16 bytes


@dataclass(frozen=True)
class Candidate:
    """A shape for a chain on a GPU, before anyone knows whether it works."""

    deferred: Deferred  # what the kernel holds
    middle: PhaseProgram
    program: PhaseProgram
    shape: ChainShape
    fitted: tuple[Weights, int] | None  # with tile slots; None if shared memory holds no weights
    gpu: Gpu


# --- on the chain alone ---


def has_few_links(chain: ChainSpec) -> str | None:
    count = len(chain.links)
    return None if count <= MOST_LINKS else f"{count} links; chains of at most {MOST_LINKS} can be one kernel"


def later_links_have_one_product(chain: ChainSpec) -> str | None:
    number = next((i for i, link in enumerate(chain.links) if i > 0 and link.products > 1), None)
    if number is None:
        return None
    return f"two products in link {number}; only the first link can have two side by side"


def factors_fit(chain: ChainSpec) -> str | None:
    count, most = sum(link.products for link in chain.links), one_gemm.MAX_FACTORS
    return None if count <= most else f"{count} factors beside A, at most {most} are possible"


def batches_have_two_links(chain: ChainSpec) -> str | None:
    """Weights of a batch pass by; whether those of a third link could was not tried."""
    if not chain.last.batched or len(chain.links) == 2:
        return None
    return f"{len(chain.links)} links in batches; batched chains of two can be one kernel"


def is_k_major(chain: ChainSpec) -> str | None:
    """The later links' B may be N-major."""
    factors = [(0, "A", chain.links[0].a_major), (0, "B", chain.links[0].b_major)]
    factors += [(number, "A", link.a_major) for number, link in enumerate(chain.links) if number > 0]
    for number, name, major in factors:
        if major is not Major.K:
            return f"{name} of link {number} is contiguous along {'M' if name == 'A' else 'N'}, not K"
    return None


def batches_read_tiles(chain: ChainSpec) -> str | None:
    """Vectors are copied once, for all tiles."""
    if not chain.last.batched:
        return None
    vectors = [o.name for link in chain.links for o in link.operands if o.space in (Space.ROW, Space.COLUMN)]
    return (
        f"{vectors[0]}: a vector in a batched chain, whose operands are tiles and scalars"
        if vectors
        else None
    )


def vectors_meet_one_factor(chain: ChainSpec) -> str | None:
    """Vectors of the first middle's columns are multiplied by W1 once, along its rows."""
    if not defer(chain).vectors:
        return None
    if chain.last.batched:
        return "what reductions in the middle shift it by would have to meet the second B of each batch"
    if chain.last.b_major is not Major.K:
        return "what reductions in the middle shift it by needs a second B that is contiguous along K"
    return None


def sizes_are_aligned(chain: ChainSpec) -> str | None:
    between = [("H", link.n) for link in chain.links[:-1]]
    for name, size in (("K", chain.links[0].k), *between, ("N", chain.last.n)):
        if size % ALIGNMENT:
            return f"{name} = {size} must be a multiple of {ALIGNMENT}"
    return None


def rows_fit_a_tile(chain: ChainSpec) -> str | None:
    """Of all GEMMs but the first, which passes by in blocks."""
    wide = next((link.n for link in chain.links[1:] if link.n > MOST_COLUMNS), None)
    if wide is None:
        return None
    return f"N = {wide}; a tile has to hold whole rows, of at most {MOST_COLUMNS} columns"


def further_tiles_do_not_grow(chain: ChainSpec) -> str | None:
    """A further GEMM's result takes the registers of the one before.

    Where it was wider, ptxas serialised the wgmmas of both in many chains.
    """
    for before, link in pairwise(chain.links[1:]):
        columns = tile_columns(before.n)
        if tile_columns(link.n) > columns:
            return f"N = {link.n} behind the second GEMM's {before.n} columns: at most {columns} are possible"
    return None


def middle_reduces_rows(chain: ChainSpec) -> str | None:
    found = (_first_reduction(link, ("group", "col", "full")) for link in chain.links[:-1])
    name = next(filter(None, found), None)
    return None if name is None else f"{name}: a reduction between the GEMMs that is not along rows"


def middle_can_be_deferred(chain: ChainSpec) -> str | None:
    """Only a part of each row of the first GEMM is there at a time."""
    return why_not(chain)


def middle_runs_in_blocks(chain: ChainSpec) -> str | None:
    deferred = defer(chain)
    return why_not_in_blocks(deferred, split_middle(deferred))


def middle_operands_are_read(chain: ChainSpec) -> str | None:
    """The kernel tells them from other links' by who reads them."""
    for number, link in enumerate(chain.links[:-1]):
        read = {node.operand for node in link.nodes if node.op == "load"}
        name = next((o.name for i, o in enumerate(link.operands) if i not in read), None)
        if name is not None:
            return f"{name}: an operand of link {number} that nothing reads"
    return None


def rows_do_not_meet(chain: ChainSpec) -> str | None:
    name = _first_reduction(chain.last, ("col", "full"))
    return None if name is None else f"{name}: a reduction over rows; chains reduce along rows only"


def groups_are_whole(chain: ChainSpec) -> str | None:
    last = chain.last
    if (reason := one_gemm.groups_are_whole(last)) is not None:
        return reason
    name = _first_reduction(last, ("group",))
    columns = tile_columns(last.n)
    if name is None or last.group is None or columns % last.group == 0:
        return None
    return f"{name}: groups of {last.group} columns do not fit a tile of {columns}"


def operands_fit(chain: ChainSpec) -> str | None:
    count = sum(o.space is not Space.SCALAR for link in chain.links for o in link.operands)
    most = one_gemm.MAX_OPERANDS
    return None if count <= most else f"{count} tensor operands, at most {most} are possible"


def scalars_fit(chain: ChainSpec) -> str | None:
    count = sum(o.space is Space.SCALAR for link in chain.links for o in link.operands)
    most = one_gemm.MAX_SCALARS
    return None if count <= most else f"{count} scalars, at most {most} are possible"


def outputs_fit(chain: ChainSpec) -> str | None:
    return one_gemm.outputs_fit(chain.last)


def _first_reduction(spec: FusedSpec, axes: tuple[str, ...]) -> str | None:
    return next(
        (node.name for node in spec.nodes if node.op in REDUCTIONS and REDUCTIONS[node.op].axis in axes), None
    )


# --- on a shape for it ---


def shared_memory_fits(c: Candidate) -> Reason | None:
    if c.fitted is not None:
        return None
    least = memory.least_bytes(c.deferred, c.shape)
    first, *later = c.deferred.links.links
    widths = ", ".join(str(link.n) for link in later)
    have = c.gpu.shared_bytes
    return Reason(
        f"K = {first.k} and N = {widths} need at least {least} bytes of shared memory, the GPU has {have}",
        least / have,
    )


def registers_fit(c: Candidate) -> Reason | None:
    needed, limit = (
        registers.held(c.deferred.links, c.middle, c.program, c.shape),
        registers.most_held(c.deferred.links, c.middle, c.shape),
    )
    if needed <= limit:
        return None
    text = f"GEMMs and programs hold {needed} registers a thread, at most {limit} are possible"
    return Reason(text, needed / limit)


ChainConstraint = Callable[[ChainSpec], "str | None"]
ShapeConstraint = Callable[[Candidate], "Reason | None"]

CHAIN_CONSTRAINTS: tuple[ChainConstraint, ...] = (
    has_few_links,
    later_links_have_one_product,
    factors_fit,
    batches_have_two_links,
    is_k_major,
    batches_read_tiles,
    sizes_are_aligned,
    rows_fit_a_tile,
    further_tiles_do_not_grow,
    middle_reduces_rows,
    middle_can_be_deferred,
    vectors_meet_one_factor,
    middle_operands_are_read,
    middle_runs_in_blocks,
    rows_do_not_meet,
    groups_are_whole,
    operands_fit,
    scalars_fit,
    outputs_fit,
)
SHAPE_CONSTRAINTS: tuple[ShapeConstraint, ...] = (
    shared_memory_fits,
    registers_fit,
)


def unsupported(chain: ChainSpec) -> str | None:
    """Why no kernel can run a normalised chain, whatever its shape; None where some might."""
    return next((reason for check in CHAIN_CONSTRAINTS if (reason := check(chain)) is not None), None)
