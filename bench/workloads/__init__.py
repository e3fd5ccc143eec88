"""What is measured: families of workloads, each a program behind a GEMM, or some of them, at one shape.

Pure data: nothing here needs torch or a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.workloads.base import Target, Workload
from bench.workloads.chains import B2B, ChainWorkload, NetworkWorkload
from bench.workloads.graphs import EPILOGUES, GRAPHS, GraphWorkload
from bench.workloads.norms import NARROW, POSTNORM, POSTNORM_TARGETS, RMSNORM, NormWorkload

__all__ = [
    "B2B",
    "EPILOGUES",
    "FAMILIES",
    "GRAPHS",
    "NARROW",
    "POSTNORM",
    "RMSNORM",
    "TARGETS",
    "ChainWorkload",
    "GraphWorkload",
    "NetworkWorkload",
    "NormWorkload",
    "Target",
    "Workload",
    "by_name",
    "select",
]

FAMILIES: dict[str, tuple[Workload, ...]] = {
    "postnorm": POSTNORM,
    "rmsnorm": RMSNORM,
    "narrow": NARROW,
    "graphs": GRAPHS,
    "epilogues": EPILOGUES,
    "b2b": B2B,
}

# What a family has to reach as a whole: goals of the geometric mean over all of its workloads.
TARGETS: dict[str, tuple[Target, ...]] = {"postnorm": POSTNORM_TARGETS}


def by_name(name: str) -> Workload:
    """The workload of that name.

    Raises:
        KeyError: there is none.
    """
    return {w.name: w for family in FAMILIES.values() for w in family}[name]


def select(family: str, shapes: Iterable[str] = ()) -> tuple[Workload, ...]:
    """The workloads of a family, all of them or those of the shapes given as ``MxNxK`` (chains:
    ``MxKxHxN``, three GEMMs ``MxKxHxHxN``), or of the names.

    Raises:
        ValueError: the family, or one of the shapes, does not exist.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    wanted = [s.replace(",", "x") for s in shapes]
    known = {s for w in FAMILIES[family] for s in (w.shape, w.name)}
    unknown = [s for s in wanted if s not in known]
    if unknown:
        raise ValueError(f"no shape {unknown[0]!r} in {family}; there are {', '.join(sorted(known))}")
    return tuple(w for w in FAMILIES[family] if not wanted or {w.shape, w.name} & set(wanted))
