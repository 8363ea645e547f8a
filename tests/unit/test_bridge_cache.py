"""The bridge's cache, with a compiler of our own that is quick, counts its runs, and fails when told to."""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

import pyalloc
from pyalloc import bridge_build, bridge_cache
from pyalloc.cuda_headers import CudaHeaders

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "fake c++ ${FAKE_VERSION:-1}"; exit 0; fi
echo run >> "$FAKE_RUNS"
[ -n "$LD_PRELOAD" ] && echo "preloaded" >> "$FAKE_RUNS"
[ -n "$FAKE_DELAY" ] && sleep "$FAKE_DELAY"
[ -n "$FAKE_FAILS" ] && { echo "some context"; echo "bridge.cpp:1: error: no such thing"; exit 1; }
while [ "$1" != -o ]; do shift; done
echo "a library" > "$2"
"""


class Workshop:
    """A cache, a compiler and a target in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.runs_file = folder / "runs"
        self.compiler = folder / "fake-c++"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)
        source = folder / "source"
        include = folder / "include"
        (include / "pyalloc").mkdir(parents=True)
        source.mkdir()
        (source / "bridge.cpp").write_text("int main() {}")
        self.environment = {
            "PYALLOC_CACHE": str(self.cache),
            "CXX": str(self.compiler),
            "FAKE_RUNS": str(self.runs_file),
        }
        facts = {"sources": "x", "torch": "2.99", "cxx11_abi": "1"}
        self.target = bridge_build.Target(
            bridge_build.Sources(source, include), folder / "torch", CudaHeaders(folder / "cuda", 13000), facts
        )

    def runs(self) -> list[str]:
        return self.runs_file.read_text().split() if self.runs_file.exists() else []


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bridge_build, "target", lambda: made.target)
    return made


