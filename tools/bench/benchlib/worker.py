"""The server process of workers.py: reads a job a line from stdin, answers a line of JSON each, in the same order.

Jobs: each is a module of its name, such as replay_job.py, or turns.py. Standard output belongs to the
answers, so everything else that is printed goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file: its folder is on the path, the package above it is not
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchlib import image_job, latency_job, lora_job, native_build, packing_job, replay_job, turns
from benchlib.errors import BenchError

JOBS = {
    "replay": replay_job.run,
    "latency": latency_job.run,
    "turns": turns.run,
    "packing": packing_job.run,
    "images": image_job.run,
    "lora": lora_job.run,
}


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        import torch

        import pyalloc

        library = ctypes.CDLL(str(native_build.ensure_library()))
        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "pyalloc": pyalloc.__version__}
    except (BenchError, ImportError, OSError) as error:
        facts = {"error": str(error)}
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(in_child(json.loads(line), library)), file=answers, flush=True)


def in_child(job: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """Runs the job in a forked child; what becomes of it, as an answer."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        code = 1
        try:
            with os.fdopen(write_end, "w") as pipe:
                json.dump(perform(job, library), pipe)
            code = 0
        except BaseException:  # a forked child must not go back into the server's loop
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # no cleaning up: live blocks and the server's own state are not the job's business
    os.close(write_end)
    text, late = read_until(read_end, time.monotonic() + job["seconds"])
    os.close(read_end)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    what = f"{job['kind']} on {job['allocator']}"
    if late:
        return {"error": f"{what}: no end after {job['seconds']:.0f} s"}
    if os.WIFSIGNALED(status):
        return {"error": f"{what}: the process died of {signal.Signals(os.WTERMSIG(status)).name}"}
    if status != 0 or not text:
        return {"error": f"{what}: the process ended with exit code {os.waitstatus_to_exitcode(status)}"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def read_until(descriptor: int, deadline: float) -> tuple[str, bool]:
    """Everything until the other end closes; True when the deadline came first."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return "", True
        part = os.read(descriptor, 1 << 20)
        if not part:
            return b"".join(parts).decode(), False
        parts.append(part)


def perform(job: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    try:
        return JOBS[job["kind"]](job["allocator"], job["options"], library)
    except BenchError as error:
        return {"error": f"{job['kind']} on {job['allocator']}: {error}"}


if __name__ == "__main__":
    serve()
