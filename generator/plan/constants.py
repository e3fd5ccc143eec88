"""What the cost model takes from measurements: one :class:`Constants` a GPU, with units and origins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from comfuse.generator.errors import PlanError


def _constant(value: float, unit: str, meaning: str, origin: str) -> float:
    made: float = field(default=value, metadata={"unit": unit, "meaning": meaning, "origin": origin})
    return made


CHAINS = "chain_"  # what the names of the constants begin with that kernels of two GEMMs alone depend on

_FITTED = "fitted to bench/results of an H200"
_GUESS = "not measured"


def _efficiency(value: float, tile: str, origin: str = _FITTED) -> float:
    return _constant(value, "share of the peak", f"the multiplying loop of {tile} columns", origin)


def _slot(value: float, schedule: str) -> float:
    return _constant(
        value, "cycles", f"an issue slot of a {schedule} epilogue, on all four schedulers", _FITTED
    )


def _exchange(value: float, schedule: str) -> float:
    return _constant(value, "cycles", f"a {schedule} tile's wait for its row, whatever its length", _FITTED)


def _in_cluster(value: float, schedule: str) -> float:
    return _constant(
        value, "cycles", f"such a wait of a {schedule} tile for the other of its cluster", _FITTED
    )


def _chain_slot(value: float, count: str) -> float:
    meaning = f"an issue slot between two GEMMs, on all four schedulers, with {count} warpgroups"
    return _constant(value, "cycles", meaning, _FITTED)


def _chain_behind(value: float, count: str) -> float:
    meaning = f"an issue slot behind all GEMMs, while others multiply, with {count} warpgroups"
    return _constant(value, "cycles", meaning, _FITTED)


def _chain_hidden(value: float, where: str) -> float:
    meaning = f"of a middle beside as long products that a second buffer hides, with X in {where}"
    return _constant(value, "share", meaning, _FITTED)


@dataclass(frozen=True)
class Constants:
    """The defaults are an H200's.

    Efficiencies are by the columns of all products in a tile.  Some are above 1: epilogues, waits and the
    power cap are counted apart, and the peak was measured on a long GEMM, which the cap slows down.
    """

    launch_us: float = _constant(
        5.4, "us", "a launch, with the first tile's loads and the last one's stores", _FITTED
    )
    efficiency_pingpong_64: float = _efficiency(0.84, "pingpong 128 x 64")
    efficiency_pingpong_128: float = _efficiency(1.094, "pingpong 128 x 128")
    efficiency_pingpong2_128: float = _efficiency(1.062, "pingpong2 128 x 128")
    efficiency_cooperative_64: float = _efficiency(0.84, "cooperative 128 x 64", _GUESS)
    efficiency_cooperative_128: float = _efficiency(1.09, "cooperative 128 x 128")
    efficiency_cooperative_192: float = _efficiency(1.1, "cooperative 128 x 192", _GUESS)
    efficiency_cooperative_224: float = _efficiency(1.13, "cooperative 128 x 224")
    efficiency_cooperative_256: float = _efficiency(1.108, "cooperative 128 x 256")
    efficiency_cooperative_288: float = _efficiency(1.075, "cooperative 128 x 288")
    efficiency_cooperative_320: float = _efficiency(1.09, "cooperative 128 x 320")
    single_cta: float = _constant(
        0.97, "share of the efficiency", "without a neighbour to share the rows of A with", _FITTED
    )
    straddling: float = _constant(
        1.08, "factor", "on a row block whose tiles run in two waves, where nothing hides the wait", _FITTED
    )
    clipped: float = _constant(1.03, "factor", "on a last tile that the matrix does not fill", _GUESS)
    throttle: float = _constant(
        0.337, "share", "that a long launch takes longer, once the power cap has lowered the clock", _FITTED
    )
    throttle_us: float = _constant(2050.0, "us", "of a launch until 63 % of that are reached", _FITTED)
    slot_cycles_pingpong: float = _slot(0.785, "pingpong")
    slot_cycles_pingpong2: float = _slot(0.72, "pingpong2")
    slot_cycles_cooperative: float = _slot(0.929, "cooperative")
    trade_slots: float = _constant(
        4.0, "slots", "to trade an accumulator where B was not permuted", "16 shuffles and 48 selects for 16"
    )
    refill_cycles: float = _constant(
        790.0, "cycles", "to refill the pipeline behind an epilogue that hides behind no other team", _FITTED
    )
    exchange_cycles_pingpong: float = _exchange(900.0, "pingpong")
    exchange_cycles_pingpong2: float = _exchange(900.0, "pingpong2")
    exchange_cycles_cooperative: float = _exchange(1836.0, "cooperative")
    cluster_exchange_cycles_pingpong: float = _in_cluster(100.0, "pingpong")
    cluster_exchange_cycles_pingpong2: float = _in_cluster(100.0, "pingpong2")
    cluster_exchange_cycles_cooperative: float = _in_cluster(750.0, "cooperative")
    exchange_tile_cycles: float = _constant(
        34.0, "cycles", "such a wait more for each tile of the row, whose partials are merged", _FITTED
    )
    column_exchange_cycles: float = _constant(
        3000.0, "cycles", "to merge the warps' columns, until the first words of others are read", _GUESS
    )
    column_round_cycles: float = _constant(1200.0, "cycles", "a round of loads of those words", _GUESS)
    tail_cycles: float = _constant(
        300.0, "cycles", "to hand partials to the last tile, for each kind of tail", _FITTED
    )
    collector_cycles: float = _constant(
        3600.0, "cycles", "that a CTA takes at least for the column sums of a tile, beside all else", _FITTED
    )
    collector_round_cycles: float = _constant(1950.0, "cycles", "such a tile more for each 64 sums", _FITTED)
    memory_share: float = _constant(
        0.77, "share", "of the time of memory traffic that counts beside a GEMM", _FITTED
    )
    kept_of_b: float = _constant(
        3.2e6, "bytes", "of B in L2 from pass to pass, with A and the epilogue's tensors passing", _FITTED
    )
    chain_efficiency: float = _constant(
        1.125, "share of the peak", "the multiplying loops of two GEMMs back to back", _FITTED
    )
    chain_slot_cycles_2: float = _chain_slot(1.106, "two")
    chain_slot_cycles_3: float = _chain_slot(0.940, "three")
    chain_behind_cycles_2: float = _chain_behind(0.900, "two")
    chain_behind_cycles_3: float = _chain_behind(0.750, "three")
    chain_hidden_registers: float = _chain_hidden(0.192, "registers, which leave fewer to the compiler")
    chain_hidden_shared: float = _chain_hidden(0.291, "shared memory")
    chain_peak_cycles: float = _constant(
        172.0,
        "cycles",
        "a block's wait for the largest value of its rows, which scales what there is",
        _FITTED,
    )

    def of(self, name: str, *keys: str | int) -> float:
        """A constant of a family, ``of("efficiency", "pingpong", 64)``."""
        return float(getattr(self, "_".join((name, *map(str, keys)))))

    def with_values(self, values: Mapping[str, float]) -> Constants:
        """These, some of them measured anew.

        Raises:
            PlanError: a name is of none, or a value is no positive number.
        """
        known = {f.name for f in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise PlanError(f"unknown constant {name!r}, known: {', '.join(sorted(known))}")
            if not (math.isfinite(value) and value > 0):
                raise PlanError(f"constant {name} is {value}; allowed: positive numbers")
        return replace(self, **values)

    def values(self) -> dict[str, float]:
        """All of them, by name."""
        return asdict(self)
