"""Replays as the benchmarks ask for them: a trace prepared once, replayed on any allocator, and the result's keys."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from . import costs
from .capacity import GRANULE, bisect, granules
from .traces import Trace
from .workers import Workers

# Where none is given: so much that no allocator runs out, and still a size a device could have.
_AMPLE = 4
_EDGE = 32 << 20


@dataclass(frozen=True)
class Setting:
    """How a trace is replayed. `capacity` in bytes, None: ample. `enable` are arguments of pyalloc.enable()."""

    capacity: int | None = None
    enable: Mapping[str, Any] | None = None
    timed: bool = True  # a second pass for ns_per_op
    validate_rows: int = 0  # pyalloc checks itself every so many rows
    split_row: int | None = None  # counts from this row on are given apart
    purpose_pools: bool = False  # the rows' pools are pyalloc's, as read_trace(by_tag=True) gives them
    samples: int = 0  # points of live and reserved over the trace


class PreparedTrace:
    """A trace whose rows lie in a file for the workers; use it in a `with` block."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._folder = tempfile.TemporaryDirectory(prefix="pyalloc-bench-")
        self.path = Path(self._folder.name, "rows")
        self.path.write_bytes(trace.rows)
        self.sizes = trace.bytes_column()

    def __enter__(self) -> PreparedTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()


def replay(workers: Workers, prepared: PreparedTrace, allocator: str, setting: Setting) -> dict[str, Any]:
    """One replay's result: the keys that tools/bench/README.md lists. Raises BenchError when it could not run."""
    trace = prepared.trace
    ample = granules(max(_AMPLE * trace.live_peak, 8 << 30))
    options: dict[str, Any] = {
        "rows": str(prepared.path),
        "row_count": trace.count,
        "blocks": trace.blocks,
        "streams": trace.streams,
        "pools": len(trace.pools),
        "capacity": setting.capacity or ample,
        "enable": dict(setting.enable or {}) if allocator == "pyalloc" else {},
        "samples": setting.samples,
        "modelled": True,
    }
    if setting.validate_rows and allocator == "pyalloc":
        options["validate_rows"] = setting.validate_rows
    if setting.purpose_pools and allocator == "pyalloc":
        options["purpose_pools"] = True
    if setting.split_row is not None:
        options["split_row"] = setting.split_row
    raw = workers.run("replay", allocator, options)
    result = summarise(raw, prepared)
    result = {"trace": trace.name, "allocator": allocator, "capacity": options["capacity"], **result}
    if options["enable"]:
        result["options"] = options["enable"]
    if setting.timed:
        plain = {**options, "modelled": False, "samples": 0, "validate_rows": 0, "split_row": trace.count}
        speed = workers.run("replay", allocator, plain)
        result["ns_per_op"] = round(speed["loop_ns"] / max(1, speed["rows_done"]), 1)
    return result


def packing_model(workers: Workers, prepared: PreparedTrace, slack: float = 0.0) -> dict[str, Any]:
    """What an ideal allocator that shares and moves granules would reserve: live_peak, reserved_peak and counts."""
    trace = prepared.trace
    options = {"rows": str(prepared.path), "row_count": trace.count, "blocks": trace.blocks, "streams": trace.streams}
    return workers.run("packing", "pyalloc", {**options, "slack": slack})


