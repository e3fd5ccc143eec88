"""Tables of measured choices: read, written by several at once, damaged, and who asks them."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import filelock
import pytest

import comfuse
from comfuse.errors import TableError
from comfuse.generator import catalog
from comfuse.generator import plan as planner
from comfuse.generator.plan import KernelPlan
from comfuse.generator.spec import DType, FusedSpec
from comfuse.library import builder, catalogue, manifest, tuned
from comfuse.library.signature import signature
from comfuse.library.tuned import lookup, table
from comfuse.library.tuned.table import Entry, Timed, read, update

BF16 = DType.BF16
SPEC = catalog.layernorm(768, 768, BF16, bias=BF16)
BY_MODEL = planner.plan(SPEC)
OTHER = next(c for c in planner.candidates(SPEC) if isinstance(c, KernelPlan) and c.shape != BY_MODEL.shape)


def by_model(plan: KernelPlan) -> bool:
    return plan == replace(BY_MODEL, decisions=(*BY_MODEL.decisions, "chosen by the cost model"))


def entry(
    spec: FusedSpec = SPEC,
    plan: KernelPlan = OTHER,
    *,
    gpu: str = "h200",
    rows: int | None = None,
    us: float = 41.25,
    device_code: str | None = None,
) -> Entry:
    return Entry(
        signature=signature(spec),
        gpu=gpu,
        rows=rows,
        label="layernorm",
        spec=spec.text(),
        m=rows or 16384,
        best=Timed(plan.shape.name, plan.stages, us),
        second=Timed(BY_MODEL.shape.name, BY_MODEL.stages, us + 1),
        error=1.6e-3,
        allowed=2e-3,
        candidates=7,
        rounds=24,
        exhaustive=False,
        device="NVIDIA H200",
        device_code=device_code or manifest.device_code(),
        made_with={"comfuse": comfuse.__version__},
    )


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that is asked first; the user's and the shipped ones are in empty folders."""
    path = tmp_path / "named.json"
    update(path, ())
    monkeypatch.setenv("COMFUSE_TUNED", str(path))
    monkeypatch.setattr(lookup, "user_table", lambda: tmp_path / "user" / "tuned.json")
    monkeypatch.setattr(lookup, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(lookup, "_STALE", type(lookup._STALE)())
    return path


# --- files ----------------------------------------------------------------------------------------------


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "tuned.json"
    entries = [entry(rows=rows) for rows in (None, 2048, 128)]
    update(path, entries[:2])
    assert update(path, entries[2:]) == read(path)
    assert [e.rows for e in read(path).entries] == [128, 2048, None]
    assert set(read(path).entries) == set(entries)
    assert len(path.read_text().splitlines()) == len(entries) + 2  # a line an entry, for whoever compares


def test_an_entry_takes_the_place_of_that_of_its_key(tmp_path: Path) -> None:
    update(tmp_path / "t", [entry(us=50.0), entry(rows=128)])
    update(tmp_path / "t", [entry(us=40.0)])
    assert [e.best.us for e in read(tmp_path / "t").entries] == [41.25, 40.0]


def _write(path: Path, numbers: Sequence[int]) -> None:
    for number in numbers:
        update(path, [entry(rows=number)])


def test_several_processes_write_one_table(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    fork = multiprocessing.get_context("fork")
    parts = [range(1 + 20 * i, 21 + 20 * i) for i in range(3)]
    writers = [fork.Process(target=_write, args=(path, part)) for part in parts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            read(path)  # never half a table
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert {e.rows for e in read(path).entries} == set(range(1, 61))
    assert {p.name for p in tmp_path.iterdir()} <= {"tuned.json", "tuned.json.lock"}


def test_a_writer_that_fails_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuned.json"
    old = update(path, [entry()])

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TableError, match=f"tuning table {path} cannot be written: no space left"):
        update(path, [entry(rows=128)])
    assert read(path) == old
    assert {p.name for p in tmp_path.iterdir()} <= {"tuned.json", "tuned.json.lock"}


def test_a_lock_that_is_never_free_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuned.json"
    monkeypatch.setattr(table, "_WAIT_SECONDS", 0.05)
    with (
        filelock.FileLock(f"{path}.lock"),
        pytest.raises(TableError, match="was locked by another process"),
    ):
        update(path, [entry()])


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"format": 1, "entries": [', "Expecting value"),
        ('{"entries": []}', "has no 'format'"),
        ("[]", "list indices"),
        ('{"format": 1, "entries": [{"rows": 1}]}', "has no 'second'"),
        ("\0\0", "Expecting value"),
    ],
)
def test_a_damaged_table_is_an_error_that_names_it(asked: Path, text: str, said: str) -> None:
    asked.write_text(text)
    for use in (lambda: read(asked), lambda: update(asked, [entry()]), lambda: tuned.plan(SPEC)):
        with pytest.raises(TableError) as caught:
            use()
        assert caught.value.path == asked
        assert str(caught.value).startswith(f"tuning table {asked} cannot be read: ")
        assert said in str(caught.value)
    assert asked.read_text() == text


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"error": 3e-3}, "error is 0.003; allowed: at most the 0.002"),
        ({"error": float("nan")}, "error is nan"),
        ({"rows": 0}, "rows is 0"),
        ({"rows": "few"}, "rows is 'few'"),
        ({"best": {"shape": "x"}}, "missing 2 required positional arguments"),
        ({"more": 1}, "unexpected keyword argument 'more'"),
        ({"rows": True}, "rows is True"),
        ({"signature": ["x"]}, "signature is ['x']; allowed: a text"),
        ({"gpu": None}, "gpu is None; allowed: a text"),
        ({"m": "many"}, "m is 'many'; allowed: a whole number"),
        ({"best": {"shape": "x", "stages": "4", "us": 1.0}}, "stages is '4'; allowed: a whole number"),
        ({"second": {"shape": "x", "stages": 4, "us": None}}, "us is None; allowed: a positive number"),
        ({"best": {"shape": "x", "stages": 4, "us": 0}}, "us is 0; allowed: a positive number"),
    ],
)
def test_an_entry_that_was_not_right_is_no_entry(tmp_path: Path, wrong: dict, said: str) -> None:
    data = {**json.loads(entry().text()), **wrong}
    (tmp_path / "t").write_text(json.dumps({"format": 1, "entries": [data]}))
    with pytest.raises(TableError) as caught:
        read(tmp_path / "t")
    assert said in str(caught.value)


