"""The simulated GPU: unmodified CUDA builds of PyTorch run on it, on a machine that has no GPU.

    python -m pyalloc.simgpu --memory 24GiB --devices 2 train.py --epochs 1

or, in a program, before torch is imported:

    import pyalloc.simgpu
    simulation = pyalloc.simgpu.install(memory="24GiB", devices=2)
    import torch

Every allocation, copy, stream, event and graph is real; kernels do nothing, so computed values are meaningless: it
shows how a program uses memory, not what it computes. Processes started from the program inherit the simulation and
share its devices' memory.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import secrets
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from ._program import split_program
from ._simgpu_control import Simulation as Simulation
from .errors import ConfigError, LibraryError, PyallocError, StateError, how_to_install

VARIABLE = "PYALLOC_SIMGPU"
CUDA_MAJOR = "13"
MAX_DEVICES = 8
STREAM_MODES = ("immediate", "deferred", "timed")
# In this order each finds the ones it needs; all of them before torch, so that torch's calls are answered here.
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libsimgpu_runtime.so", "libsimgpu_libraries.so")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SMALLEST_DEVICE = 2 << 20


@dataclass(frozen=True)
class Settings:
    """What is simulated. `memory` is the bytes of each device."""

    memory: int
    devices: int = 1
    streams: str = "immediate"
    seed: int = 1
    oracle: bool = False

    def __post_init__(self) -> None:
        if self.memory < _SMALLEST_DEVICE:
            raise ConfigError(f"memory: {self.memory} bytes is too small; a device has at least 2MiB")
        if not 1 <= self.devices <= MAX_DEVICES:
            raise ConfigError(f"devices: {self.devices} is not possible; expected 1 to {MAX_DEVICES}")
        if self.streams not in STREAM_MODES:
            raise ConfigError(f"streams: {self.streams!r} is unknown; expected {', '.join(STREAM_MODES)}")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed: {self.seed} is not possible; expected a whole number from 0, below 2**64")

    def text(self) -> str:
        """The value of PYALLOC_SIMGPU, without the session."""
        oracle = "on" if self.oracle else "off"
        return f"memory:{self.memory},devices:{self.devices},streams:{self.streams},seed:{self.seed},oracle:{oracle}"


def parse_size(text: str | int) -> int:
    """Bytes in "24GiB", "512MiB", "80GB" or "1073741824". Raises ConfigError for anything else."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{text!r} is not a size; expected a number and a unit, such as 24GiB, 512MiB or 80GB")
    return int(float(match.group(1)) * unit)


def library_directory() -> Path:
    """The folder with the stand-in libraries: PYALLOC_SIMGPU_LIBS if set (for developers), else inside this package."""
    from . import __path__ as package_path

    override = os.environ.get("PYALLOC_SIMGPU_LIBS")
    candidates = [Path(override)] if override else [Path(place) / "simgpu_libs" for place in package_path]
    for candidate in candidates:
        if all((candidate / name).is_file() for name in LIBRARIES):
            return candidate.resolve()
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise LibraryError(f"the simulated GPU's libraries are not in {looked}; {how_to_install()}")


def active() -> bool:
    """Whether this process runs on the simulated GPU."""
    return VARIABLE in os.environ and _loaded_driver() is not None


def simulation() -> Simulation:
    """The control of the simulation this process runs on. Raises StateError when there is none."""
    driver = _loaded_driver()
    if driver is None:
        raise StateError("no GPU is simulated here; start with python -m pyalloc.simgpu or call simgpu.install()")
    return Simulation(driver)


def install(
    memory: str | int = "80GiB", devices: int = 1, streams: str = "immediate", seed: int = 1, oracle: bool = False
) -> Simulation:
    """Simulates GPUs in this process and in those it starts; call it before torch is imported.

    memory   of each device, as "24GiB" or in bytes
    devices  1 to 8
    streams  when work is done: "immediate", as it is enqueued; "deferred", later in an order chosen by `seed`; "timed",
             on a virtual clock
    oracle   check that freed memory is not reused before the work that used it (see Simulation.violations)

    Calling it again with the same settings does nothing. Raises ConfigError for settings that make no sense,
    StateError when torch or a real driver is loaded already or other settings are in force, LibraryError when torch
    is not a CUDA 13 build or parts of the simulation are missing.
    """
    settings = Settings(parse_size(memory), devices, streams, seed, oracle)
    if active():
        current = os.environ[VARIABLE].partition(",session:")[0]
        if current != settings.text():
            raise StateError(f"the simulation already runs with {current}; {settings.text()} was asked for")
        return simulation()
    if "torch" in sys.modules:
        raise StateError(
            "torch is already imported and bound to the real CUDA runtime; call pyalloc.simgpu.install() before it"
        )
    if _loaded_library("libcuda.so.1") is not None:
        raise StateError("a real CUDA driver is already loaded; call pyalloc.simgpu.install() before what loads it")
    os.environ.update(environment(settings))
    for name in LIBRARIES:
        ctypes.CDLL(str(library_directory() / name), mode=ctypes.RTLD_GLOBAL)
    return simulation()


