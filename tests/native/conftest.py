"""Runs the native tests under pytest: each TEST(name) of each x_test.cpp is a test, run in a process of its own.

tools/test builds the programs in build/RelWithDebInfo/tests; PYALLOC_NATIVE_TESTS names another folder.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, need

CASE = re.compile(r"^TEST\((\w+)\)", re.MULTILINE)
TIMEOUT_S = 300


def programs() -> Path:
    return Path(os.environ.get("PYALLOC_NATIVE_TESTS") or ROOT / "build" / "RelWithDebInfo" / "tests")


class NativeFailure(Exception):
    """A case failed; holds what its program printed."""


class NativeCase(pytest.Item):
    def runtest(self) -> None:
        program = programs() / self.path.stem
        need(program.exists(), f"{program} is not built; tools/test builds it")
        if program.stat().st_mtime < self.path.stat().st_mtime:
            pytest.fail(f"{program} is older than {self.path.name}; tools/test builds it")
        try:
            run = subprocess.run([program, self.name], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as late:
            raise NativeFailure(f"no end after {TIMEOUT_S} s\n{late.stdout}\n{late.stderr}") from late
        if run.returncode != 0:
            raise NativeFailure(f"exit code {run.returncode}\n{run.stdout}{run.stderr}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:
        if isinstance(excinfo.value, NativeFailure):
            return f"{self.path.name} {self.name}: {excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.stem}::{self.name}"


class NativeFile(pytest.File):
    def collect(self) -> Iterator[NativeCase]:
        for name in CASE.findall(self.path.read_text(encoding="utf-8")):
            yield NativeCase.from_parent(self, name=name)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> NativeFile | None:
    return NativeFile.from_parent(parent, path=file_path) if file_path.name.endswith("_test.cpp") else None
