"""Small C++ libraries for the tests, compiled against the installed torch as an extension would be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support import need


def include_flags(torch_include: Path) -> list[str]:
    """What a compiler needs to read torch's CUDA headers, as the bridge is compiled."""
    from pyalloc import bridge_build

    goal = bridge_build.target()
    folders = [torch_include, goal.headers.include]
    if goal.headers.needs_shim:
        folders.append(goal.sources.folder / "crt_shim")
    return [f"-isystem{folder}" for folder in folders]


def compile_calls(name: str, folder: Path, *flags: str) -> Path:
    """The library of `name`.cpp beside this file, made in `folder`; skips without a compiler."""
    import torch

    need(shutil.which("c++"), "needs a C++ compiler")
    home = Path(torch.__file__).parent
    library = folder / f"lib{name}.so"
    command = ["c++", "-std=c++20", "-shared", "-fPIC", *include_flags(home / "include"), *flags]
    command += [str(Path(__file__).with_name(f"{name}.cpp")), "-o", str(library), f"-L{home / 'lib'}"]
    command += ["-Wl,--no-as-needed", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda"]
    subprocess.run(command, check=True)
    return library