def test_a_table_of_another_format_is_not_used_and_not_overwritten(asked: Path) -> None:
    asked.write_text('{"format": 7, "entries": ["?"]}')
    assert by_model(tuned.plan(SPEC))
    assert lookup.refusals() == {(str(asked), "it has format 7, this ComFuse reads 1: tune again"): 1}
    with pytest.raises(TableError, match="is not written to: it has format 7"):
        update(asked, [entry()])


def test_a_table_that_is_named_has_to_be_there(asked: Path) -> None:
    asked.unlink()
    for use in (lambda: tuned.plan(SPEC), lookup.identity):
        with pytest.raises(TableError, match="COMFUSE_TUNED has to name tables"):
            use()


def test_the_shipped_tables_can_be_read_and_used() -> None:
    paths = sorted(lookup.SHIPPED.glob("*.json"))
    assert [path.name for path in paths] == ["h200.json"]
    for path in paths:
        found = read(path)
        assert not found.unfit
        for e in found.entries:
            tuned.plan_of(e, comfuse.FusedSpec.parse(e.spec), e.gpu, e.rows)


# --- choices --------------------------------------------------------------------------------------------


def test_a_measured_choice_comes_before_the_cost_model(asked: Path) -> None:
    assert by_model(tuned.plan(SPEC))
    update(asked, [entry()])
    chosen = tuned.plan(SPEC)
    assert chosen.label == OTHER.label != BY_MODEL.label
    assert replace(chosen, decisions=()) == replace(OTHER, decisions=())
    said = chosen.decisions[-1]
    assert said == (
        f"chosen by measurement: 41.2 us at M = 16384, next {BY_MODEL.label} 42.2 us, error 1.6e-03 of "
        f"2.0e-03; NVIDIA H200, {asked}"
    )


def test_it_says_so_where_the_device_code_is_other(asked: Path) -> None:
    update(asked, [entry(device_code="older")])
    assert f"NVIDIA H200, with other device code, {asked}" in tuned.plan(SPEC).decisions[-1]


