#!/usr/bin/env python3
"""Checks that the parts of the repository depend on each other in one direction only.

- allocator_cpp/src: a layer includes itself and the layers below it (LAYERS, lowest first), the public headers, and no
  header of CUDA, torch or Python;
- allocator_cpp/simgpu: itself, src/driver/cuda_abi.h and src/base;
- allocator_cpp/torch_bridge: itself and the public headers (pyalloc/...), besides what torch and CUDA bring;
- the top level of the repository holds what TOP_LEVEL names, and dot files;
- source files over 400 lines without a reason in LONG_FILES are named, as a warning, and so are reasons without need.

Exit code 1 when anything but a warning was found.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS = ("base", "facts", "driver", "vm", "stream", "heap", "reclaim", "view", "ipc", "api")
TOP_LEVEL_FOLDERS = {"allocator_cpp", "pyalloc", "tests", "examples", "tools"}
TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} | TOP_LEVEL_FOLDERS
IGNORED = {"build", "dist", "__pycache__"}  # what building and running leave behind
LONG_FILE = 400
LONG_FILES = {  # why these may be longer
    "allocator_cpp/include/pyalloc/pyalloc.h": "the whole C ABI is one header, with its reference",
    "allocator_cpp/src/heap/backing.cpp": "finding memory for a place, putting it there and undoing that share books",
    "allocator_cpp/src/heap/device_heap.h": "one class, whose code is in the files of this folder",
}
FOREIGN = re.compile(r"^(cuda|nvml|nvrtc|cublas|torch/|ATen/|c10/|Python\.h|pybind11/)")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
CPP_SUFFIXES = {".h", ".cpp", ".def"}


def includes(text: str) -> Iterator[tuple[int, str, bool]]:
    """Line number, name and whether it was quoted, of each include."""
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield line, match.group(1) or match.group(2), match.group(1) is not None


def resolve(cpp: Path, file: Path, name: str) -> str | None:
    """The included file relative to allocator_cpp, looked for as the compiler does, or None."""
    for folder in (file.parent, cpp / "src", cpp / "include", cpp / "simgpu", cpp):
        found = folder / name
        if found.is_file():
            return found.resolve().relative_to(cpp.resolve()).as_posix()
    return None


def complaint(source: str, target: str) -> str | None:
    """Why `source` may not include `target` (both relative to allocator_cpp), or None when it may."""
    part, inside = source.split("/")[0], target.split("/")
    if target.startswith(f"{part}/") and part != "src":
        return None
    if part == "src":
        if target.startswith("include/"):
            return None
        if inside[0] != "src":
            return f"the core includes nothing of {inside[0]}"
        own, other = source.split("/")[1], inside[1]
        for layer in (own, other):
            if layer not in LAYERS:
                return f"src/{layer} is no layer; the layers are {', '.join(LAYERS)}"
        if LAYERS.index(other) > LAYERS.index(own):
            return f"{own} is below {other}; includes go downward: {' < '.join(LAYERS)}"
        return None
    if part == "simgpu":
        allowed = target == "src/driver/cuda_abi.h" or target.startswith("src/base/")
        return None if allowed else "simgpu may include only its own files, driver/cuda_abi.h and base"
    if part == "torch_bridge":
        allowed = target.startswith("include/pyalloc/")
        return None if allowed else "torch_bridge may include only its own files and pyalloc/*.h"
    return None if target.startswith("include/") else "a public header may include only public headers"


def check_includes(root: Path) -> list[str]:
    """One line for each include that goes the wrong way."""
    cpp = root / "allocator_cpp"
    found = []
    for file in sorted(path for path in cpp.rglob("*") if path.suffix in CPP_SUFFIXES):
        source = file.relative_to(cpp).as_posix()
        for line, name, quoted in includes(file.read_text(encoding="utf-8")):
            target = resolve(cpp, file, name) if quoted else None
            if target is not None:
                why = complaint(source, target)
            elif FOREIGN.match(name) and not source.startswith("torch_bridge/"):
                why = "no CUDA, torch or Python header outside torch_bridge"
            else:
                why = f"no such file under {cpp.name}" if quoted and not source.startswith("torch_bridge/") else None
            if why:
                found.append(f"{cpp.name}/{source}:{line}: includes {name}: {why}")
    return found


def check_top_level(names: set[str]) -> list[str]:
    """One line for each name that does not belong at the top of the repository, or is missing there."""
    extra = sorted(
        name for name in names - TOP_LEVEL - IGNORED if not name.startswith(".") and not name.endswith(".egg-info")
    )
    wrong = [
        f"{name}: does not belong at the top level ({', '.join(sorted(TOP_LEVEL))} and dot files do)" for name in extra
    ]
    return wrong + [f"{name}: missing at the top level" for name in sorted(TOP_LEVEL - names)]


def tracked(root: Path) -> list[str]:
    """Every file git knows or would add, relative to the root; without git, every file that building did not leave."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        run = None
    if run is not None and run.returncode == 0:
        return [name for name in run.stdout.splitlines() if (root / name).is_file()]
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return [path.as_posix() for path in paths if not IGNORED & set(path.parts) and not path.parts[0].startswith(".")]


def long_files(root: Path, names: list[str]) -> list[str]:
    """One line for each source file over LONG_FILE lines that LONG_FILES has no reason for, and the other way round."""
    found = []
    for name in names:
        if name.endswith((".h", ".cpp", ".def", ".py", ".sh")):
            lines = (root / name).read_text(encoding="utf-8").count("\n")
            if lines > LONG_FILE and name not in LONG_FILES:
                found.append(f"{name}: {lines} lines (over {LONG_FILE} needs a reason, in LONG_FILES of this tool)")
            elif lines <= LONG_FILE and name in LONG_FILES:
                found.append(f"{name}: {lines} lines, so it needs no reason in LONG_FILES of this tool")
    return found


def main(root: Path) -> int:
    names = tracked(root)
    wrong = check_includes(root) + check_top_level({name.split("/")[0] for name in names})
    for line in long_files(root, names):
        print(f"warning: {line}")
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    print(f"check_layers: {len(wrong)} error{'' if len(wrong) == 1 else 's'} in {len(names)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent))
