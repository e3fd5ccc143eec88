"""The report over results: figures from a small file by hand, losses in sight, and the committed files."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")
pytest.importorskip("transformers", reason="needs the dev or the bench extra")

from bench import __main__ as bench
from bench.goals import Goal
from bench.page import (
    entries,
    families,
    files,
    main,
    model,
    modes,
    overhead,
    plain,
    roofline,
    sections,
    tables,
)
from bench.page.files import ResultsFile
from bench.report import Row, record
from bench.workloads import POSTNORM
from comfuse.generator.plan import GPUS
from tests.bench.results_files import RESULTS, timed, written


@pytest.fixture
def small(tmp_path: Path) -> ResultsFile:
    """A gain over two processes, the second at half the clock; a loss; a failure."""
    records = [
        *timed(0, 0, mm=30, inductor=50, inductor_max=60, comfuse=40),
        *timed(0, 1, mm=60, inductor=110, comfuse=72),
        *timed(1, 0, mm=100, inductor=120, comfuse=125, cublaslt=110),
        record(Row(POSTNORM[2].name, "comfuse", 0, failure="it <broke> | here")),
    ]
    (file,) = files.read([written(tmp_path, records)])
    return file


def test_golden_numbers(small: ResultsFile) -> None:
    by_name = {e.workload: e for e in entries.entries_of(small)}
    gain, loss, failed = (by_name[w.name] for w in POSTNORM[:3])
    assert gain.speedup is not None
    assert (gain.speedup.low, gain.speedup.high) == (pytest.approx(50 / 40), pytest.approx(110 / 72))
    assert gain.to_mm is not None
    assert gain.to_mm.median == pytest.approx((40 / 30 + 72 / 60) / 2)
    assert gain.to_floor is not None
    assert gain.to_floor.low == pytest.approx(40 / POSTNORM[0].floor_us)
    assert gain.within == pytest.approx(0.2)
    assert (gain.processes, gain.lines, gain.loss) == (2, (2, 3, 4, 5, 6, 7, 8), False)
    assert gain.goal == Goal(POSTNORM[0].target, pytest.approx((40 / 30 + 72 / 60) / 2))
    assert (gain.goal.text, gain.goal.met) == ("≤ 1.19 of mm", False)
    assert loss.loss
    assert loss.faster == ("cublaslt",)
    assert failed.speedup is None
    assert failed.failures == ("comfuse (process 0): it <broke> | here",)


def test_the_slowest_ratio_comes_first(small: ResultsFile) -> None:
    assert [e.workload for e in entries.entries_of(small)] == [POSTNORM[i].name for i in (1, 0, 2)]


def test_losses_goals_and_failures_are_shown_at_the_top(small: ResultsFile) -> None:
    overview, shortfalls, *_ = main.of([small], small.path.parent, plots=False)[0].parts
    assert isinstance(overview, tables.Table)
    assert isinstance(shortfalls, tables.Table)
    (row,) = (row for _, row in overview.rows if row[-1].text == "small.jsonl")
    totals = dict(zip(overview.columns, row, strict=True))
    assert {k: totals[k].text for k in ("compared", "gains", "losses", "goals missed", "failures")} == {
        "compared": "2 of 8, incomplete",
        "gains": "1",
        "losses": "1",
        "goals missed": "2",
        "failures": "1",
    }
    assert totals["losses"].mark == "loss"
    assert [(row[2].text, row[-1].text) for _, row in shortfalls.rows] == [
        ("LOSS against the best of Inductor default, Inductor max-autotune", "small.jsonl lines 9-12"),
        ("MISSED goal ≤ 1.12 of mm", "small.jsonl lines 9-12"),
        ("LOSS against cuBLASLt epilogue, 110.0 us", "small.jsonl lines 9-12"),
        ("MISSED goal ≤ 1.19 of mm", "small.jsonl lines 2-8"),
        ("FAILED comfuse (process 0): it <broke> | here", "small.jsonl line 13"),
    ]


def test_what_ours_is_held_against_is_named(tmp_path: Path) -> None:
    """By the modes that ran, and beneath the table on how many workloads each of them did."""
    default = [*timed(0, 0, mm=30, inductor=50, comfuse=40), *timed(1, 0, mm=30, inductor=35, comfuse=40)]
    both = [*default, *timed(0, 0, inductor_max=45)]
    read = files.read([written(tmp_path, both), written(tmp_path, timed(0, 0, comfuse=4), "alone.jsonl")])
    by_file = {m.file.path.name: m for m in families.family("postnorm", read).history}
    assert modes.against(by_file["alone.jsonl"]) == "Inductor, which did not run"
    assert modes.note(by_file["alone.jsonl"]) == "No mode of Inductor ran."
    assert modes.note(by_file["small.jsonl"]) == (
        "The best Inductor is the best of: Inductor default, Inductor max-autotune (1 of 2). "
        "Not run: Inductor max-autotune with TMA, Inductor max-autotune with CUTLASS."
    )
    (file,) = files.read([written(tmp_path, default, "default.jsonl")])
    of_family = families.family("postnorm", [file])
    assert modes.against(of_family.shown[0]) == "Inductor default"
    text = main.html_text([file], tmp_path, plots=False)
    assert "against Inductor default" in text
    assert "LOSS against Inductor default" in text
    assert "best Inductor" not in sections.measurement(of_family, of_family.shown[0], str).columns


def test_markdown_has_the_numbers_with_their_lines(small: ResultsFile) -> None:
    parts = [p for s in main.of([small], small.path.parent, plots=False) for p in s.parts]
    text = tables.markdown([p for p in parts if isinstance(p, tables.Table)])
    assert "**0.96x LOSS**" in text
    assert "1.39x [1.25-1.53]" in text
    assert "[small.jsonl lines 2-8](small.jsonl)" in text
    assert "it <broke> \\| here" in text
    assert "NVIDIA H200, driver 580.1, torch 2.11.0, Triton 3.6.0, CUTLASS 4.2.0.0" in text
    assert "commit abc1234" in text


def test_the_newest_complete_file_leads_and_a_newer_short_run_does_not(tmp_path: Path) -> None:
    whole = [r for i in range(len(POSTNORM)) for r in timed(i, 0, mm=30, inductor=50, comfuse=40)]
    paths = [
        written(tmp_path, whole, "old.jsonl", date="2026-01-01T00:00:00+00:00"),
        written(tmp_path, whole, "new.jsonl", date="2026-01-02T00:00:00+00:00"),
        written(tmp_path, whole[:3], "short.jsonl", date="2026-01-03T00:00:00+00:00"),
    ]
    family = families.family("postnorm", files.read(paths))
    assert [m.file.path.name for m in family.shown] == ["new.jsonl"]
    assert [m.file.path.name for m in family.history] == ["short.jsonl", "new.jsonl", "old.jsonl"]
    assert family.complete(family.shown[0])
    assert family.missing() == []


def test_goals_of_a_family_are_of_the_mean_over_all_of_it(tmp_path: Path) -> None:
    """1.25x of Inductor and 1.1 of torch.mm in each, which is too long for one alone, whose goal is 1.09."""
    every = [r for i in range(len(POSTNORM)) for r in timed(i, 0, mm=100, inductor=137.5, comfuse=110)]
    whole, part = files.read([written(tmp_path, every), written(tmp_path, every[3:], "part.jsonl")])
    (mm, inductor) = families.Measurement(whole, tuple(entries.entries_of(whole)), ()).goals
    assert (mm.text, mm.ratio, mm.met) == ("≤ 1.12 of mm", pytest.approx(1.1), True)
    assert (inductor.text, inductor.ratio, inductor.met) == ("≥ 1.28x", pytest.approx(1.25), False)
    of_part = families.Measurement(part, tuple(entries.entries_of(part)), ())
    assert [goal.met for goal in of_part.goals] == [None, None]

    overview, shortfalls, *_ = main.of([whole], tmp_path, plots=False)[0].parts
    assert isinstance(overview, tables.Table)
    assert isinstance(shortfalls, tables.Table)
    (row,) = (row for _, row in overview.rows if row[-1].text == "small.jsonl")
    totals = dict(zip(overview.columns, row, strict=True))
    assert (totals["goals met"].text, totals["goals missed"].text) == ("8", "2")
    assert [row[1].text for _, row in shortfalls.rows if row[2].text == "MISSED goal ≥ 1.28x"] == [
        "geomean of all 8"
    ]
    assert "≥ 1.28x MISSED" in plain.table(whole).splitlines()[-1]
    assert "not measured" in plain.table(part).splitlines()[-1]


def test_a_file_shows_what_the_leading_one_lacks(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, timed(0, 0, mm=30, inductor=50, comfuse=40), "a.jsonl"),
        written(tmp_path, timed(1, 0, mm=30, comfuse=40), "b.jsonl", date="2027-01-01T00:00:00+00:00"),
    ]
    family = families.family("postnorm", files.read(paths))
    assert [m.file.path.name for m in family.shown] == ["a.jsonl", "b.jsonl"]
    assert family.missing() == [w.name for w in POSTNORM[1:]]


def test_a_workload_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = record(Row("postnorm-1x2x3", "comfuse", 0, us=1.0))
    (file,) = files.read([written(tmp_path, [gone, *timed(0, 0, comfuse=40)])])
    assert entries.unknown(file) == ["postnorm-1x2x3"]
    assert "postnorm-1x2x3" in main.html_text([file], tmp_path, plots=False)


def test_a_file_of_an_unknown_experiment_is_named(tmp_path: Path) -> None:
    rows = [{"record": "row", "of": "another kind"}]
    (file,) = files.read([written(tmp_path, rows, "tune.jsonl", experiment="tune")])
    last = main.of([file], tmp_path, plots=False)[-1]
    assert last.name == "others"
    assert "tune.jsonl" in main.html_text([file], tmp_path, plots=False)


def test_calls_that_take_longer_than_torchs_are_losses(tmp_path: Path) -> None:
    times = {"torch.mm(out=)": 10.0, "comfuse.ops.fused_gemm": 12.0, "eager linear": 30.0}
    calls = [{"record": "call", "call": c, "us": t, "low": t, "high": t} for c, t in times.items()]
    (file,) = files.read([written(tmp_path, calls, experiment="overhead")])
    (row,) = (row for _, row in overhead.slower([file], lambda f: f.path.name))
    assert [cell.text for cell in row][1:] == [
        "comfuse.ops.fused_gemm",
        "SLOWER to call than torch.mm(out=)",
        "0.83x",
        "1.20",
        "small.jsonl line 3",
    ]
    assert row[2].mark == "loss"


def test_builds_that_miss_their_goals_are_said_to(tmp_path: Path) -> None:
    kernels = {"cf_sm90_gemm_bf16_a": 10.4, "cf_sm90_chain_bf16_b": 11.9, "cf_sm90_gemm_bf16_c": 9.9}
    builds = [{"record": "build", "family": "x", "kernel": k, "seconds": t} for k, t in kernels.items()]
    builds.append({"record": "build", "family": "x", "kernel": "cf_sm90_gemm_bf16_d", "failure": "no"})
    steps = [("cold", 2, {"build": 10.2, "binding": 6.0}), ("cold", "all", {"build": 14.0})]
    steps.append(("cached", 2, {"plan and emit": 0.02, "build": 0.03, "load": 0.001, "first call": 9.0}))
    parts = [{"record": "build", "state": s, "cores": c, "steps": t} for s, c, t in steps]
    paths = [written(tmp_path, builds, experiment="compile_time")]
    paths.append(written(tmp_path, parts, "overhead.jsonl", experiment="overhead"))
    made = {section.name: section.parts for section in main.of(files.read(paths), tmp_path, plots=False)}
    (_, shortfalls), (table,) = made["overview"], made["compile-time"]
    assert isinstance(shortfalls, tables.Table)
    assert isinstance(table, tables.Table)
    assert [(row[1].text, row[2].text) for _, row in shortfalls.rows] == [
        ("cold build", "MISSED goal ≤ 10 s: 10.200 s"),
        ("cached build", "MISSED goal ≤ 0.05 s: 0.051 s"),
        ("x: cf_sm90_gemm_bf16_a", "MISSED goal ≤ 10 s: 10.4 s"),
        ("x: cf_sm90_gemm_bf16_d", "FAILED no"),
    ]
    assert [row[-2].text for _, row in table.rows][-2:] == ["MISSED goal ≤ 10 s: 10.4 s", "≤ 10 s met"]
    assert "others" not in made


def test_roofline(small: ResultsFile) -> None:
    """By hand: 2 * 16384 * 768 * 768 flops; the product alone moves 2 * (2 * 16384 + 768) * 768 bytes."""
    dots = {(d.workload, d.provider): d for d in roofline.dots(families.family("postnorm", [small]))}
    mm, ours = (dots[POSTNORM[0].name, p] for p in ("mm", "comfuse"))
    flops = 2 * 16384 * 768 * 768
    assert mm.intensity == pytest.approx(flops / (2 * (2 * 16384 + 768) * 768))
    assert ours.intensity == pytest.approx(flops / POSTNORM[0].bytes_moved)
    assert ours.teraflops == pytest.approx(flops / 56e-6 / 1e12)
    h200 = GPUS["h200"]
    assert roofline.ceiling(h200, 1.0) == pytest.approx(h200.bandwidth / 1e12)
    assert roofline.ceiling(h200, 1e6) == pytest.approx(h200.flops / 1e12)


def test_rows_of_an_unknown_gpu_have_no_ceiling_and_no_prediction(tmp_path: Path) -> None:
    (file,) = files.read([written(tmp_path, timed(0, 0, mm=30, comfuse=40), gpu={"name": "NVIDIA L4"})])
    assert roofline.dots(families.family("postnorm", [file])) == []
    assert model.points([file]) == []


class _Page(html.parser.HTMLParser):
    """What a page loads and refers to, its ids, and the ids of rows that refer to no file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.rows_without_source: list[str] = []
        self._row: str | None = None
        self.feed(text)

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self._row is not None:
            self.rows_without_source.append(self._row)
            self._row = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if "id" in values:
            self.ids.append(str(values["id"]))
        if tag == "tr":
            self._row = values.get("id")
        if tag == "a":
            self.links.append(str(values["href"]))
            self._row = None
        if tag in ("script", "link", "img", "iframe") or "src" in values:
            self.sources.append(tag)


