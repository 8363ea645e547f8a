"""tools/gpu_check.py says at once what it lacks."""

from __future__ import annotations

import subprocess
import sys
import time
import venv
from pathlib import Path

from support import ROOT


def test_without_torch_it_says_so_at_once(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare")
    out = tmp_path / "gpu.json"
    python = tmp_path / "bare" / "bin" / Path(sys.executable).name
    command = [str(python), str(ROOT / "tools" / "gpu_check.py"), "--dry-run", "--out", str(out)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert time.monotonic() - started < 30
    lacks = f"gpu_check: nothing was checked: {python} lacks pyalloc, torch, pytest, hypothesis\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", lacks)
    assert not out.exists()
