"""Runs jobs in processes of their own, one after the other, from the side of the benchmark that asks for them.

A server process (worker.py) starts with the simulated GPU's libraries preloaded and imports torch once; each job runs
in a child it forks, before CUDA or an allocator is touched: each is fresh, and none pays for the import.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pyalloc.errors import PyallocError
from pyalloc.simgpu import Settings, environment

from .errors import BenchError

ALLOCATORS = ("pyalloc", "native", "expandable")
ALL = "all allocators"  # of a job whose options name them
_WORKER = Path(__file__).with_name("worker.py")
_START_SECONDS = 600  # the first start compiles


class Workers:
    """The server; use it in a `with` block. run() is not for several threads."""

    def __init__(self, simulated: bool = True) -> None:
        variables = dict(os.environ)
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYALLOC_CONF"):
            variables.pop(name, None)  # each job chooses
        variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # running out of memory is a result here, not an event
        if simulated:
            try:
                variables |= environment(Settings(memory=1 << 30))
            except PyallocError as error:
                raise BenchError(f"the simulated GPU cannot be used: {error}") from error
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.facts: dict[str, Any] = self._answer(_START_SECONDS)  # versions of torch and pyalloc

    def run(self, kind: str, allocator: str, options: Mapping[str, Any], seconds: float = 300) -> dict[str, Any]:
        """The result of one job (jobs: worker.py) on one allocator. Raises BenchError when it fails, crashes or takes
        longer.
        """
        if allocator not in (*ALLOCATORS, ALL):
            raise BenchError(f"allocator {allocator!r} is unknown; expected {', '.join(ALLOCATORS)}")
        job = {"kind": kind, "allocator": allocator, "options": dict(options), "seconds": seconds}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BenchError("the worker process is gone; its output above says why") from error
        return self._answer(seconds + 30)

    def _answer(self, seconds: float) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(seconds):
                self._process.kill()
                raise BenchError(f"no answer from the worker process in {seconds:.0f} s")
        line = output.readline()
        if not line:
            code = self._process.wait()
            raise BenchError(f"the worker process ended with exit code {code}; its output above says why")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(str(answer["error"]))
        return answer

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
