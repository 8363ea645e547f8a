"""What enable() costs a program: in a fresh interpreter, torch imported before and the bridge compiled before."""

from __future__ import annotations

import os
import subprocess
import sys

from pyalloc.errors import PyallocError
from pyalloc.simgpu import Settings, environment

from .errors import BenchError

_PROGRAM = """\
import time
import torch
started = time.perf_counter()
import pyalloc
pyalloc.enable(bridge="require")
print((time.perf_counter() - started) * 1e3)
"""


def enable_milliseconds() -> float:
    """Milliseconds from `import pyalloc` to the end of enable(). Raises BenchError."""
    variables = {name: value for name, value in os.environ.items() if name != "PYALLOC_CONF"}
    try:
        variables |= environment(Settings(memory=8 << 30))
    except PyallocError as error:
        raise BenchError(f"the simulated GPU cannot be used: {error}") from error
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"enable() failed: {done.stderr.strip()[-500:]}")
    return float(done.stdout)
