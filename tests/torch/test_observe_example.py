"""examples/05_observe.py: its figures of fragmentation are those computed by hand, and its leak is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run
from support import ON_DEVICE, ROOT

EXAMPLE = ROOT / "examples" / "05_observe.py"


@pytest.mark.skipif(ON_DEVICE, reason="what moved where is the simulated GPU's")
@pytest.mark.parametrize("bridge", ["require", "off"])
def test_the_example(bridge: str, run_on_simgpu: Run, tmp_path: Path) -> None:
    done = run_on_simgpu(EXAMPLE, args=[str(tmp_path)], env={"PYALLOC_CONF": f"bridge:{bridge}"})
    lines = done.stdout.splitlines()
    # By hand: 64 blocks of 3 MiB end to end, every second one freed, over granules of 2 MiB. In each 6 MiB the first
    # granule is full, half of the second is free, and the third is idle.
    live, free, idle, partly = 32 * 3, 32 * 3, 32 * 2, 32 * 1
    by_hand = {
        "internal": 0,
        "external": 1 - 3 / free,
        "effective_external": 1 - idle / free,
        "granule": partly / (live + free),
    }
    assert lines[0] == f"32 blocks of {live << 20:,} bytes in {(live + free) << 20:,} reserved"
    assert lines[1:5] == [f"{kind:<18} {value:.4f}" for kind, value in by_hand.items()]
    text = EXAMPLE.read_text().splitlines()
    (handle_line,) = [number for number, line in enumerate(text, 1) if "for _ in range(8)]" in line]
    # Of 97 requests the first is in both snapshots.
    site = f", {EXAMPLE}:{handle_line} in handle" if bridge == "require" else ""
    assert lines[5] == f"+100,663,296 bytes, +96 blocks: kv, 512.00 KiB to 1.00 MiB, tag request-* (96 tags){site}"
    command = [sys.executable, "-m", "pyalloc", "diff", "before.json", "after.json", "--json"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    (grown,) = [one for one in json.loads(found.stdout)["changes"] if one["bytes"] > 0]
    assert (grown["bytes"], grown["kind"]["tag"], grown["kind"]["pool"]) == (96 << 20, "request-*", "kv")
    assert grown["kind"]["site"] == (site.removeprefix(", ") or None)
    assert (tmp_path / "memory.html").read_text().startswith("<!doctype html>")
