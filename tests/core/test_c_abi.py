"""The C ABI from outside the library, each program of abi_programs.py in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from abi_programs import PROGRAMS
from support import need

import pyalloc
from pyalloc import _native, simgpu


@pytest.mark.parametrize("name", [program.__name__ for program in PROGRAMS])
def test_c_abi(name: str) -> None:
    try:
        _native.library_path()
        simgpu.library_directory()
    except pyalloc.LibraryError as error:
        need(False, str(error))
    program = Path(__file__).with_name("abi_programs.py")
    run = subprocess.run([sys.executable, str(program), name], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
