"""The cache of built libraries, without a compiler: entries, damage, locks."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from comfuse.build import cache
from comfuse.errors import CacheError

ENTRY = "cf_kernel-0123-4567"


def publish(content: bytes = b"library", entry: str = ENTRY) -> cache.BuiltKernel:
    with cache.locked(entry, lambda: None), cache.private_folder(entry) as folder:
        (folder / "lib.so").write_bytes(content)
        return cache.publish(entry, {"k.so": folder / "lib.so"}, {"name": "k", "library": "k.so", "fact": 1})


def test_what_is_published_is_found(cache_dir: Path) -> None:
    assert cache.find(ENTRY) is None
    built = publish()
    found = cache.find(ENTRY)
    assert found == built
    assert found.name == "k"
    assert found.path == cache_dir / "kernels" / ENTRY / "k.so"
    assert found.path.read_bytes() == b"library"
    assert found.digest == cache.hash_file(found.path) == found.info["digest"]
    assert found.info["fact"] == 1
    assert not any((cache_dir / "building").iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "k.so").write_bytes(b"truncated"), id="library changed"),
        pytest.param(lambda folder: (folder / "k.so").unlink(), id="library gone"),
        pytest.param(lambda folder: (folder / cache.MANIFEST).write_text("{"), id="manifest cut off"),
        pytest.param(
            lambda folder: (folder / cache.MANIFEST).write_text("[]"), id="manifest of another kind"
        ),
        pytest.param(lambda folder: (folder / cache.MANIFEST).write_text("{}"), id="manifest empty"),
        pytest.param(lambda folder: (folder / cache.MANIFEST).unlink(), id="manifest gone"),
    ],
)
def test_a_damaged_entry_is_put_aside(
    cache_dir: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    damage(publish().path.parent)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING, logger="comfuse"):
        assert cache.find(ENTRY) is None
        assert cache.find(ENTRY) is None
    (quarantined,) = (cache_dir / "quarantine").iterdir()
    assert quarantined.name.startswith(ENTRY)
    (record,) = caplog.records
    assert record.getMessage().endswith(f"; moved to {quarantined}")  # whether it is built again is not known
    assert publish(b"again").path.read_bytes() == b"again"


def test_a_damaged_entry_that_cannot_be_put_aside(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    folder = publish().path.parent
    (folder / "k.so").write_bytes(b"truncated")
    monkeypatch.setattr(cache.os, "replace", read_only)
    with pytest.raises(CacheError, match=r"Read-only file system; delete it, or set COMFUSE_CACHE_DIR to a"):
        cache.find(ENTRY)


def test_any_entry_of_a_prefix_the_newest_first(cache_dir: Path) -> None:
    assert cache.find_any("cf_kernel-0123-") is None
    publish(b"old", "cf_kernel-0123-aaaa")
    publish(b"new", "cf_kernel-0123-bbbb")
    publish(b"other", "cf_kernel-9999-bbbb")
    os.utime(cache.entry_path("cf_kernel-0123-aaaa"), (1, 1))
    found = cache.find_any("cf_kernel-0123-")
    assert found is not None
    assert found.path.read_bytes() == b"new"
    found.path.write_bytes(b"damaged")
    found = cache.find_any("cf_kernel-0123-")
    assert found is not None
    assert found.path.read_bytes() == b"old"


def test_a_failed_build_leaves_nothing(cache_dir: Path) -> None:
    def fail() -> None:
        with cache.private_folder(ENTRY) as folder:
            (folder / "half.o").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not any((cache_dir / "building").iterdir())
    assert cache.find(ENTRY) is None


def test_what_a_killed_builder_left_is_removed(cache_dir: Path) -> None:
    left = cache_dir / "building" / f"{ENTRY}.dead"
    other = cache_dir / "building" / "cf_other-0-0.alive"
    left.mkdir(parents=True)
    other.mkdir()
    with cache.private_folder(ENTRY):
        assert not left.exists()
        assert other.exists()


def hold(entry: str, ready: object) -> None:
    with cache.locked(entry, lambda: None):
        ready.set()  # type: ignore[attr-defined]
        time.sleep(60)


def test_a_lock_goes_with_its_holder(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFUSE_BUILD_TIMEOUT", "0.3")
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=hold, args=(ENTRY, ready))
    holder.start()
    assert ready.wait(60)
    waits: list[int] = []
    with (
        pytest.raises(CacheError, match=r"did not finish within 0\.3 s \(COMFUSE_BUILD_TIMEOUT\)"),
        cache.locked(ENTRY, lambda: waits.append(1)),
    ):
        pass
    assert waits
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with cache.locked(ENTRY, lambda: None):
        pass


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMFUSE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="COMFUSE_CACHE_DIR"), cache.locked(ENTRY, lambda: None):
        pass


def test_manifests_are_readable(cache_dir: Path) -> None:
    manifest = json.loads((publish().path.parent / cache.MANIFEST).read_text())
    assert manifest["created"] == pytest.approx(time.time(), abs=60)