def _names(rows: list[str]) -> list[str]:
    assert all(row.startswith("overview--") for row in rows)
    return [row.removeprefix("overview--") for row in rows]


def test_the_page_of_the_committed_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs the bench extra")
    output = tmp_path / "report.html"
    assert bench.main(["report", "-o", str(output), "--markdown"]) == 0
    text = output.read_text()
    page = _Page(text)
    assert page.sources == []  # nothing is loaded from elsewhere
    assert len(page.ids) == len(set(page.ids))
    # No number without its file: only families that no file measures have no link.
    assert all(name in families.families() for name in _names(page.rows_without_source))
    for link in page.links:
        target = link.removeprefix("#")
        assert target in page.ids if link.startswith("#") else (tmp_path / link).is_file()
    committed = sorted(RESULTS.glob("*.jsonl"))
    assert committed
    markdown = capsys.readouterr().out
    for path in committed:
        assert path.name in text
        assert path.name in markdown
    assert text.count("<svg") >= 2
    assert "a median of at most 15.0 % over all of them, is met" in markdown
    assert "prefers-color-scheme: dark" in text  # and the plots are drawn in the colour of the text
    losses = sum(
        sections.Count.of(m).losses
        for name in families.families()
        for m in families.family(name, files.read(committed)).shown
    )
    assert text.count('<td class="loss">LOSS against') >= losses


def test_without_an_output_the_tables_are_printed(
    small: ResultsFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["report", str(small.path)]) == 0
    assert "0.96x LOSS" in capsys.readouterr().out


def test_what_is_no_results_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"record": "row"}\n')
    assert bench.main(["report", str(path)]) == 2
    assert "not a header" in capsys.readouterr().err


def test_numbers_have_one_format() -> None:
    assert tables.us(1234.56) == "1234.6"
    assert tables.ratio(1.005, "x") == "1.00x"
    assert tables.percent(-0.1234, signed=True) == "-12.3 %"
    assert files.ranges([3, 1, 2, 9, 9]) == "1-3, 9"
