"""Which files of a family count: the newest complete one, what it leaves open, and the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import goals, workloads
from bench.goals import Goal
from bench.page.entries import Entry, entries_of, unknown
from bench.page.files import ResultsFile
from bench.workloads.models import MODEL_WORKLOADS


@dataclass(frozen=True)
class Measurement:
    """One file and what it says of each workload."""

    file: ResultsFile
    entries: tuple[Entry, ...]
    unknown: tuple[str, ...]

    @property
    def compared(self) -> set[str]:
        """The workloads that have a time of ours and of a baseline."""
        return {e.workload for e in self.entries if e.speedup is not None}

    @property
    def timed(self) -> set[str]:
        """The workloads that have a time of ours."""
        return {e.workload for e in self.entries if e.ours is not None}

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Of its family as a whole."""
        speedups = {e.workload: e.speedup.median for e in self.entries if e.speedup is not None}
        to_mm = {e.workload: e.to_mm.median for e in self.entries if e.to_mm is not None}
        return goals.of_family(self.file.experiment, speedups, to_mm)


@dataclass(frozen=True)
class Family:
    """The files of one experiment.

    Attributes:
        name: the experiment's.
        wanted: the workloads that a complete file compares.
        shown: first the newest complete file, or where there is none the one that compares the most; then,
            newest first, those that have a workload which no file before them has.
        history: all files, newest first.
    """

    name: str
    wanted: tuple[str, ...]
    shown: tuple[Measurement, ...]
    history: tuple[Measurement, ...]

    def complete(self, m: Measurement) -> bool:
        return m.compared >= set(self.wanted)

    def missing(self) -> list[str]:
        """Workloads without a comparison in any of the files that are shown."""
        compared = {name for m in self.shown for name in m.compared}
        return [name for name in self.wanted if name not in compared]


def families() -> dict[str, tuple[str, ...]]:
    """The experiments over workloads, with the workloads that a complete file has."""
    names = {family: tuple(w.name for w in chosen) for family, chosen in workloads.FAMILIES.items()}
    names["models"] = tuple(w.name for w in MODEL_WORKLOADS)
    names["plain_gemm"] = names["postnorm"]
    return names


def family(name: str, files: Sequence[ResultsFile]) -> Family:
    """A family over those of the files that are its own; ``files`` are newest first."""
    wanted = families()[name]
    history = tuple(
        Measurement(f, tuple(entries_of(f)), tuple(unknown(f))) for f in files if f.experiment == name
    )
    # The sort is stable: of files that compare as much, the newest stays first.
    best = sorted(history, key=lambda m: len(m.compared & set(wanted)), reverse=True)[:1]
    shown, seen = list(best), {n for m in best for n in m.timed}
    for m in history:
        if m.timed - seen:
            shown.append(m)
            seen |= m.timed
    return Family(name, wanted, tuple(shown), history)
