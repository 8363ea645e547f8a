"""In a job's process: replays a packed trace with native code and gathers what the result is made of."""

from __future__ import annotations

import ctypes
import json
from array import array
from pathlib import Path
from typing import Any

from . import allocator_setup
from .errors import BenchError

WORK_US = 200.0  # trace time from an operation's enqueueing to its end
MAINTAIN_US = 2000.0  # pyalloc's thread rests this long while it has work; here its rounds are made in trace time


class _Options(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("row_count", ctypes.c_uint64),
        ("blocks", ctypes.c_uint32),
        ("streams", ctypes.c_uint32),
        ("pools", ctypes.c_uint32),
        ("modelled", ctypes.c_int32),
        ("work_us", ctypes.c_double),
        ("maintain", ctypes.c_void_p),
        ("maintain_us", ctypes.c_double),
        ("validate", ctypes.c_void_p),
        ("validate_rows", ctypes.c_uint64),
        ("split_row", ctypes.c_uint64),
        ("sample_rows", ctypes.c_uint64),
        ("samples", ctypes.c_void_p),
        ("push_pool", ctypes.c_void_p),
        ("pop_pool", ctypes.c_void_p),
        ("costs_us", ctypes.c_void_p),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("failed_row", ctypes.c_int64),
        ("out_of_memory", ctypes.c_int32),
        ("pools_honoured", ctypes.c_int32),
        ("rows_done", ctypes.c_uint64),
        ("live_peak", ctypes.c_uint64),
        ("reserved_peak", ctypes.c_uint64),
        ("allocator_reserved_peak", ctypes.c_uint64),
        ("retries", ctypes.c_int64),
        ("out_of_memories", ctypes.c_int64),
        ("loop_ns", ctypes.c_double),
        ("path_us", ctypes.c_double),
        ("background_us", ctypes.c_double),
        ("path_unmaps", ctypes.c_uint64),
        ("own_records", ctypes.c_int64),
        ("own_waits", ctypes.c_int64),
        ("violations", ctypes.c_int64),
        ("validations", ctypes.c_uint64),
        ("sample_count", ctypes.c_uint64),
        ("calls_at_split", ctypes.c_char * 4096),
        ("error", ctypes.c_char * 1024),
    )


def run(allocator: str, options: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """options: rows (path), row_count, blocks, streams, pools, capacity, modelled, costs, and optionally slack,
    validate_rows, split_row, samples, costs_path.
    """
    modelled = bool(options["modelled"])
    rows = bytearray(Path(options["rows"]).read_bytes())
    driver = allocator_setup.prepare_device(options.get("capacity"), "timed" if modelled else "immediate")
    if driver is None:
        raise BenchError("replays run on the simulated GPU only")
    # A thread would do its rounds in real time; here they come in trace time, so that a replay repeats exactly.
    enable = {"maintenance": "off" if modelled else "on"} | options.get("enable", {})
    chosen = allocator_setup.choose(allocator, enable)

    given = _Options()
    given.rows = ctypes.addressof(ctypes.c_char.from_buffer(rows))
    for name in ("row_count", "blocks", "streams", "pools"):
        setattr(given, name, options[name])
    given.modelled, given.work_us = int(modelled), WORK_US
    given.maintain, given.maintain_us = (chosen.maintain, MAINTAIN_US) if modelled else (None, 0.0)
    given.validate_rows = options.get("validate_rows", 0)
    given.validate = chosen.validate if given.validate_rows else None
    given.split_row = options.get("split_row", given.row_count)
    if options.get("purpose_pools"):
        given.push_pool, given.pop_pool = chosen.push_pool, chosen.pop_pool
    points = options.get("samples", 0)
    given.sample_rows = -(-given.row_count // points) if points else 0
    samples = array("Q", bytes(16 * (points + 1)))
    given.samples = samples.buffer_info()[0]
    charges = array("f", bytes(4 * given.row_count))
    given.costs_us = charges.buffer_info()[0]

    driver.simgpu_reset_calls()
    result = _Result()
    library.bench_replay.argtypes = (ctypes.POINTER(_Options), ctypes.POINTER(_Result))
    if library.bench_replay(ctypes.byref(given), ctypes.byref(result)) != 0:
        raise BenchError(result.error.decode(errors="replace"))
    calls = _calls(driver)
    calls["cuEventRecord"] = calls.get("cuEventRecord", 0) - result.own_records
    calls["cuStreamWaitEvent"] = calls.get("cuStreamWaitEvent", 0) - result.own_waits
    answer: dict[str, Any] = {
        name: getattr(result, name)
        for name, kind in _Result._fields_
        if kind in (ctypes.c_int64, ctypes.c_uint64, ctypes.c_double, ctypes.c_int32)
    }
    answer["message"] = result.error.decode(errors="replace")
    answer["calls"] = calls
    answer["calls_at_split"] = json.loads(result.calls_at_split.decode() or "{}")
    answer["samples"] = list(samples[: 2 * result.sample_count])
    answer["costs"] = [[row, cost] for row, cost in enumerate(charges) if cost > 0]
    answer["violation"] = _violation(driver) if result.violations else ""
    if allocator == "pyalloc":
        answer["counters"] = allocator_setup.pyalloc_counters()
        if options.get("purpose_pools"):
            answer["purpose_pools"] = allocator_setup.pyalloc_pools()
    return answer


def _calls(driver: ctypes.CDLL) -> dict[str, int]:
    driver.simgpu_calls_json.restype = ctypes.c_size_t
    buffer = ctypes.create_string_buffer(1 << 16)
    driver.simgpu_calls_json(buffer, ctypes.c_size_t(len(buffer)))
    counts: dict[str, int] = json.loads(buffer.value)
    return counts


def _violation(driver: ctypes.CDLL) -> str:
    buffer = ctypes.create_string_buffer(1024)
    driver.simgpu_violation.restype = ctypes.c_size_t
    driver.simgpu_violation(ctypes.c_int64(0), buffer, ctypes.c_size_t(len(buffer)))
    return buffer.value.decode(errors="replace")