def environment(settings: Settings) -> dict[str, str]:
    """The variables a process must start with to run on the simulated GPU. Raises LibraryError when it cannot."""
    problem = _torch_problem()
    if problem is not None:
        raise LibraryError(problem)
    directory = library_directory()
    if re.search(r"[\s:;$]", str(directory)):
        raise LibraryError(
            f"{directory}: LD_PRELOAD takes no spaces, colons or '$' in a path; install pyalloc elsewhere"
        )
    ours = [str(directory / name) for name in LIBRARIES]
    others = [path for path in re.split(r"[\s:]+", os.environ.get("LD_PRELOAD", "")) if path and path not in ours]
    return {
        VARIABLE: f"{settings.text()},session:{os.getpid()}-{secrets.token_hex(4)}",
        "LD_PRELOAD": ":".join([*ours, *others]),
        # so that Triton finds the simulated driver
        "TRITON_LIBCUDA_PATH": str(directory),
    }


def _torch_problem() -> str | None:
    """Why the torch on the path cannot be simulated for, learnt without importing it. None: it can, or is absent."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    cuda = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", text, re.MULTILINE)
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    name = f"torch {version.group(1) if version else '(unknown version)'}"
    wanted = f"the simulated GPU needs a torch built for CUDA {CUDA_MAJOR}, such as PyPI's for Linux"
    if cuda is None:
        return f"{name} is built without CUDA; {wanted}"
    if cuda.group(1).split(".")[0] != CUDA_MAJOR:
        return f"{name} is built for CUDA {cuda.group(1)}; {wanted}"
    return None


def _loaded_library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def _loaded_driver() -> ctypes.CDLL | None:
    driver = _loaded_library("libcuda.so.1")
    return driver if driver is not None and hasattr(driver, "simgpu_present") else None


_EXAMPLES = """\
examples:
  python -m pyalloc.simgpu train.py --epochs 1                     one 80 GiB device
  python -m pyalloc.simgpu --memory 24GiB --devices 2 serve.py     two devices of 24 GiB
  python -m pyalloc.simgpu -m torch.distributed.run --nproc-per-node 2 train.py
  python -m pyalloc.simgpu --memory 8GiB -c "import torch; print(torch.cuda.mem_get_info())"
  python -m pyalloc.simgpu --streams deferred --seed 7 --oracle test.py

The exit code is the program's; 2 when these arguments are wrong, 1 when the simulation cannot start.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pyalloc.simgpu",
        usage="%(prog)s [options] (script.py | -m module | -c code) [arguments of the program]",
        description="Run a Python program on simulated GPUs, PyTorch unchanged. Kernels do nothing; memory is real.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--memory", default="80GiB", metavar="SIZE", help="memory of each device (default: %(default)s)"
    )
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="how many devices, 1 to 8 (default: %(default)s)"
    )
    parser.add_argument(
        "--streams",
        choices=STREAM_MODES,
        default="immediate",
        help="when work is done: at once, later in a seeded order, or on a virtual clock (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of that order (default: %(default)s)")
    parser.add_argument("--oracle", action="store_true", help="check that memory is not reused too early")
    return parser


def _interpreter_options() -> list[str]:
    """Options given to this interpreter before -m pyalloc.simgpu, such as -u or -X."""
    before = sys.orig_argv[1:]
    for index, word in enumerate(before):
        if word == "-m" or word == "-mpyalloc.simgpu":
            return before[:index]
    return []


def main(arguments: list[str] | None = None) -> NoReturn:
    """Replaces this process by Python running the program on the simulated GPU."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    options, program = split_program(given, ("--memory", "--devices", "--streams", "--seed"))
    chosen = parser.parse_args(options)
    if not program:
        parser.error("no program to run; give a script, -m module or -c code")
    if program[0] in ("-m", "-c") and len(program) == 1:
        parser.error(f"{program[0]} needs a {'module' if program[0] == '-m' else 'program text'}")
    if re.fullmatch(r"python[\d.]*", Path(program[0]).name) and not Path(program[0]).exists():
        parser.error(
            f"there is no file {program[0]!r}; python -m pyalloc.simgpu takes the place of python, as in: "
            "python -m pyalloc.simgpu -m pyalloc run script.py"
        )
    try:
        settings = Settings(parse_size(chosen.memory), chosen.devices, chosen.streams, chosen.seed, chosen.oracle)
    except ConfigError as error:
        parser.error(str(error))
    try:
        variables = {**os.environ, **environment(settings)}
    except PyallocError as error:
        sys.exit(f"pyalloc.simgpu: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *_interpreter_options(), *program], variables)


if __name__ == "__main__":
    main()
