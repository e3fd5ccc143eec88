"""Tables as data, for HTML and for Markdown alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from bench.report import Spread


@dataclass(frozen=True)
class Cell:
    """``mark`` is a class of the page's style: "loss", "gain", "missed", "met", "failed" or none.

    What it means is said by the text too: Markdown has no marks.
    """

    text: str
    mark: str = ""
    href: str = ""


@dataclass(frozen=True)
class Table:
    """``rows``: each its anchor on the page, unique, and its cells; ``note`` is what stands beneath."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    environment: str = ""
    note: str = ""
    folded: bool = False  # on the page, until it is opened


NONE = Cell("-")


def us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def ratio(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def spread(value: Spread | None, unit: str = "") -> str:
    """Median, and smallest and largest where they differ."""
    if value is None:
        return "-"
    text = f"{value.median:.2f}{unit}"
    low, high = f"{value.low:.2f}", f"{value.high:.2f}"
    return text if low == high else f"{text} [{low}-{high}]"


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as per cent."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def cells(values: Iterable[str | Cell]) -> tuple[Cell, ...]:
    return tuple(v if isinstance(v, Cell) else Cell(v) for v in values)


def markdown(tables: Sequence[Table]) -> str:
    """The tables under headings of the second level, links as links."""
    return "\n\n".join(map(_markdown, tables)) + "\n"


def _markdown(table: Table) -> str:
    body = [[_escaped(cell) for cell in row] for _, row in table.rows]
    parts = [f"## {table.title}", table.environment]
    if body:
        parts.append(tabulate(body, table.columns, tablefmt="github", disable_numparse=True))
    return "\n\n".join(part for part in (*parts, table.note) if part)


def _escaped(cell: Cell) -> str:
    text = cell.text.replace("|", "\\|")
    if cell.mark in ("loss", "missed", "failed"):
        text = f"**{text}**"
    return f"[{text}]({cell.href})" if cell.href else text
