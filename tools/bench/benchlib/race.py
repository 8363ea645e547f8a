"""Every replay of a report, as tasks for the pool: which trace, which allocator, which device, which slack."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from .capacity import granules
from .pool import Task
from .replays import PreparedTrace, Setting, packing_model, replay, smallest_capacity
from .workers import ALLOCATORS, Workers
from .workloads import WORKLOADS, build

SLACKS = (0.0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
TIGHT = (1.05, 1.02, 1.01)  # capacities, in peak live
FRAGMENTING = 1.02  # traces on which expandable reserves more than this times peak live get a frontier
SAMPLES = 400
VALIDATIONS = 100
STEADY_STEPS = 24
TWO_STREAMS: dict[str, dict[str, Any]] = {
    "on": {},
    "on, slack 0": {"slack": 0.0},
    "off": {"cross_stream_wait": "off"},
    "off, slack 0": {"cross_stream_wait": "off", "slack": 0.0},
}

Key = tuple[str, ...]


def ample(traces: Mapping[str, PreparedTrace]) -> dict[Key, Task]:
    """Where memory is plenty: ("ample", trace, allocator), ("slack 0", trace), ("model", trace)."""
    tasks: dict[Key, Task] = {}
    for name, prepared in traces.items():
        for allocator in ALLOCATORS:
            setting = Setting(timed=False, samples=SAMPLES)
            tasks["ample", name, allocator] = partial(_replay, prepared, allocator, setting)
        tight = Setting(enable={"slack": 0.0}, timed=False, validate_rows=max(1, prepared.trace.count // VALIDATIONS))
        tasks["slack 0", name] = partial(_replay, prepared, "pyalloc", tight)
        tasks["model", name] = partial(_model, prepared)
    return tasks


def tight(traces: Mapping[str, PreparedTrace], captures: set[str], found: Mapping[Key, Any]) -> dict[Key, Task]:
    """Where memory is short: ("1.05x", trace, allocator) and so on, ("smallest", trace, allocator); and the frontier of
    the traces that fragment: ("frontier", trace, slack).
    """
    tasks: dict[Key, Task] = {}
    for name, prepared in traces.items():
        live = prepared.trace.live_peak
        for allocator in ALLOCATORS:
            enough = granules(found["ample", name, allocator]["reserved_peak_bytes"]) + (32 << 20)
            tasks["smallest", name, allocator] = partial(_smallest, prepared, allocator, enough)
            if name in captures:
                for factor in TIGHT:
                    setting = Setting(granules(factor * live), timed=False)
                    tasks[f"{factor}x", name, allocator] = partial(_replay, prepared, allocator, setting)
        if name in captures and found["ample", name, "expandable"]["ratio"] > FRAGMENTING:
            for slack in SLACKS:
                setting = Setting(enable={"slack": slack}, timed=False)
                tasks["frontier", name, f"{slack:g}"] = partial(_replay, prepared, "pyalloc", setting)
    return tasks


def generated() -> dict[Key, Task]:
    """("steady", workload, allocator), and ("two streams", variant) on the sharded training."""
    tasks: dict[Key, Task] = {}
    for name in WORKLOADS:
        for allocator in ALLOCATORS:
            tasks["steady", name, allocator] = partial(_generated, name, allocator, {})
    for variant, enable in TWO_STREAMS.items():
        tasks["two streams", variant] = partial(_generated, "fsdp", "pyalloc", enable)
    return tasks


def _replay(prepared: PreparedTrace, allocator: str, setting: Setting, workers: Workers) -> dict[str, Any]:
    return replay(workers, prepared, allocator, setting)


def _model(prepared: PreparedTrace, workers: Workers) -> dict[str, Any]:
    return packing_model(workers, prepared)


def _generated(name: str, allocator: str, enable: dict[str, Any], workers: Workers) -> dict[str, Any]:
    trace, split = build(name, STEADY_STEPS)
    with PreparedTrace(trace) as prepared:
        return replay(workers, prepared, allocator, Setting(enable=enable, timed=False, split_row=split))


def _smallest(prepared: PreparedTrace, allocator: str, enough: int, workers: Workers) -> dict[str, Any]:
    return smallest_capacity(workers, prepared, allocator, {}, enough)
