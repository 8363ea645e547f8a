"""Compiles native/*.cpp against the installed torch, once, exactly as pyalloc compiles its bridge.

The compiler, torch's and CUDA's headers, the flags and the cache's folder are those of pyalloc.bridge_build; only the
sources differ. Imports torch.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from pyalloc import bridge_build
from pyalloc.errors import BridgeError

from .errors import BenchError

FOLDER = Path(__file__).resolve().parents[1] / "native"
_HEADERS = FOLDER.parents[2] / "allocator_cpp"  # simgpu/simgpu.h
_PRELOADED = ("LD_PRELOAD", "PYALLOC_SIMGPU")  # means nothing to a compiler


def ensure_library() -> Path:
    """The benchmarks' library, from the cache or compiled now (about a minute). Raises BenchError with the reason."""
    try:
        goal = bridge_build.target()
        compiler = bridge_build.find_compiler()
        cache = bridge_build.cache_folder()
    except BridgeError as error:
        raise BenchError(f"the benchmarks' native code cannot be compiled: {error}") from error
    sources = sorted(FOLDER.glob("*.cpp"))
    digest = hashlib.sha256(shlex.join(compiler).encode())
    for path in [*sources, *sorted(FOLDER.glob("*.h")), _HEADERS / "simgpu" / "simgpu.h"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    library = cache / f"bench-{goal.key(digest.hexdigest())}.so"
    if library.is_file():
        return library
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache) as scratch:
        output = Path(scratch, library.name)
        command = bridge_build.compile_command(goal, compiler, "bench", output)
        bridge = command.index(str(goal.sources.folder / "bridge.cpp"))
        command[bridge : bridge + 1] = [f"-I{_HEADERS}", *map(str, sources)]
        environment = {name: value for name, value in os.environ.items() if name not in _PRELOADED}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            raise BenchError(f"compiling the benchmarks failed: {shlex.join(command)}\n{done.stderr.strip()[:4000]}")
        output.rename(library)  # whole or not at all, also when another process did the same
    return library
