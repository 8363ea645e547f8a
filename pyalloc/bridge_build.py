"""Compiles the torch bridge against the installed torch, once, and loads it.

A cache entry is a folder named by a key over everything the result depends on: the sources, torch's version and git
revision, the CUDA headers, the ABI flag, the compiler and the flags. It is built under a file lock in a folder of
its own and then renamed, so a reader sees a whole entry or none; an entry whose digest does not fit is built again.
Nothing here touches CUDA.
"""

import ctypes
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import _native, bridge_cache, errors
from .cuda_headers import CudaHeaders, find_cuda_headers

_log = logging.getLogger("pyalloc")

FLAGS: Final = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_COMPILE_TIMEOUT_S: Final = 900


@dataclass(frozen=True)
class Sources:
    """The bridge's C++ sources and the folder that holds pyalloc/pyalloc.h."""

    folder: Path
    include: Path

    def digest(self) -> str:
        digest = hashlib.sha256()
        for root in (self.folder, self.include / "pyalloc"):
            for path in sorted(root.rglob("*")):
                if path.suffix in (".h", ".cpp", ".def"):
                    digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()


@dataclass(frozen=True)
class Bridge:
    """A bridge ready to load, and how it came: "cached" or "compiled"."""

    path: Path
    key: str
    origin: str


def sources() -> Sources:
    """The bridge's sources: a checkout's own, so that an editable install follows them, else the package's copy. Raises
    BridgeError.
    """
    checkout = Path(__file__).resolve().parent.parent / "allocator_cpp"
    if (checkout / "torch_bridge" / "bridge.cpp").is_file():
        return Sources(checkout / "torch_bridge", checkout / "include")
    packaged = _native.package_file("torch_bridge")
    if packaged is not None:
        return Sources(packaged, packaged / "include")
    raise errors.BridgeError("the bridge's sources (torch_bridge/) are not in the package: install pyalloc again")


def find_compiler() -> list[str]:
    """The C++ compiler as a command: $CXX, else the first of c++, g++ and clang++. Raises BridgeError."""
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        command = shlex.split(chosen)
        if shutil.which(command[0]) is None:
            raise errors.BridgeError(
                f"CXX is {chosen!r}, which is not a program; expected a C++20 compiler such as g++"
            )
        return command
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name) is not None:
            return [name]
    raise errors.BridgeError("no C++ compiler found (c++, g++, clang++); install one, or set CXX")


def _compiler_version(command: list[str]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, env=_clean_environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise errors.BridgeError(f"the C++ compiler {shlex.join(command)!r} does not run: {error}") from error
    return done.stdout.split("\n", 1)[0].strip()


def _clean_environment() -> dict[str, str]:
    """The environment without what simgpu or a debugger preloads into this process: the compiler needs none of it."""
    return {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "PYALLOC_SIMGPU")}


