"""`pyalloc record`: allocations, uses on other streams and waits of a program, as rows the benchmarks read."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchlib.traces import ALLOC, FREE, RECORD, WAIT, read_trace
from conftest import Run

PROGRAM = """
import sys
from pyalloc.__main__ import main

sys.exit(main(["record", {arguments}]))
"""
SCRIPT = """\
import sys
import torch

first = torch.empty(1000, dtype=torch.uint8, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    second = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
side.wait_stream(torch.cuda.current_stream())
first.record_stream(side)
del first
torch.cuda.current_stream().wait_stream(side)
del second
assert sys.argv[1:] == ["--epochs", "3"], sys.argv
sys.exit({code})
"""


@pytest.mark.parametrize("trailing", [True, False])
def test_a_program_is_recorded(run_on_simgpu: Run, tmp_path: Path, trailing: bool) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "trace.csv.gz"
    script.write_text(SCRIPT.format(code=0))
    program = [str(script), "--epochs", "3"]
    arguments = [*program, "-o", str(trace)] if trailing else ["-o", str(trace), *program]
    done = run_on_simgpu(PROGRAM.format(arguments=", ".join(map(repr, arguments))))
    rows = list(read_trace(trace).unpacked())
    assert [(row[4], row[3], row[1]) for row in rows] == [
        (ALLOC, 0, 1000),
        (ALLOC, 1, 3 << 20),
        (WAIT, 1, 0),
        (RECORD, 1, 0),
        (FREE, 0, 0),
        (WAIT, 0, 0),
        (FREE, 0, 0),
    ]
    assert [row[2] for row in rows] == [0, 1, 0, 0, 0, 1, 1]  # blocks; of a wait: the stream waited for
    assert f"7 rows in {trace}" in done.stderr


def test_the_programs_exit_code_is_kept(run_on_simgpu: Run, tmp_path: Path) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "trace.csv"
    script.write_text(SCRIPT.format(code=7))
    arguments = ["-o", str(trace), str(script), "--epochs", "3"]
    done = run_on_simgpu(PROGRAM.format(arguments=", ".join(map(repr, arguments))), fails=True)
    assert done.returncode == 7
    assert read_trace(trace).count == 7


def test_a_file_that_cannot_be_written_is_named(run_on_simgpu: Run, tmp_path: Path) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "none" / "trace.csv"
    script.write_text(SCRIPT.format(code=0))
    done = run_on_simgpu(PROGRAM.format(arguments=f"'-o', {str(trace)!r}, {str(script)!r}"), fails=True)
    assert done.returncode == 2
    assert f"the trace cannot be written to {trace}" in done.stderr


@pytest.mark.parametrize("device", [4, -1])
def test_a_device_that_does_not_exist(run_on_simgpu: Run, tmp_path: Path, device: int) -> None:
    trace = tmp_path / "trace.csv"
    arguments = f"'--device', '{device}', '-o', {str(trace)!r}, '-c', 'pass'"
    done = run_on_simgpu(PROGRAM.format(arguments=arguments), fails=True)
    assert done.returncode == 2
    assert f"pyalloc: device {device}; expected 0 to 0\n" in done.stderr
    assert not trace.exists()


@pytest.mark.parametrize("command", ["run", "record"])
def test_a_program_with_options_of_its_own(run_on_simgpu: Run, tmp_path: Path, command: str) -> None:
    """Its error is its own, and says where its options belong."""
    output = ["-o", str(tmp_path / "trace.csv")] if command == "record" else []
    code = "import pyalloc; pyalloc.enable(slack=0.25)"
    program = f"import sys; from pyalloc.__main__ import main; sys.exit(main({[command, *output, '-c', code]!r}))"
    done = run_on_simgpu(program, fails=True)
    assert done.returncode == 1
    assert "StateError: pyalloc is already enabled with slack:" in done.stderr
    assert "(asked for 0.25)" in done.stderr
    assert "--conf of pyalloc run" in done.stderr
    assert "pyalloc: pyalloc" not in done.stderr