def smallest_capacity(
    workers: Workers, prepared: PreparedTrace, allocator: str, enable: Mapping[str, Any], enough: int | None = None
) -> dict[str, Any]:
    """The smallest device on which the trace completes, to within a granule or 0.02 % of peak live. `enough` is a
    capacity that should do; without it, what the allocator reserves when there is plenty, and 32 MiB.
    """
    live = prepared.trace.live_peak
    if enough is None:
        plenty = replay(workers, prepared, allocator, Setting(None, enable, timed=False))
        enough = granules(plenty["reserved_peak_bytes"]) + _EDGE

    def completes(capacity: int) -> bool:
        return replay(workers, prepared, allocator, Setting(capacity, enable, timed=False))["failed_at"] is None

    found = bisect(live, enough, max(GRANULE, live // 5000), completes)
    return {
        "trace": prepared.trace.name,
        "allocator": allocator,
        "live_peak_bytes": live,
        "smallest_bytes": found.capacity,
        "ratio": round(found.capacity / live, 5),
        "over_mib": round((found.capacity - live) / (1 << 20), 1),
        "failed_bytes": found.failed,
        "probes": found.probes,
    }


def summarise(raw: Mapping[str, Any], prepared: PreparedTrace) -> dict[str, Any]:
    """The result's keys from what the worker counted."""
    calls: dict[str, int] = raw["calls"]
    result: dict[str, Any] = {
        "ops": raw["rows_done"],
        "failed_at": raw["failed_row"] if raw["failed_row"] >= 0 else None,
        "live_peak_bytes": raw["live_peak"],
        "reserved_peak_bytes": raw["reserved_peak"],
        "ratio": round(raw["reserved_peak"] / max(1, raw["live_peak"]), 5),
        "over_mib": round((raw["reserved_peak"] - raw["live_peak"]) / (1 << 20), 1),
        "ns_per_op": None,
        "driver_calls": memory_calls(calls),
        "events": calls["cuEventRecord"],
        "waits": calls["cuStreamWaitEvent"],
        "device_syncs": calls.get("cuCtxSynchronize", 0) + calls.get("cuMemFree", 0),  # a free waits for the device
        "other_syncs": calls.get("cuStreamSynchronize", 0) + calls.get("cuEventSynchronize", 0),
        "retries": raw["retries"],
        "modelled_driver_us": round(raw["path_us"] + raw["background_us"], 1),
        "modelled_background_us": round(raw["background_us"], 1),
        "unmaps_on_path": raw["path_unmaps"],
        **operation_costs(raw["costs"], prepared),
        "violations": raw["violations"],
        "pools_honoured": bool(raw["pools_honoured"]) if len(prepared.trace.pools) > 1 else None,
    }
    if raw["violation"]:
        result["violation"] = raw["violation"]
    if raw["message"]:
        result["message"] = raw["message"]
    if raw["validations"]:
        result["validations"] = raw["validations"]
    if raw["calls_at_split"]:
        before = memory_calls(raw["calls_at_split"])
        after = {name: count - before.get(name, 0) for name, count in memory_calls(calls).items()}
        result["driver_calls_after_split"] = {name: count for name, count in after.items() if count}
    if raw["samples"]:
        result["samples"] = raw["samples"]
    if "purpose_pools" in raw:
        live_peaks = dict(zip(prepared.trace.pools, prepared.trace.live_peaks, strict=True))
        result["pools"] = {
            name: {"live_peak": live_peaks.get(name, 0), **figures} for name, figures in raw["purpose_pools"].items()
        }
    if "counters" in raw:
        result["counters"] = raw["counters"]
    return result


def memory_calls(calls: Mapping[str, int]) -> dict[str, int]:
    """Those of the counted calls that get, map or return memory."""
    return {name: calls[name] for name in costs.MEMORY_CALLS if calls.get(name)}


def operation_costs(charges: list[list[float]], prepared: PreparedTrace) -> dict[str, Any]:
    """Of the operations that reached the driver: the worst, the 99th percentile, and the worst after the first fifth of
    the trace once 5 ms per GiB asked for are taken off.
    """
    sizes, settled = prepared.sizes, prepared.trace.count // 5
    ordered = sorted(cost for _, cost in charges)
    late = [(cost - 5000 * sizes[int(row)] / (1 << 30), cost) for row, cost in charges if row >= settled]
    excess, late_worst = max(late, default=(0.0, 0.0))
    return {
        "driver_operations": len(ordered),
        "modelled_worst_us": round(ordered[-1], 1) if ordered else 0.0,
        "modelled_p99_us": round(ordered[(99 * len(ordered) - 1) // 100], 1) if ordered else 0.0,
        "settled_worst_us": round(max((cost for _, cost in late), default=0.0), 1),
        "settled_excess_us": round(excess, 1),
        "settled_excess_of_us": round(late_worst, 1),
    }