@dataclass(frozen=True)
class Target:
    """Everything a bridge depends on apart from the compiler."""

    sources: Sources
    torch_folder: Path
    headers: CudaHeaders
    facts: dict[str, str]

    def key(self, compiler: str) -> str:
        text = json.dumps({**self.facts, "compiler": compiler}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def target() -> Target:
    """What to compile, and against what. Raises BridgeError when torch has no CUDA or its CUDA headers are missing."""
    import torch

    if torch.version.cuda is None:
        raise errors.BridgeError(f"torch {torch.__version__} is not a CUDA build")
    folder = Path(torch.__file__).resolve().parent
    on_disk = _git_version_on_disk(folder)
    if on_disk not in (None, torch.version.git_version):
        raise errors.BridgeError(
            f"{folder} has been replaced since torch {torch.__version__} was imported from it, and its headers are of "
            "another torch; start the program again"
        )
    headers = find_cuda_headers(torch.version.cuda, folder)
    found = sources()
    facts = {
        "sources": found.digest(),
        "torch": str(torch.__version__),
        "torch_git": str(torch.version.git_version),
        "cuda": str(torch.version.cuda),
        "cuda_headers": str(headers.version),
        "crt_shim": str(headers.needs_shim),
        "cxx11_abi": str(int(torch._C._GLIBCXX_USE_CXX11_ABI)),
        "flags": " ".join(FLAGS),
    }
    return Target(found, folder, headers, facts)


def _git_version_on_disk(torch_folder: Path) -> str | None:
    """The revision of the torch whose files lie there, which an installation may have replaced under a program that
    runs. None when it cannot be told.
    """
    try:
        text = (torch_folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^git_version\b[^=]*=\s*['\"](\w+)['\"]", text, re.MULTILINE)
    return found.group(1) if found else None


def compile_command(goal: Target, compiler: list[str], key: str, output: Path) -> list[str]:
    """The compiler's command line. The libraries are named so that loading finds the ones torch has loaded already."""
    includes = [goal.torch_folder / "include", goal.headers.include]
    if goal.headers.needs_shim:
        includes.append(goal.sources.folder / "crt_shim")
    return [
        *compiler,
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={goal.facts['cxx11_abi']}",
        f'-DPYALLOC_BRIDGE_KEY="{key}"',
        *(f"-isystem{path}" for path in includes),
        f"-I{goal.sources.folder}",
        f"-I{goal.sources.include}",
        str(goal.sources.folder / "bridge.cpp"),
        "-o",
        str(output),
        f"-L{goal.torch_folder / 'lib'}",
        "-Wl,--no-as-needed",
        "-lc10",
        "-lc10_cuda",
        "-ltorch_cpu",
        "-ltorch_cuda",
    ]


def ensure_bridge() -> Bridge:
    """The bridge for the installed torch, from the cache or compiled now. Raises BridgeError with the reason."""
    goal = target()
    try:
        compiler = find_compiler()
        version = _compiler_version(compiler)
    except errors.BridgeError:
        entry = bridge_cache.find_like(goal.facts)
        if entry is None:
            raise
        return Bridge(entry / bridge_cache.LIBRARY, entry.name, "cached")
    key = goal.key(f"{shlex.join(compiler)} {version}")
    entry = bridge_cache.find(key)
    if entry is not None:
        return Bridge(entry / bridge_cache.LIBRARY, key, "cached")
    try:
        with bridge_cache.making(key) as (folder, made_meanwhile):
            if made_meanwhile is not None:
                return Bridge(made_meanwhile / bridge_cache.LIBRARY, key, "cached")
            _log.warning("compiling the torch bridge for torch %s (once, about 10 s)", goal.facts["torch"])
            started = time.monotonic()
            command = compile_command(goal, compiler, key, folder / bridge_cache.LIBRARY)
            output = _run_compiler(command, bridge_cache.log_path(key), folder)
            facts = {"facts": goal.facts, "compiler": version, "command": command, "output": output}
            entry = bridge_cache.publish(key, folder, {**facts, "seconds": round(time.monotonic() - started, 1)})
    except OSError as error:
        raise errors.BridgeError(f"cannot keep the compiled bridge: {error}") from error
    return Bridge(entry / bridge_cache.LIBRARY, key, "compiled")


def _run_compiler(command: list[str], log: Path, folder: Path) -> str:
    """Runs the compiler and returns what it said; on failure that is kept in `log`, which the BridgeError names."""
    environment = {**_clean_environment(), "TMPDIR": str(folder.parent)}
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise errors.BridgeError(f"the C++ compiler did not run: {error}") from error
    if done.returncode == 0:
        log.unlink(missing_ok=True)  # of an earlier failure
        return done.stdout
    log.write_text(f"$ {shlex.join(command)}\n{done.stdout}", encoding="utf-8")
    lines = done.stdout.splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else f"exit status {done.returncode}")
    raise errors.BridgeError(f"compiling the torch bridge failed: {first.strip()} (all of it: {log})")


def load_bridge(bridge: Bridge) -> ctypes.CDLL:
    """Loads a bridge into this process. Raises BridgeError when it does not fit the loaded torch."""
    try:
        loaded = ctypes.CDLL(str(bridge.path))
        loaded.pyalloc_bridge_key.restype = ctypes.c_char_p
        key = loaded.pyalloc_bridge_key()
    except (OSError, AttributeError) as error:
        raise errors.BridgeError(f"cannot load {bridge.path}: {error}") from error
    if key.decode() != bridge.key:
        raise errors.BridgeError(f"{bridge.path} was compiled for another torch; remove its folder to build it again")
    return loaded


def cuda_in_use(loaded: ctypes.CDLL) -> bool:
    """Whether torch's current allocator is initialised, after which torch refuses another."""
    return bool(loaded.pyalloc_bridge_cuda_in_use())


def install_bridge(loaded: ctypes.CDLL, api: int) -> None:
    """Makes pyalloc torch's CUDA allocator. Raises BridgeError with torch's reason; nothing has changed then."""
    loaded.pyalloc_bridge_install.argtypes = (ctypes.c_void_p,)
    loaded.pyalloc_bridge_install.restype = ctypes.c_char_p
    message = loaded.pyalloc_bridge_install(api)
    if message is not None:
        raise errors.BridgeError(message.decode(errors="replace"))
