"""Tables of measured choices: JSON, an entry a line.

A key is a program (:func:`comfuse.library.signature.signature`: normalised, without its names and its number
of rows), the planner's name of a GPU (with its number of SMs where it is another) and a class of numbers of
rows.  Its value is the plan that was fastest there, with what it was held against.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock

from comfuse.build.files import write_whole
from comfuse.errors import TableError

FORMAT = 1
MANY = "many"
_WAIT_SECONDS = 60.0  # for another process that writes the same table: it takes milliseconds
Key = tuple[str, str, "int | None"]


@dataclass(frozen=True)
class Timed:
    """A plan of a program and its time.

    Attributes:
        shape: the name of its tile shape (:attr:`comfuse.generator.plan.TileShape.name`).
        stages: its number of stages for A and B.
        us: microseconds of a launch in a CUDA graph, the median over rounds.
    """

    shape: str
    stages: int
    us: float

    @property
    def label(self) -> str:
        return f"{self.shape}-s{self.stages}"

    @staticmethod
    def parse(data: dict[str, Any]) -> Timed:
        """Raises ValueError, TypeError: it is none."""
        timed = Timed(**data)
        _require(timed, ("shape",), str, "a text")
        _require(timed, ("stages",), int, "a whole number")
        if not (isinstance(timed.us, int | float) and 0 < timed.us < math.inf):
            raise ValueError(f"us is {timed.us!r}; allowed: a positive number")
        return timed


@dataclass(frozen=True)
class Entry:
    """A measured choice.

    Attributes:
        signature: of the program.
        gpu: the planner's name of the GPU.
        rows: the class of numbers of rows, by its upper bound; None: many.
        label: how people call the program.
        spec: its text.
        m: the number of rows that it was measured with, those of all batches.
        best: the fastest plan.
        second: the fastest of the others; None if there was no other.
        error, allowed: of the output of ``best`` that came nearest to what is allowed, the error against
            float64 and what is allowed.
        candidates: how many plans were timed.
        rounds: how often ``best`` was timed.
        exhaustive: whether all of the planner's plans were timed, in every round.
        device: the GPU's own name.
        device_code: :func:`comfuse.library.manifest.device_code` of what was measured.
        made_with: versions of ComFuse, torch, nvcc and CUTLASS.
    """

    signature: str
    gpu: str
    rows: int | None
    label: str
    spec: str
    m: int
    best: Timed
    second: Timed | None
    error: float
    allowed: float
    candidates: int
    rounds: int
    exhaustive: bool
    device: str
    device_code: str
    made_with: dict[str, str] = field(hash=False)

    @property
    def key(self) -> Key:
        return self.signature, self.gpu, self.rows

    def text(self) -> str:
        """As it stands in a table."""
        return json.dumps({**asdict(self), "rows": MANY if self.rows is None else self.rows})

    @staticmethod
    def parse(data: dict[str, Any]) -> Entry:
        """The entry of a table.

        Raises:
            ValueError, TypeError, KeyError: it is none, or one whose plan was not right.
        """
        rows, second = data["rows"], data["second"]
        if rows != MANY and not (type(rows) is int and rows > 0):
            raise ValueError(f"rows is {rows!r}; allowed: {MANY!r} or a number of rows")
        entry = Entry(
            **{
                **data,
                "rows": None if rows == MANY else rows,
                "best": Timed.parse(data["best"]),
                "second": None if second is None else Timed.parse(second),
            }
        )
        _require(entry, ("signature", "gpu", "label", "spec", "device", "device_code"), str, "a text")
        _require(entry, ("m",), int, "a whole number")
        if not 0 <= entry.error <= entry.allowed < math.inf:
            raise ValueError(
                f"error is {entry.error}; allowed: at most the {entry.allowed} of the same entry"
            )
        return entry


def _require(of: Timed | Entry, names: tuple[str, ...], kind: type, allowed: str) -> None:
    """Raises ValueError: one of these attributes is of another type."""
    for name in names:
        value = getattr(of, name)
        if type(value) is not kind:
            raise ValueError(f"{name} is {value!r}; allowed: {allowed}")


@dataclass(frozen=True)
class Table:
    """The entries of a file.  ``unfit``: why this ComFuse uses none of it, or an empty string."""

    entries: tuple[Entry, ...] = ()
    unfit: str = ""

    @cached_property
    def by_program(self) -> dict[tuple[str, str], list[Entry]]:
        """Entries by signature and GPU."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            found.setdefault((entry.signature, entry.gpu), []).append(entry)
        return found


def read(path: Path) -> Table:
    """The table in a file.

    Raises:
        TableError: there is none, or it is damaged; names the file.
    """
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            return Table(unfit=f"it has format {data['format']}, this ComFuse reads {FORMAT}: tune again")
        return Table(tuple(Entry.parse(entry) for entry in data["entries"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        said = f"has no {e}" if isinstance(e, KeyError) else str(e)
        raise TableError(path, f"cannot be read: {said}; delete it, or put back what it was") from e


def update(path: Path, entries: Iterable[Entry]) -> Table:
    """Puts entries into a table, in the place of those with the same keys; makes the file if it is not there.

    Several processes may do so at once: each adds to what the others have written.  The file is replaced as a
    whole, so that readers find either the old table or the new one.

    Raises:
        TableError: the file is damaged, of another format, not writable, or locked for too long.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(f"{path.name}.lock"), timeout=_WAIT_SECONDS):
            old = read(path) if path.exists() else Table()
            if old.unfit:
                raise TableError(path, f"is not written to: {old.unfit}, into another file")
            merged = {entry.key: entry for entry in (*old.entries, *entries)}
            new = Table(tuple(sorted(merged.values(), key=_order)))
            _write(path, new)
            return new
    except filelock.Timeout:
        raise TableError(path, f"was locked by another process for {_WAIT_SECONDS:g} s") from None
    except (OSError, NotImplementedError) as e:  # the latter is what filelock makes of ENOSYS
        raise TableError(path, f"cannot be written: {e}; choose a file in a folder that can") from e


def _order(entry: Entry) -> tuple[str, str, str, float]:
    return entry.gpu, entry.label, entry.signature, math.inf if entry.rows is None else entry.rows


def _write(path: Path, table: Table) -> None:
    lines = ",\n".join(entry.text() for entry in table.entries)
    write_whole(path, f'{{"format": {FORMAT}, "entries": [\n{lines}\n]}}\n')
