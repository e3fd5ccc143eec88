"""What of the cache can go, and what stays: by version, by use, and by who holds a lock."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from comfuse.build import binding, build, cache, headers, prune
from comfuse.errors import CacheError, ToolchainError
from tests.build.test_cache import hold
from tests.build.test_robust import MODULE, SOURCE, TOOLS, compiled

__all__ = ["compiled"]

DAY = 86400
_INCLUDE = "#include <comfuse/abi.h>\n"


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "toolchain", lambda: TOOLS)


def publish(entry: str, *, days: float, current: bool, library: str = "k.so") -> Path:
    """An entry that was last used some days ago; of a library of its own, or of another entry's."""
    manifest = {
        "name": "k",
        "library": library,
        "digest": "",
        "includes": headers.direct(_INCLUDE),
        "headers": headers.digest(_INCLUDE) if current else "other",
        "toolchain": {"nvcc": "1.0", "cutlass": "2.0"},
    }
    with cache.locked(entry, lambda: None), cache.private_folder(entry) as folder:
        (folder / "lib.so").write_bytes(bytes(1000))
        if library == "k.so":
            cache.publish(entry, {"k.so": folder / "lib.so"}, manifest)
        else:
            cache._publish(entry, {}, manifest, folder / "entry")
    return age(cache.entry_path(entry), days)


def age(folder: Path, days: float) -> Path:
    for path in (folder, folder / cache.MANIFEST):
        if path.exists():
            os.utime(path, (time.time() - days * DAY,) * 2)
    return folder


def pruned(days: float = 30) -> set[str]:
    """What was removed."""
    return {item.path.name for item in prune.removable(days) if prune.remove(item)}


@contextmanager
def held(entry: str) -> Iterator[None]:
    """Another process holds an entry's lock."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(entry, ready))
    holder.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        holder.kill()
        holder.join()


def test_what_is_of_another_version_and_was_not_used_for_long_goes(cache_dir: Path) -> None:
    publish("cf_current-0-0", days=100, current=True)
    publish("cf_old-0-0", days=31, current=False)
    publish("cf_fresh-0-0", days=29, current=False)
    assert {i.path.name for i in prune.items() if i.current} == {"cf_current-0-0"}
    assert pruned() == {"cf_old-0-0"}
    assert pruned() == set()
    assert {path.name for path in (cache_dir / "kernels").iterdir()} == {"cf_current-0-0", "cf_fresh-0-0"}
    assert not any((cache_dir / "building").iterdir())
    assert pruned(0) == {"cf_fresh-0-0"}


def test_what_is_used_is_not_old(cache_dir: Path) -> None:
    folder = publish("cf_old-0-0", days=31, current=False)
    going = prune.removable(30)
    assert cache.find("cf_old-0-0") is not None
    assert not prune.remove(going[0])  # asked for since
    assert folder.is_dir()
    assert pruned() == set()


def test_entries_that_cannot_be_read_are_of_another_version(cache_dir: Path) -> None:
    for number, text in enumerate(("{", "[]", "{}")):
        folder = publish(f"cf_damaged{number}-0-0", days=0, current=True)
        (folder / cache.MANIFEST).write_text(text)
        age(folder, 31)
    assert len(pruned()) == 3


def test_a_pack_goes_with_the_last_that_names_it(cache_dir: Path) -> None:
    publish("cf_pack_1-0-0", days=50, current=False)
    first = publish("cf_a-0-0", days=50, current=False, library="../cf_pack_1-0-0/k.so")
    second = publish("cf_b-0-0", days=5, current=False, library="../cf_pack_1-0-0/k.so")
    assert pruned() == {first.name}
    age(second, 50)
    going = prune.removable(30)
    again = publish("cf_c-0-0", days=0, current=True, library="../cf_pack_1-0-0/k.so")
    removed = {item.path.name for item in going if prune.remove(item)}
    assert second.name in removed
    assert "cf_pack_1-0-0" not in removed
    age(again, 50)
    assert pruned() == set()  # it is of this version, and so is what it names
    shutil.rmtree(again)
    assert pruned() == {"cf_pack_1-0-0"}


def test_what_is_being_built_stays(cache_dir: Path) -> None:
    publish("cf_old-0-0", days=31, current=False)
    killed = cache_dir / "building" / "cf_old-0-0.0123abcd"
    killed.mkdir()
    with held("cf_old-0-0"):
        assert pruned() == set()
        assert killed.is_dir()
    assert pruned() == {"cf_old-0-0", killed.name}


def test_what_failed_builds_and_damage_left(cache_dir: Path) -> None:
    for name, days in (("cf_old", 31), ("cf_new", 1)):
        folder = cache_dir / "failed" / name
        folder.mkdir(parents=True)
        (folder / "build.log").write_text("error")
        age(folder, days)
        put_aside = cache_dir / "quarantine" / f"{name}-0-0.{int((time.time() - days * DAY) * 1e9)}"
        put_aside.mkdir(parents=True)
    removed = pruned()
    assert {name.partition(".")[0] for name in removed} == {"cf_old", "cf_old-0-0"}
    assert [i.kind for i in prune.items()] == ["failed build", "damaged entry"]


def test_a_build_says_of_which_version_it_is(
    cache_dir: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SimpleNamespace(name="cf_fake", text=_INCLUDE + SOURCE.text, plan=None)
    build(source)

    def current() -> bool:
        (entry,) = (item for item in prune.items() if item.kind == "kernel")
        return entry.current

    assert current()
    with monkeypatch.context() as patch:
        patch.setattr(headers, "_read", lambda header: "// changed")
        assert not current()
    with monkeypatch.context() as patch:
        patch.setattr(prune, "toolchain", lambda: (SimpleNamespace(version="1.1"), TOOLS[1]))
        assert not current()

    def missing() -> None:
        raise ToolchainError("nvcc", (), "install it")

    monkeypatch.setattr(prune, "toolchain", missing)
    assert current()  # what any compiler made serves
    assert MODULE.find_built(source) is not None


def test_a_binding_of_other_sources(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in (binding.entry(), f"{binding.NAME}-0-0"):
        with cache.locked(entry, lambda: None), cache.private_folder(entry) as folder:
            (folder / "lib.so").touch()
            manifest = {"name": binding.NAME, "library": "lib.so"}
            cache.publish(entry, {"lib.so": folder / "lib.so"}, manifest)
        age(cache.entry_path(entry), 31)
    assert pruned() == {f"{binding.NAME}-0-0"}


def test_a_cache_that_cannot_be_written(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    publish("cf_old-0-0", days=31, current=False)
    (item,) = prune.removable(30)
    monkeypatch.setattr(prune.os, "replace", read_only)
    with pytest.raises(CacheError, match=r"cannot remove .*cf_old-0-0: .*Read-only file system"):
        prune.remove(item)


def test_no_cache_holds_nothing(cache_dir: Path) -> None:
    assert prune.items() == prune.removable(0) == []
    assert not cache_dir.exists()
