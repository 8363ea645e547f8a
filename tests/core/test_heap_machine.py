"""Properties of the heap, found by hypothesis against a model: each configuration in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import need

import pyalloc
from pyalloc import _native, simgpu

PROGRAM = Path(__file__).with_name("heap_machine.py")


@pytest.mark.parametrize(
    ("simulation", "configuration"),
    [
        ("streams:immediate", "check:full"),
        ("streams:deferred,seed:7", ""),
        ("streams:deferred,seed:8", "cross_stream_wait:off,slack:0"),
        ("streams:deferred,seed:9", "guard:on"),
    ],
)
def test_heap_machine(simulation: str, configuration: str) -> None:
    try:
        _native.library_path()
        simgpu.library_directory()
    except pyalloc.LibraryError as error:
        need(False, str(error))
    examples = "30" if "guard" not in configuration else "10"
    run = subprocess.run(
        [sys.executable, str(PROGRAM), simulation, configuration, examples],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-6000:]
