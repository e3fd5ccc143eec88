"""Shared memory of a chain's kernel.  The device side is csrc/include/comfuse/sm90/chain_kernel.hpp."""

from __future__ import annotations

from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral import Deferred
from comfuse.generator.phases import PhaseProgram
from comfuse.generator.plan.chain import vectors
from comfuse.generator.plan.chain.kernel import (
    BLOCK,
    ROWS,
    ChainShape,
    Residence,
    Weights,
    blocks,
    padded_k,
    tile_columns,
)
from comfuse.generator.plan.memory import FULL_CHUNKS, GOOD_CHUNKS, slot_bytes, streamed
from comfuse.generator.spec import FusedSpec, Space

_ELEMENT = 2  # bytes of a factor's
_VECTOR_ELEMENT = 4  # float32, whatever the operands are
MAX_RING = 8
_KINDS: tuple[Residence, ...] = ("resident", "resident_first", "streamed")


def first_block_bytes(chain: ChainSpec) -> int:
    """64 rows of each of the first link's factors."""
    first = chain.links[0]
    return first.products * BLOCK * padded_k(first.k) * _ELEMENT


def later_block_bytes(link: FusedSpec) -> int:
    """64 columns of a later link's factor, all its rows."""
    return tile_columns(link.n) * BLOCK * _ELEMENT


def first_bytes(chain: ChainSpec) -> int:
    """The first link's factors."""
    return blocks(chain.links[0].n) * first_block_bytes(chain)


def later_bytes(chain: ChainSpec) -> int:
    """Those of all later links."""
    return sum(blocks(link.k) * later_block_bytes(link) for link in chain.links[1:])


def weight_bytes(chain: ChainSpec, weights: Weights) -> int:
    largest = max(map(later_block_bytes, chain.links[1:]))
    if weights.residence == "resident":
        return first_bytes(chain) + later_bytes(chain)
    if weights.residence == "resident_first":
        return first_bytes(chain) + weights.ring * largest
    return weights.ring * max(first_block_bytes(chain), largest)


def least_ring(residence: Residence) -> int:
    """Blocks that a ring must hold: those of both links at once, or one while the next arrives."""
    return 0 if residence == "resident" else 2


def least_bytes(deferred: Deferred, shape: ChainShape) -> int:
    """What the most modest kernel of this shape takes, with all weights streamed."""
    return shared_bytes(deferred, shape, Weights("streamed", least_ring("streamed")), 0)


def shared_bytes(deferred: Deferred, shape: ChainShape, weights: Weights, slots: int) -> int:
    """Shared memory of a kernel: weights, and for each warpgroup rows of X and tile slots; vectors.

    The device loads the next rows of X ahead where what is left holds them too.
    """
    chain = deferred.links
    slot = max(slot_bytes(link) for link in chain.links)
    return (
        weight_bytes(chain, weights)
        + shape.warpgroups * (row_bytes(chain) + slots * slot)
        + _vector_bytes(deferred, shape)
        + _barrier_bytes(chain, shape, weights, slots)
    )


def row_bytes(chain: ChainSpec) -> int:
    """A warpgroup's rows of X."""
    return ROWS * padded_k(chain.links[0].k) * _ELEMENT


def _vector_bytes(deferred: Deferred, shape: ChainShape) -> int:
    """Values a column, whole and for the CTA's life; of a last link with values a row too, a warpgroup's."""
    links, last = deferred.links.links, deferred.links.last
    middle = sum(
        blocks(link.n) * BLOCK * len(vectors.of_middle(deferred, number))
        for number, link in enumerate(links[:-1])
    )
    behind = len(vectors.of_program(deferred)) + len(deferred.vectors)
    by_row = sum(o.dtype.nbytes for o in last.operands if o.space is Space.COLUMN)
    copies = shape.warpgroups if by_row else 1
    return (
        middle * _VECTOR_ELEMENT
        + copies * tile_columns(last.n) * behind * _VECTOR_ELEMENT
        + copies * ROWS * by_row
    )


def _barrier_bytes(chain: ChainSpec, shape: ChainShape, weights: Weights, slots: int) -> int:
    """Of 8 bytes: one for each block that stays; full and empty for the ring, both stages of X, each slot."""
    first, later = blocks(chain.links[0].n), sum(blocks(link.k) for link in chain.links[1:])
    stay = {"resident": first + later, "resident_first": first, "streamed": 0}[weights.residence]
    return 8 * (stay + 2 * weights.ring + 2 * shape.warpgroups * (2 + slots))


def needed_slots(*programs: PhaseProgram) -> int:
    """Slots that a warpgroup holds at once: for 32 columns of a phase, of all its operands."""
    return max(len(streamed(program.spec, phase)) for program in programs for phase in program.phases)


def weights_and_slots(
    deferred: Deferred, shape: ChainShape, needed: int, limit: int
) -> tuple[Weights, int] | None:
    """As much of the weights as can stay, beside the slots; then what is left to the ring and to more slots.

    None if not even streamed weights fit.  Those of a batched chain are always streamed.
    """
    for residence in _KINDS[-1:] if deferred.links.last.batched else _KINDS:
        for slots in range(GOOD_CHUNKS * needed, needed - 1, -1):
            least = Weights(residence, least_ring(residence))
            if shared_bytes(deferred, shape, least, slots) <= limit:
                weights = _deepest(deferred, shape, least, slots, limit)
                return weights, _most_slots(deferred, shape, weights, slots, FULL_CHUNKS * needed, limit)
    return None


def _deepest(deferred: Deferred, shape: ChainShape, least: Weights, slots: int, limit: int) -> Weights:
    """As deep a ring as fits; one of one link's blocks beside the rows of X that come next, if they fit."""
    next_rows = shape.warpgroups * row_bytes(deferred.links) if least.residence == "resident_first" else 0
    if shared_bytes(deferred, shape, least, slots) + next_rows <= limit:
        limit -= next_rows
    weights = least
    while 0 < weights.ring < MAX_RING:
        deeper = Weights(weights.residence, weights.ring + 1)
        if shared_bytes(deferred, shape, deeper, slots) > limit:
            break
        weights = deeper
    return weights


def _most_slots(
    deferred: Deferred, shape: ChainShape, weights: Weights, slots: int, most: int, limit: int
) -> int:
    while slots < most and shared_bytes(deferred, shape, weights, slots + 1) <= limit:
        slots += 1
    return slots
