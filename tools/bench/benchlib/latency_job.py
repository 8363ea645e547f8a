"""In a job's process: what one allocator does, timed in short passes that are asked for one by one (turns.py).

A case is a generator: up to its first pass it prepares, each further step is one pass. Passes of all allocators do the
same work: the same sizes, drawn in the same order. Passes of one thread are measured in processor time, to which other
programs do not add. What threads do at once is measured in wall time, in many short heats, of which those count in
which every thread had a core.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import allocator_setup
from .errors import BenchError

PAIR_BYTES = 4000
PAIRS = 100000  # a pass: some tens of milliseconds of torch's native allocator
REPLACEMENTS = 50000  # and at least twice the live blocks, so that a pass finds its memory in the caches as it left it
EMPTIES = 20000
THREAD_LIVE = 1000
HEATS, HEAT_REPLACEMENTS = 40, 500
MOST_TRIES, ENOUGH_HEATS, UNDISTURBED = 2, 5, 0.1
PEAK_REPLACEMENTS = 20000
METADATA_LIVE = 100000

Pass = dict[str, float]  # nanoseconds by name; not a number: it could not be measured now


@dataclass(frozen=True)
class Heat:
    """Of threads at once: nanoseconds of wall time an operation, and the share of time without a core."""

    wall: float
    waited: float


class Native:
    """native/latency.h."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.bench_error.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: Any) -> float:
        ns = ctypes.c_double(0)
        self._check(getattr(self._library, name)(*arguments, ctypes.byref(ns)))
        return ns.value

    def _check(self, code: int) -> None:
        if code != 0:
            raise BenchError(self._library.bench_error().decode(errors="replace"))

    def pair(self, size: int, pairs: int) -> float:
        return self._call("bench_pair", ctypes.c_uint64(size), ctypes.c_uint64(pairs))

    def fill(self, live: int) -> None:
        self._check(self._library.bench_fill(ctypes.c_uint64(live), ctypes.c_uint64(1)))

    def replace(self, replacements: int) -> float:
        return self._call("bench_replace", ctypes.c_uint64(replacements))

    def clear(self) -> None:
        self._check(self._library.bench_clear())

    def rmm(self, count: int, max_mib: int) -> float:
        return self._call("bench_rmm", ctypes.c_uint64(count), ctypes.c_uint64(max_mib))

    def threads(self, threads: int, live: int, replacements: int, heats: int) -> list[Heat]:
        columns = [(ctypes.c_double * heats)() for _ in range(2)]
        arguments = ctypes.c_uint32(threads), ctypes.c_uint64(live), ctypes.c_uint64(replacements)
        self._check(self._library.bench_threads(*arguments, ctypes.c_uint32(heats), *columns))
        return [Heat(*row) for row in zip(*columns, strict=True)]

    def peaks(self, threads: int, live: int, replacements: int) -> bool:
        exact = ctypes.c_int32(0)
        arguments = (ctypes.c_uint32(threads), ctypes.c_uint64(live), ctypes.c_uint64(replacements))
        self._check(self._library.bench_peaks(*arguments, ctypes.byref(exact)))
        return exact.value == 1


def start(case: str, native: Native, scale: float) -> Iterator[Pass]:
    """The passes of a case: pair_<when>, random_<live>, rmm_<count>x<MiB>, threads_<n>_<n>..., torch_empty.

    `scale` shortens or lengthens each pass. Raises BenchError for a case that does not exist.
    """
    kind, _, detail = case.partition("_")
    if kind == "pair":
        return _pair(native, case, _length(PAIRS, scale))
    if kind == "random":
        return _random(native, int(detail), _length(max(REPLACEMENTS, 2 * int(detail)), scale))
    if kind == "rmm":
        count, mib = map(int, detail.split("x"))
        return _rmm(native, case, max(min(count, 1000), int(count * scale)), mib)
    if kind == "threads":
        return _threads(native, [int(number) for number in detail.split("_")], _length(HEAT_REPLACEMENTS, scale))
    if case == "torch_empty":
        return _torch_empty(_length(EMPTIES, scale))
    raise BenchError(f"case {case!r} is unknown")


def _length(full: int, scale: float) -> int:
    return max(100, int(full * scale))


def _pair(native: Native, case: str, pairs: int) -> Iterator[Pass]:
    while True:
        yield {case: native.pair(PAIR_BYTES, pairs)}


def _random(native: Native, live: int, replacements: int) -> Iterator[Pass]:
    native.fill(live)
    native.replace(replacements)  # no longer as filled
    try:
        while True:
            yield {f"random_{live}": native.replace(replacements)}
    finally:
        native.clear()


def _rmm(native: Native, case: str, count: int, mib: int) -> Iterator[Pass]:
    while True:
        yield {case: native.rmm(count, mib)}


def _threads(native: Native, numbers: list[int], replacements: int) -> Iterator[Pass]:
    while True:
        yield {f"threads_{number}": _undisturbed(native, number, replacements) for number in numbers}


def _undisturbed(native: Native, threads: int, replacements: int) -> float:
    """The median of the heats in which threads were without a core for at most a tenth of the time, all together; not a
    number when the machine was too busy for a few. More threads than cores are always without: there it is of all.
    """
    heats: list[Heat] = []
    for _ in range(MOST_TRIES):
        heats += native.threads(threads, THREAD_LIVE, replacements, HEATS)
        good = [heat.wall for heat in heats if heat.waited <= UNDISTURBED or threads > cores()]
        if len(good) >= ENOUGH_HEATS:
            return statistics.median(good)
    return math.nan


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _torch_empty(count: int) -> Iterator[Pass]:
    import torch

    empty, dtype, device = torch.empty, torch.uint8, torch.device("cuda", 0)
    while True:
        started = time.process_time_ns()
        for _ in range(count):
            empty(PAIR_BYTES, dtype=dtype, device=device)
        yield {"torch_empty": (time.process_time_ns() - started) / count}


def run(allocator: str, options: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """What is not timed. options: threads (numbers of them). Answers `exact_peaks` by number of threads, and for
    pyalloc `metadata`, what its books take.
    """
    allocator_setup.prepare_device(None, "immediate")
    allocator_setup.choose(allocator, {})
    native = Native(library)
    peaks = {str(number): native.peaks(number, THREAD_LIVE, PEAK_REPLACEMENTS) for number in options["threads"]}
    return {"exact_peaks": peaks, "metadata": _metadata(native) if allocator == "pyalloc" else None}


def _metadata(native: Native) -> dict[str, float]:
    """What 100,000 blocks add to pyalloc's own books."""
    import torch

    native.fill(1)
    native.clear()
    before = allocator_setup.pyalloc_counters()["metadata_bytes"]
    native.fill(METADATA_LIVE)
    after = allocator_setup.pyalloc_counters()["metadata_bytes"]
    total = torch.cuda.get_device_properties(0).total_memory
    return {
        "live": METADATA_LIVE,
        "bytes": after,
        "bytes_per_block": (after - before) / METADATA_LIVE,
        "share_of_device": after / total,
    }