def test_compiled_once_and_said(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyalloc"):
        first = bridge_build.ensure_bridge()
        second = bridge_build.ensure_bridge()
    assert (first.origin, second.origin) == ("compiled", "cached")
    assert first.path == second.path
    assert first.path.read_text() == "a library\n"
    assert workshop.runs() == ["run"]
    assert [
        record.message for record in caplog.records if "compiling the torch bridge for torch 2.99" in record.message
    ]
    record = json.loads((first.path.parent / bridge_cache.RECORD).read_text())
    assert record["facts"] == workshop.target.facts
    assert sorted(path.name for path in workshop.cache.iterdir()) == sorted([first.key, f"{first.key}.lock"])


def test_the_compiler_runs_without_what_this_process_preloads(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libsim.so")
    bridge_build.ensure_bridge()
    assert workshop.runs() == ["run"]


@pytest.mark.parametrize("damage", ["library changed", "library cut", "record missing", "record cut", "record other"])
def test_a_damaged_entry_is_built_again(workshop: Workshop, damage: str) -> None:
    bridge = bridge_build.ensure_bridge()
    record = bridge.path.parent / bridge_cache.RECORD
    if damage == "library changed":
        bridge.path.write_text("other bytes")
    elif damage == "library cut":
        bridge.path.write_text("a lib")
    elif damage == "record missing":
        record.unlink()
    elif damage == "record cut":
        record.write_text(record.read_text()[:20])
    else:
        record.write_text("[]")
    again = bridge_build.ensure_bridge()
    assert again.origin == "compiled"
    assert again.path.read_text() == "a library\n"
    assert workshop.runs() == ["run", "run"]
    assert bridge_build.ensure_bridge().origin == "cached"


def test_another_compiler_makes_another_entry(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bridge_build.ensure_bridge()
    monkeypatch.setenv("FAKE_VERSION", "2")
    second = bridge_build.ensure_bridge()
    assert first.key != second.key
    assert workshop.runs() == ["run", "run"]


@pytest.mark.parametrize("fact", ["sources", "torch", "torch_git", "cuda", "cxx11_abi", "flags"])
def test_another_torch_makes_another_entry(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    facts = {"sources": "x", "torch": "2.99", "torch_git": "abc", "cuda": "13.0", "cxx11_abi": "1", "flags": "-O2"}
    workshop.target = dataclasses.replace(workshop.target, facts=facts)
    first = bridge_build.ensure_bridge()
    workshop.target = dataclasses.replace(workshop.target, facts=facts | {fact: "other"})
    second = bridge_build.ensure_bridge()
    assert first.key != second.key
    # Nor is one of another torch taken for want of a compiler.
    workshop.target = dataclasses.replace(workshop.target, facts=facts | {fact: "third"})
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(pyalloc.BridgeError, match="is not a program"):
        bridge_build.ensure_bridge()


def test_a_cached_bridge_needs_no_compiler(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    built = bridge_build.ensure_bridge()
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert bridge_build.ensure_bridge() == bridge_build.Bridge(built.path, built.key, "cached")
    built.path.write_text("other bytes")
    with pytest.raises(pyalloc.BridgeError, match="CXX is '/nowhere/c\\+\\+', which is not a program"):
        bridge_build.ensure_bridge()


def _build_in_child(workshop: Workshop, results: multiprocessing.Queue[str]) -> None:
    os.environ.update(workshop.environment, FAKE_DELAY="0.5")
    bridge_build.target = lambda: workshop.target
    results.put(bridge_build.ensure_bridge().origin)


def test_two_processes_at_once_compile_once(workshop: Workshop) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    children = [context.Process(target=_build_in_child, args=(workshop, results)) for _ in range(3)]
    for child in children:
        child.start()
    origins = sorted(results.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert origins == ["cached", "cached", "compiled"]
    assert workshop.runs() == ["run"]


def test_a_failed_compilation_names_the_error_and_keeps_the_output(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(pyalloc.BridgeError, match=r"failed: bridge\.cpp:1: error: no such thing") as caught:
        bridge_build.ensure_bridge()
    (log,) = workshop.cache.glob("*.log")
    assert str(log) in str(caught.value)
    assert "some context" in log.read_text()
    monkeypatch.delenv("FAKE_FAILS")
    assert bridge_build.ensure_bridge().origin == "compiled"
    assert not list(workshop.cache.glob("*.log"))
    assert not list(workshop.cache.glob("making-*"))


def test_a_home_that_cannot_be_written(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYALLOC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/home")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bridge = bridge_build.ensure_bridge()
    assert bridge.path.parent.parent == tmp_path / f"pyalloc-{os.getuid()}"
    assert (tmp_path / f"pyalloc-{os.getuid()}").stat().st_mode & 0o077 == 0
    assert bridge_build.ensure_bridge().origin == "cached"


def test_a_shared_temporary_folder_of_someone_else_is_not_trusted(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYALLOC_CACHE", "/dev/null/cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trap = tmp_path / f"pyalloc-{os.getuid()}"
    trap.mkdir()
    trap.chmod(0o777)
    with pytest.raises(pyalloc.BridgeError, match="set PYALLOC_CACHE"):
        bridge_build.ensure_bridge()
    shutil.rmtree(trap)
    (tmp_path / "elsewhere").mkdir()
    trap.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(pyalloc.BridgeError, match="set PYALLOC_CACHE"):
        bridge_build.ensure_bridge()


def test_a_cache_that_can_only_be_read_is_used(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    built = bridge_build.ensure_bridge()
    monkeypatch.setattr(bridge_cache, "_can_write", lambda folder: False)
    assert bridge_build.ensure_bridge() == bridge_build.Bridge(built.path, built.key, "cached")
    built.path.write_text("other bytes")
    with pytest.raises(pyalloc.BridgeError, match="set PYALLOC_CACHE"):
        bridge_build.ensure_bridge()


def test_a_full_disk_is_a_reason_not_a_crash(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bridge_cache, "publish", full)
    with pytest.raises(pyalloc.BridgeError, match="No space left on device"):
        bridge_build.ensure_bridge()


def test_a_library_that_is_not_the_one_asked_for(workshop: Workshop) -> None:
    bridge = bridge_build.ensure_bridge()
    with pytest.raises(pyalloc.BridgeError, match="cannot load"):
        bridge_build.load_bridge(bridge)
