"""`python -m bench report [FILES] [-o report.html] [--markdown]`: all results, or those of some files.

Without -o and --markdown it prints the table of each file, as the run that wrote it did.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import jinja2

from bench.environment import commit
from bench.page import compile_time, files, model, modes, overhead, plain, roofline, sections, tables
from bench.page.families import Family, families, family
from bench.page.files import ResultsFile
from bench.page.sections import Link
from bench.page.tables import Table


@dataclass(frozen=True)
class Plot:
    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """``name``: its anchor."""

    name: str
    title: str
    parts: tuple[Table | Plot, ...]


def main(arguments: Sequence[str], folder: Path) -> int:
    """``folder``: whose files are reported where none is named."""
    parser = argparse.ArgumentParser(prog="python -m bench report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="results files; default: all that are committed")
    parser.add_argument("-o", "--output", type=Path, metavar="HTML", help="write one self-contained page")
    parser.add_argument("--markdown", action="store_true", help="print the page's tables as Markdown")
    options = parser.parse_args(arguments)
    paths = options.files or sorted(folder.glob("*.jsonl"))
    try:
        read = files.read(paths)
        timed = read if options.files else files.read(files.committed(folder))
    except (OSError, ValueError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 2
    if options.markdown:
        made = of(read, Path.cwd(), plots=False, timed=timed)
        print(tables.markdown([part for s in made for part in s.parts if isinstance(part, Table)]))
    if options.output is not None:
        if importlib.util.find_spec("matplotlib") is None:
            print(
                "bench: the page's plots need matplotlib: python -m pip install '.[bench]'", file=sys.stderr
            )
            return 2
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(html_text(read, options.output.parent, timed=timed), encoding="utf-8")
        print(f"{len(read)} files: {options.output}", file=sys.stderr)
    if not options.markdown and options.output is None:
        print("\n\n".join(map(plain.table, read)))
    return 0


def html_text(
    read: Sequence[ResultsFile],
    folder: Path,
    *,
    plots: bool = True,
    timed: Sequence[ResultsFile] | None = None,
) -> str:
    """The page; ``folder`` is where it will lie, for its links to the files; ``plots`` needs matplotlib.

    ``timed``: the files that the cost model is held against, by default those that are shown.
    """
    template = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html.jinja")
    return template.render(
        sections=of(read, folder, plots=plots, timed=timed), files=len(read), commit=commit()
    )


def of(
    read: Sequence[ResultsFile],
    folder: Path,
    *,
    plots: bool,
    timed: Sequence[ResultsFile] | None = None,
) -> list[Section]:
    """The report's sections over files that are newest first; ``plots`` and ``timed`` as for
    :func:`html_text`.
    """

    def link(file: ResultsFile) -> str:
        return quote(os.path.relpath(file.path.resolve(), folder.resolve()))

    found = [family(name, read) for name in families()]
    slower = [*overhead.slower(read, link), *overhead.missed(read, link), *compile_time.missed(read, link)]
    made = [
        Section(
            "overview", "Overview", (sections.overview(found, link), sections.shortfalls(found, link, slower))
        )
    ]
    made += [_of_family(f, link, plots) for f in found]
    of_overhead = overhead.overhead(read, link)
    if of_overhead:
        made.append(Section("overhead", "overhead", tuple(of_overhead)))
    of_builds = compile_time.compile_time(read, link)
    if of_builds:
        made.append(Section("compile-time", "compile time", tuple(of_builds)))
    made.append(_of_model(read if timed is None else timed, link, plots))
    if others := [f for f in read if f.experiment not in (*families(), "overhead", compile_time.EXPERIMENT)]:
        made.append(Section("others", "others", (sections.others(others, link),)))
    return made


def _of_family(f: Family, link: Link, plots: bool) -> Section:
    parts: list[Table | Plot] = [sections.measurement(f, m, link) for m in f.shown]
    if not f.shown:
        note = f"No file has any of {', '.join(f.wanted)}."
        parts.append(Table(f"{f.name}: not measured", (), (), note=note))
    elif lacking := f.missing():
        note = f"No file compares {', '.join(lacking)} with {modes.yardstick(f.name)}."
        parts.append(Table(f"{f.name}: not compared", (), (), note=note))
    dots = roofline.dots(f)
    if dots:
        if plots:
            from bench.page.plots import roofline as plot

            named = ", ".join(dict.fromkeys(d.file.path.name for d in dots))
            parts.append(Plot(plot(f.name, dots), f"Roofline of {named}. Ceilings as measured on the GPU."))
        parts.append(roofline.table(f, dots, link))
    if f.history:
        parts.append(sections.history(f, link))
    old = [m for m in f.history if m not in f.shown]
    parts += [sections.measurement(f, m, link, folded=True) for m in old]
    return Section(f.name, f.name, tuple(parts))


def _of_model(read: Sequence[ResultsFile], link: Link, plots: bool) -> Section:
    points = model.points(read)
    parts: list[Table | Plot] = [sections.model_errors(model.errors(points), link)]
    if points and plots:
        from bench.page.plots import predictions

        caption = "Every kernel of ours in every file that this checkout's planner can plan again."
        parts.append(Plot(predictions(points), caption))
    parts.append(sections.model_points(points, link))
    return Section("cost-model", "cost model", tuple(parts))
