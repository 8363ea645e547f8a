"""The examples run as a user would run them, on the simulated GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, need

EXAMPLES = ROOT / "examples"


def run(arguments: list[str], folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs python in an empty folder, so that the installed pyalloc is used and not the sources."""
    command = [sys.executable, *arguments]
    finished = subprocess.run(
        command, cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "FutureWarning" not in finished.stderr, finished.stderr
    return finished


def test_enable(tmp_path: Path) -> None:
    arguments = ["-m", "pyalloc.simgpu", "--memory", "8GiB", str(EXAMPLES / "01_enable.py")]
    assert run(arguments, tmp_path).stdout == "4,194,304 bytes allocated by pyalloc\n"


def test_serve_trace_small(tmp_path: Path) -> None:
    arguments = [str(EXAMPLES / "serve_trace.py"), "--simulate", "--model", "small", "--requests", "8", "--json"]
    report = json.loads(run([*arguments, "--memory", "4GiB"], tmp_path).stdout.splitlines()[-1])
    pyalloc, native = report["pyalloc"], report["native"]
    # The first eight requests of the trace: 3,913 prompt tokens and 550 output tokens, the last of each never fed back.
    assert pyalloc["tokens"] == native["tokens"] == 3913 + 550 - 8
    assert pyalloc["requests"] == native["requests"] == 8
    assert pyalloc["steps"] == native["steps"]
    weights = 2 * (2 * 32000 * 512 + 4 * (4 * 512 * 512 + 3 * 512 * 1408))
    for one in (pyalloc, native):
        assert weights < one["live_peak_bytes"] <= one["reserved_peak_bytes"] <= 4 << 30
        assert one["driver_calls"] > 0
        assert one["ns_per_op"] > 0
    # Both served the same tensors.
    assert pyalloc["live_peak_bytes"] == native["live_peak_bytes"]


def test_serve_trace_refuses_more_than_the_trace_holds(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "serve_trace.py"), "--requests", "1001"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 2
    assert "--requests 1001: expected 1 to 1000" in finished.stderr


def on_simgpu(name: str, memory: str, folder: Path, bridge: str) -> subprocess.CompletedProcess[str]:
    """Runs an example on the simulated GPU, with the bridge that PYALLOC_CONF names."""
    command = ["-m", "pyalloc.simgpu", "--memory", memory, str(EXAMPLES / name)]
    return run(command, folder, {"PYALLOC_CONF": f"bridge:{bridge}"})


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_pools(tmp_path: Path, bridge: str) -> None:
    lines = [line.split() for line in on_simgpu("02_pools.py", "8GiB", tmp_path, bridge).stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == ["general", "weights", "kv", "workspace", "lora"]
    assert lines[2] == ["weights", "24", "50,331,648", "50,331,648", "-"]
    assert lines[3] == ["kv", "1", "50,331,648", "50,331,648", "1,073,741,824"]


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_lora(tmp_path: Path, bridge: str) -> None:
    assert on_simgpu("03_lora.py", "2GiB", tmp_path, bridge).stdout.splitlines() == [
        "10 adapters of 4 MiB loaded with 0 driver calls",
        "one of 160 MiB, prepared for, with 0",
        "overflows: 0",
    ]


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_oom(tmp_path: Path, bridge: str) -> None:
    done = on_simgpu("04_oom.py", "1GiB", tmp_path, bridge)
    lines = done.stdout.splitlines()
    assert lines[0].endswith("dropped a prefix of 134,217,728")
    assert "served; 5 prefixes are left" in lines
    assert lines[-1] == "{'capacity': 1, 'limit': 0, 'fragmentation': 0, 'pinned': 0}"
    # Without the bridge torch cannot be told: the message goes to standard error, and nothing is raised.
    said, quiet = (done.stderr, done.stdout) if bridge == "off" else (done.stdout, done.stderr)
    first = next(at for at, line in enumerate(said.splitlines()) if "CUDA out of memory" in line)
    message = said.splitlines()[first:]
    assert "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 1.00 GiB" in message[0]
    assert "CUDA out of memory" not in quiet
    assert message[1].startswith("Reason: capacity, ")
    assert any(one.startswith("Next step: ") for one in message)


def test_transformers(tmp_path: Path) -> None:
    for name in ("transformers", "peft"):
        need(find_spec(name), f"{name} is not installed")
    lines = [line.split() for line in on_simgpu("06_transformers.py", "2GiB", tmp_path, "require").stdout.splitlines()]
    found = {line[0]: (int(line[1]), line[3]) for line in lines}
    layer = 2 * 512 * 512 + 2 * 512 * 512 + 3 * 512 * 1024 + 2 * 512  # q, k, v, o; the MLP; its norms
    parameters = 2 * (2 * 4096 * 512 + 4 * layer + 512)
    frequencies = 2 * 2 * 32  # two buffers of the rotary embedding
    assert found["weights"] == (2 + 4 * 9 + 1 + 2, f"{parameters + frequencies:,}")
    assert found["kv"] == (4 * 2, f"{4 * 2 * 2 * 512 * 109:,}")
    assert found["lora"] == (4 * 2 * 2, f"{4 * 4 * 2 * 2 * 512 * 16:,}")


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_sleep(tmp_path: Path, bridge: str) -> None:
    lines = on_simgpu("07_sleep.py", "2GiB", tmp_path, bridge).stdout.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "addresses kept: True"
    figures = {tuple(line.split(": ")[1].split(" bytes used awake, ")) for line in lines[:-1]}
    assert len(figures) == 1, lines  # the same in every cycle, for both engines
    awake, asleep = next(iter(figures))
    engine = 24 * 2048 * 2048 * 2 + 24 * 2 * 16384 * 256 * 2
    assert int(awake.replace(",", "")) - int(asleep.split()[0].replace(",", "")) == engine
