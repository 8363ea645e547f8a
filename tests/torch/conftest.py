"""Programs run on the simulated GPU, each in a process of its own, as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ON_DEVICE, need, on_device_command

from pyalloc.errors import PyallocError
from pyalloc.simgpu import Settings, environment

Run = Callable[..., subprocess.CompletedProcess[str]]

NATIVE = {"PYTORCH_ALLOC_CONF": ""}
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
PYALLOC = {"PYALLOC_CONF": "enable:True,bridge:require,lora_reserve:0"}

ENDED_BY_TORCH_AT_MOST = 5


def ended_by_torch(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether the program had ended and torch then aborted it, as it does with every allocator, on Python before 3.14.

    A thread of autograd may still hold the last of a backward pass when the main thread is through. To let go of it the
    thread wants the interpreter's lock, and Python ends threads that want it so late in the midst of torch's noexcept
    functions (pytorch#38228). One program in seven ends so on a machine that is busy enough; such a program is run
    again, and then waits at its end until that thread has had the time.
    """
    return done.returncode == -signal.SIGABRT and done.stderr.endswith("terminate called without an active exception\n")


@pytest.fixture
def run_on_simgpu(tmp_path: Path) -> Run:
    """run(program, memory=, devices=, streams=, seed=, oracle=, env=, args=, fails=, timeout=) -> CompletedProcess.

    `program` is Python text or the path of a script. It must exit with 0, or, with fails=True, with anything else.
    """
    need(find_spec("torch"), "torch is not installed")
    try:
        environment(Settings(memory=1 << 30))
    except PyallocError as error:
        need(False, str(error))

    def run(
        program: str | Path,
        memory: str = "8GiB",
        devices: int = 1,
        streams: str = "immediate",
        seed: int = 1,
        oracle: bool = False,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        fails: bool = False,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        script = program
        if isinstance(program, str):
            script = tmp_path / "program.py"
            script.write_text(textwrap.dedent(program))
        options = ["--memory", memory, "--devices", str(devices), "--streams", streams, "--seed", str(seed)]
        command = [
            sys.executable,
            "-m",
            "pyalloc.simgpu",
            *options,
            *(["--oracle"] if oracle else []),
            str(script),
            *args,
        ]
        if ON_DEVICE:
            command = [*on_device_command(script, devices, streams != "immediate" or oracle, env or {}), *args]
        for tries in range(ENDED_BY_TORCH_AT_MOST):
            if tries > 0 and isinstance(program, str):
                script.write_text(f"{script.read_text()}\nimport time\ntime.sleep({tries})\n")
            done = subprocess.run(
                command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout
            )
            if not ended_by_torch(done):
                break
        if (done.returncode != 0) != fails:
            raise AssertionError(f"exit code {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}")
        return done

    return run


@pytest.fixture(params=["native", "expandable", "pyalloc"])
def allocator(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The environment that selects an allocator: torch's own, the same with expandable segments, and pyalloc."""
    if request.param == "pyalloc":
        hooks = {hook.name for hook in entry_points(group="torch.backends")}
        need("pyalloc" in hooks, "pyalloc is not installed, only importable: its torch.backends hook is missing")
    return {"native": NATIVE, "expandable": EXPANDABLE, "pyalloc": PYALLOC}[request.param]
