"""Runs every program of programs/ under one allocator and prints the results as JSON: run.py WAY LIBRARY.

Each program runs in a child that is forked before CUDA is in use, so that torch is imported once. As the other process
of a program that shares memory: run.py receive WAY.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import select
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from compatibility import program, programs  # noqa: F401  (the programs register themselves)

_SECONDS = 60


def enable(way: str) -> None:
    import pyalloc

    options: dict[str, Any] = {
        "bridge": {"bridge": "require"},
        "plain": {"bridge": "off"},
        "pools": {"mode": "pools"},
    }
    if way != "native" and not pyalloc.enable(lora_reserve=0, **options[way]):
        raise SystemExit("pyalloc is not in use")


def run(one: program.Program, way: str) -> dict[str, Any]:
    """What the program answers or raises, and the warnings that it causes; in this process."""
    import torch

    import pyalloc

    torch.cuda.init()
    result: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pyalloc.pool("kv") if way == "pools" else contextlib.nullcontext():
            try:
                result["answer"] = one.run()
            except Exception as error:
                result["error"] = str(error).splitlines()[0]
    result["warnings"] = sorted({str(one.message).splitlines()[0] for one in told if one.category is UserWarning})
    return result


def in_child(one: program.Program, way: str) -> dict[str, Any]:
    """run() in a child. {"crash": how} when it ends otherwise than by itself."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        text = json.dumps(run(one, way)).encode()
        while text:
            text = text[os.write(write, text) :]
        os._exit(0)
    os.close(write)
    text = b""
    while True:
        if not select.select([read], [], [], _SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            break
        part = os.read(read, 1 << 16)
        if not part:
            break
        text += part
    os.close(read)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0 and text:
        found: dict[str, Any] = json.loads(text)
        return found
    return {"crash": f"signal {-status}" if status < 0 else f"exit code {status}"}


def receive(way: str) -> None:
    """Opens the storage whose handle standard input has, and prints some of what is in it."""
    import torch

    enable(way)
    torch.cuda.init()
    storage = torch.UntypedStorage._new_shared_cuda(*pickle.load(sys.stdin.buffer))
    values = torch.empty(0, dtype=torch.int64, device="cuda").set_(storage)
    print(values.shape, values[-1:].cpu().tolist(), flush=True)


def main() -> None:
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
        return
    way, library = sys.argv[1:]
    program.way = way
    import torch  # noqa: F401  (its libraries come before ours)

    program.calls = ctypes.CDLL(library)
    program.calls.call.restype = ctypes.c_char_p
    program.calls.call.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p))
    enable(way)
    print(json.dumps([in_child(one, way) for one in program.PROGRAMS]))


if __name__ == "__main__":
    main()
