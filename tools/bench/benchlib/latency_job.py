"""In a job's process: times one allocator, cases in a fixed order so that "fresh" and "after churn" mean something."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from . import allocator_setup
from .errors import BenchError

PAIR_BYTES = 4000
THREAD_LIVE = 1000
METADATA_LIVE = 100000


def run(allocator: str, options: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """options: cases ("core", "rmm", "threads", "python", "metadata"), scale (1: full length), live, threads, rmm.

    Answers nanoseconds by case, with "threads" `exact_peaks`, with "metadata" (pyalloc alone) what its books take.
    """
    allocator_setup.prepare_device(None, "immediate")
    allocator_setup.choose(allocator, options.get("enable", {}))
    native = _Native(library)
    scale = float(options["scale"])
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "core": lambda: _core(native, scale, options["live"]),
        "rmm": lambda: _rmm(native, scale, options["rmm"]),
        "threads": lambda: _threads(native, scale, options["threads"]),
        "python": lambda: _python(scale),
        "metadata": dict,  # below
    }
    answer: dict[str, Any] = {"ns": {}}
    for case in options["cases"]:
        answer["ns"] |= cases[case]()
        if case == "threads":
            answer["exact_peaks"] = {
                str(n): native.peaks(n, THREAD_LIVE, int(20000 * scale)) for n in options["threads"]
            }
        if case == "metadata":
            answer["metadata"] = _metadata(native)
    return answer


class _Native:
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

    def random(self, live: int, replacements: int) -> float:
        return self._call("bench_random", ctypes.c_uint64(live), ctypes.c_uint64(replacements), ctypes.c_uint64(1))

    def hold(self, live: int) -> None:
        self._check(self._library.bench_hold(ctypes.c_uint64(live), ctypes.c_uint64(1)))

    def rmm(self, count: int, max_mib: int) -> float:
        ns, operations = ctypes.c_double(0), ctypes.c_uint64(0)
        arguments = (ctypes.c_uint64(count), ctypes.c_uint64(max_mib), ctypes.byref(ns), ctypes.byref(operations))
        self._check(self._library.bench_rmm(*arguments))
        return ns.value

    def threads(self, threads: int, live: int, replacements: int) -> float:
        arguments = (ctypes.c_uint32(threads), ctypes.c_uint64(live), ctypes.c_uint64(replacements))
        return self._call("bench_threads", *arguments)

    def peaks(self, threads: int, live: int, replacements: int) -> bool:
        exact = ctypes.c_int32(0)
        arguments = (ctypes.c_uint32(threads), ctypes.c_uint64(live), ctypes.c_uint64(max(1, replacements)))
        self._check(self._library.bench_peaks(*arguments, ctypes.byref(exact)))
        return exact.value == 1


def _core(native: _Native, scale: float, live: list[int]) -> dict[str, float]:
    pairs, replacements = max(1000, int(1e6 * scale)), max(1000, int(5e5 * scale))
    found = {"pair_fresh": native.pair(PAIR_BYTES, pairs)}
    for count in live:
        found[f"random_{count}"] = native.random(count, replacements)
    found["pair_churned"] = native.pair(PAIR_BYTES, pairs)
    return found


def _rmm(native: _Native, scale: float, grid: list[tuple[int, int]]) -> dict[str, float]:
    return {f"rmm_{count}x{mib}": native.rmm(max(min(count, 1000), int(count * scale)), mib) for count, mib in grid}


def _threads(native: _Native, scale: float, threads: list[int]) -> dict[str, float]:
    return {f"threads_{n}": native.threads(n, THREAD_LIVE, max(1000, int(4e5 * scale))) for n in threads}


def _metadata(native: _Native) -> dict[str, float]:
    """What 100,000 blocks add to pyalloc's own books."""
    import torch

    native.hold(1)
    before = allocator_setup.pyalloc_counters()["metadata_bytes"]
    native.hold(METADATA_LIVE)
    after = allocator_setup.pyalloc_counters()["metadata_bytes"]
    total = torch.cuda.get_device_properties(0).total_memory
    return {
        "live": METADATA_LIVE,
        "bytes": after,
        "bytes_per_block": (after - before) / METADATA_LIVE,
        "share_of_device": after / total,
    }


def _python(scale: float) -> dict[str, float]:
    import torch

    count = max(1000, int(2e5 * scale))
    empty, dtype, device = torch.empty, torch.uint8, torch.device("cuda", 0)
    for _ in range(1000):
        empty(PAIR_BYTES, dtype=dtype, device=device)
    started = time.perf_counter()
    for _ in range(count):
        empty(PAIR_BYTES, dtype=dtype, device=device)
    return {"torch_empty": (time.perf_counter() - started) / count * 1e9}
