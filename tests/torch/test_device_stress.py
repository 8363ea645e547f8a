"""Bytes survive: programs that write, move between streams and read back, under pressure, on the device at hand.

On the simulated GPU with deferred streams and its ordering oracle, or on a real one under tools/gpu_check.py. Only
copies are used: both kinds of device really do them.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ON_DEVICE, need

# The vocabulary of every program: fill(x, offset) writes a known pattern into both ends of x on the current stream,
# check(x, offset) reads it back and compares, finish() checks that nothing is left and the heap is intact.
COMMON = """
import ctypes, random, threading, time
import pyalloc
import torch

pyalloc.enable(bridge="require", lora_reserve=0, limit=LIMIT)
SOURCE = torch.randint(0, 256, (4 << 20,), dtype=torch.uint8).pin_memory()
END = 64 << 10

def ends(x):
    n = x.numel()
    return [(0, n)] if n <= 2 * END else [(0, END), (n - END, END)]

def pattern(offset, first, count):
    start = (offset + first) % (SOURCE.numel() - 2 * END)
    return SOURCE[start : start + count]

def fill(x, offset):
    for first, count in ends(x):
        x[first : first + count].copy_(pattern(offset, first, count), non_blocking=True)

def check(x, offset):
    back = [(first, count, x[first : first + count].to("cpu")) for first, count in ends(x)]
    torch.cuda.current_stream().synchronize()
    for first, count, bytes_ in back:
        wrong = (bytes_ != pattern(offset, first, count)).sum().item()
        assert wrong == 0, f"{wrong} of {count} bytes at {first} of a tensor of {x.numel()} bytes are wrong"

def random_size(rng):
    return rng.choice((rng.randint(1, 4096), rng.randint(4096, 1 << 20), rng.randint(1 << 20, 48 << 20)))

def finish():
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
    library = ctypes.CDLL(pyalloc.library_path())
    library.pyalloc_last_error.restype = ctypes.c_char_p
    assert library.pyalloc_validate(0) == 0, library.pyalloc_last_error()
    assert torch.cuda.max_memory_reserved() <= LIMIT
    from pyalloc import simgpu
    if simgpu.active():
        assert simgpu.simulation().violations() == []
    print("intact")
"""


def run(program: str, folder: Path, limit: int, seed: int = 1) -> None:
    """Runs COMMON and the program with `limit` bytes of device memory; it must end with finish()."""
    need(find_spec("torch"), "torch is not installed")
    script = folder / "program.py"
    script.write_text(COMMON.replace("LIMIT", str(limit)) + textwrap.dedent(program).replace("SEED", str(seed)))
    command = [sys.executable, str(script)]
    if not ON_DEVICE:
        options = ["--memory", "4GiB", "--streams", "deferred", "--seed", str(seed), "--oracle"]
        command = [sys.executable, "-m", "pyalloc.simgpu", *options, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("intact"), done.stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_stress_churn_near_the_limit(tmp_path: Path, seed: int) -> None:
    """Random sizes on three streams, freed in random order, with live memory pushed against the limit all the time."""
    program = """
    def free(live, i):
        x, offset, stream = live.pop(i)
        with torch.cuda.stream(stream):
            check(x, offset)

    rng = random.Random(SEED)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    live = []
    for step in range(700):
        stream = rng.choice(streams)
        with torch.cuda.stream(stream):
            size = random_size(rng)
            try:
                x = torch.empty(size, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                full = torch.cuda.memory_allocated() + size
                assert full > 0.9 * LIMIT, f"refused at {full} bytes of {LIMIT}"
                x = None
            if x is not None:
                fill(x, step)
                live.append((x, step, stream))
        too_much = x is None or rng.random() < 0.3
        del x
        while live and (too_much or sum(one[0].numel() for one in live) > 0.9 * LIMIT):
            too_much = False
            free(live, rng.randrange(len(live)))
    while live:
        free(live, -1)
    finish()
    """
    limit = 512 << 20
    run(program.replace("LIMIT", str(limit)), tmp_path, limit, seed)


def test_stress_record_stream(tmp_path: Path) -> None:
    """A tensor used by another stream up to its free is not overwritten before that stream has read it."""
    program = """
    rng = random.Random(SEED)
    main, other = torch.cuda.current_stream(), torch.cuda.Stream()
    results = []
    for step in range(150):
        x = torch.empty(rng.randint(1 << 20, 16 << 20), dtype=torch.uint8, device="cuda")
        fill(x, step)
        other.wait_stream(main)
        with torch.cuda.stream(other):
            host = torch.empty(END, dtype=torch.uint8, pin_memory=True)
            host.copy_(x[:END], non_blocking=True)
            x.record_stream(other)
        results.append((host, step))
        del x
        y = torch.empty(rng.randint(1 << 20, 16 << 20), dtype=torch.uint8, device="cuda")
        fill(y, step + 7)
        check(y, step + 7)
        del y
    other.synchronize()
    for host, step in results:
        assert torch.equal(host, pattern(step, 0, END)), step
    finish()
    """
    run(program, tmp_path, 256 << 20)


def test_stress_threads(tmp_path: Path) -> None:
    """Eight threads, each with a stream of its own, for a minute; for six seconds of a real device's lent time."""
    program = """
    errors = []
    until = time.monotonic() + SECONDS

    def work(number):
        rng = random.Random(number)
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                live = []
                while time.monotonic() < until:
                    x = torch.empty(min(random_size(rng), 8 << 20), dtype=torch.uint8, device="cuda")
                    offset = rng.randrange(1 << 20)
                    fill(x, offset)
                    live.append((x, offset))
                    del x
                    if len(live) > 12:
                        y, offset = live.pop(rng.randrange(len(live)))
                        check(y, offset)
                        del y
                for y, offset in live:
                    check(y, offset)
        except BaseException as error:
            errors.append(f"thread {number}: {error!r}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors, errors
    finish()
    """
    run(program.replace("SECONDS", "6" if ON_DEVICE else "60"), tmp_path, 1 << 30)


def test_stress_growing_caches(tmp_path: Path) -> None:
    """Tensors that grow by copying, as KV caches do, in memory that holds hardly more than they need."""
    program = """
    rng = random.Random(SEED)
    caches = []
    for step in range(250):
        if len(caches) < 6:
            offset = rng.randrange(1 << 20)
            x = torch.empty(rng.randint(1, 12) << 20, dtype=torch.uint8, device="cuda")
            fill(x, offset)
            caches.append([x, offset])
            del x
        i = rng.randrange(len(caches))
        x, offset = caches[i]
        check(x, offset)
        if x.numel() > 32 << 20:
            del x
            caches.pop(i)
            continue
        grown = torch.empty(x.numel() + (2 << 20) + 512, dtype=torch.uint8, device="cuda")
        grown[: x.numel()].copy_(x)
        assert torch.equal(grown[:END].cpu(), pattern(offset, 0, END))
        fill(grown, offset)
        caches[i][0] = grown
        del x, grown
    caches.clear()
    finish()
    """
    run(program, tmp_path, 256 << 20)
