"""Compiles native/*.cpp against the installed torch, once, exactly as pyalloc compiles its bridge.

The compiler, torch's and CUDA's headers, the flags and the cache are those of pyalloc.bridge_build; only the sources
differ. Imports torch.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

from pyalloc import bridge_build, bridge_cache
from pyalloc.errors import BridgeError

from .errors import BenchError

FOLDER = Path(__file__).resolve().parents[1] / "native"
_CORE = FOLDER.parents[2] / "allocator_cpp"  # for simgpu/simgpu.h
_PRELOADED = ("LD_PRELOAD", "PYALLOC_SIMGPU")  # means nothing to a compiler


def ensure_library() -> Path:
    """The benchmarks' library, from the cache or compiled now (half a minute). Raises BenchError with the reason."""
    try:
        goal = bridge_build.target()
        compiler = bridge_build.find_compiler()
        digest = _digest()
        key = goal.key(f"benchmarks {digest} {shlex.join(compiler)}")
        entry = bridge_cache.find(key)
        if entry is None:
            with bridge_cache.making(key) as (folder, entry):
                if entry is None:
                    command = bridge_build.compile_command(goal, compiler, key, folder / bridge_cache.LIBRARY)
                    _compile(command, str(goal.sources.folder / "bridge.cpp"))
                    entry = bridge_cache.publish(key, folder, {"facts": {"benchmarks": digest}, "command": command})
    except (BridgeError, OSError) as error:
        raise BenchError(f"the benchmarks' native code cannot be compiled: {error}") from error
    return entry / bridge_cache.LIBRARY


def _digest() -> str:
    digest = hashlib.sha256()
    for path in [*sorted(FOLDER.glob("*.cpp")), *sorted(FOLDER.glob("*.h")), _CORE / "simgpu" / "simgpu.h"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile(command: list[str], bridge_source: str) -> None:
    """Runs the bridge's command line on the benchmarks' sources instead of the bridge's."""
    at = command.index(bridge_source)
    command[at : at + 1] = [f"-I{_CORE}", *map(str, sorted(FOLDER.glob("*.cpp")))]
    environment = {name: value for name, value in os.environ.items() if name not in _PRELOADED}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise BenchError(f"compiling the benchmarks failed: {shlex.join(command)}\n{done.stderr.strip()[:4000]}")