def test_a_key_is_the_program_whatever_its_names_the_gpu_and_the_class_of_rows(asked: Path) -> None:
    update(asked, [entry(rows=2048)])
    (output,) = SPEC.outputs
    renamed = replace(SPEC, outputs=(replace(output, name="z"),))
    for spec, gpu, m, found in (
        (SPEC, "h200", 2048, True),
        (SPEC, "h200", 600, True),
        (renamed, "h200", 2048, True),
        (SPEC, "h200", 512, False),
        (SPEC, "h200", 2049, False),
        (SPEC, "h200", None, False),
        (SPEC, "h100", 2048, False),
        (SPEC, "h200:114", 2048, False),
        (catalog.layernorm(768, 776, BF16, bias=BF16), "h200", 2048, False),
    ):
        measured = tuned.plan(spec, gpu, m).decisions[-1].startswith("chosen by measurement")
        assert measured is found, (spec.k, gpu, m)


def test_tables_are_asked_in_their_order(asked: Path, tmp_path: Path) -> None:
    plans = [c for c in planner.candidates(SPEC) if isinstance(c, KernelPlan)][:3]
    shipped, user = tmp_path / "shipped" / "h200.json", lookup.user_table()
    for path, plan in zip((shipped, user, asked), plans, strict=True):
        update(path, [entry(plan=plan)])
        assert tuned.plan(SPEC).label == plan.label
    assert lookup.paths() == (asked, user, shipped)


def test_a_choice_that_is_refused_now_is_passed_over_and_counted(asked: Path) -> None:
    shape, stages, many = OTHER.shape.name, OTHER.stages, entry()
    gone = replace(many, best=Timed("pingpong-128x512-c4", 3, 1.0))
    update(asked, [gone])
    update(lookup.user_table(), [replace(many, best=Timed(shape, 99, 1.0))])
    update(lookup.SHIPPED / "h200.json", [many])
    assert tuned.plan(SPEC).label == OTHER.label
    (first, why), (second, why_not_stages) = lookup.refusals()
    assert (first, second) == (str(asked), str(lookup.user_table()))
    assert why.startswith("layernorm, pingpong-128x512-c4-s3: pingpong-128x512-c4 is none of the planner's")
    assert f"99 stages; allowed: {stages}" in why_not_stages
    tuned.plan(SPEC)
    assert set(lookup.refusals().values()) == {2}


def test_off_asks_no_table(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update(asked, [entry()])
    monkeypatch.setenv("COMFUSE_TUNED", "off")
    assert by_model(tuned.plan(SPEC))
    assert lookup.identity() == ["off"]


# --- who asks -------------------------------------------------------------------------------------------


def test_explain_says_what_was_measured(asked: Path) -> None:
    update(asked, [entry()])
    text = str(comfuse.explain(SPEC, 16384))
    assert "chosen by measurement: 41.2 us at M = 16384" in text
    assert f"{BY_MODEL.shape.label}: predicted" in text
    assert f"{OTHER.shape.label}: predicted" not in text
    assert "chosen by the cost model" in str(comfuse.explain(SPEC, 100))


def test_the_resolver_a_library_and_the_steps_take_it(asked: Path) -> None:
    from comfuse.library.source import source_of

    update(asked, [entry()])
    chosen = comfuse.emit(OTHER).name
    assert source_of(SPEC, "h200", None).name == chosen
    assert comfuse.emit(comfuse.plan(SPEC)).name == chosen
    wanted = catalogue.Catalogue("test", "", "h200", (catalogue.Entry("x", SPEC, (None,)),))
    assert [source.name for source in builder.sources([wanted])] == [chosen]


def test_what_torchinductor_caches_depends_on_the_tables(asked: Path) -> None:
    from comfuse.inductor.hook import ComFusePass

    before = ComFusePass().uuid()
    update(asked, [entry()])
    assert ComFusePass().uuid() not in (None, before)


def test_a_refusal_is_forgotten_when_the_tables_change() -> None:
    from comfuse.ops import resolver

    assert "COMFUSE_TUNED" in resolver._ENVIRONMENT


def test_a_cluster_along_m_is_chosen_by_measurement(asked: Path) -> None:
    along_m = next(p for p in planner.candidates_to_measure(SPEC) if isinstance(p, KernelPlan))
    update(asked, [entry(plan=along_m)])
    chosen = tuned.plan(SPEC)
    assert (chosen.shape, chosen.cluster_m) == (along_m.shape, 2)
    assert tuned.is_measured(chosen)
