"""What doctor says of stats pages: where they are, and why none can be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    monkeypatch.delenv("PYALLOC_CONF", raising=False)
    return tmp_path / f"pyalloc-{os.geteuid()}"


def doctor(*arguments: str) -> str:
    """What it prints, in a process of its own: it chooses options and what is logged."""
    command = [sys.executable, "-m", "pyalloc", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout


def page_lines() -> list[str]:
    lines = doctor().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("stats page"))
    return lines[first : next(place for place, line in enumerate(lines) if line.startswith("options"))]


def test_where_pages_are(folder: Path) -> None:
    assert page_lines() == [f"stats page on: written to a file in {folder} (0 there now)"]
    (folder / "1-2-3").touch()
    facts = json.loads(doctor("--json"))["stats_page"]
    assert facts == {"state": "on", "folder": str(folder), "page": None, "pages": 1}


@pytest.mark.parametrize("option", ["stats_page:off", "maintenance:off"])
def test_where_none_is_written(folder: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYALLOC_CONF", option)
    assert page_lines() == [f"stats page off: not written; those of other programs are in {folder} (0 there now)"]
    assert not folder.exists()


def test_why_none_can_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    head, problem = page_lines()
    assert head == f"stats page on: written to a file in {folder}"
    assert problem.strip().startswith(f"PROBLEM: {folder} is not a folder of user")


def test_a_wrong_option_is_said_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYALLOC_CONF", "slak:3")
    lines = doctor().splitlines()
    (line,) = (line for line in lines if "slak" in line)
    assert line.startswith("options  PROBLEM: unknown option 'slak'; the nearest is 'slack'")
    what = "as the options will say; those of other programs are in"
    assert f"stats page unknown: {what} {folder} (0 there now)" in lines
    assert any(line.startswith("instrument unknown: ") for line in lines)
    report = json.loads(doctor("--json"))
    assert [part for part, facts in report.items() if "slak" in str(facts)] == ["options"]
    assert not report["ready"]
