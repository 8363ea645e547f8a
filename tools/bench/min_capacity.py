#!/usr/bin/env python3
"""The smallest device on which a trace still completes, for each allocator, as a ratio to the trace's peak live bytes.

Found by bisection between peak live and what the allocator reserves when there is plenty, to within a granule of
2 MiB or 0.02 % of peak live. A trace may complete at some capacity and fail at a larger one: this finds one such border.
"""

from __future__ import annotations

from typing import Any

from benchlib import machine, output
from benchlib.capacity import bisect, show
from benchlib.replays import PreparedTrace, Setting, replay, smallest_probe
from benchlib.traces import read_trace
from benchlib.workers import ALLOCATORS, Workers

EXAMPLES = """\
examples:
  python tools/bench/min_capacity.py serving.csv.gz
  python tools/bench/min_capacity.py a.csv.gz b.csv.gz --allocator pyalloc --json
"""


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("traces", nargs="+", type=output.file_argument, metavar="trace", help="as replay.py takes them")
    parser.add_argument("--allocator", choices=ALLOCATORS, action="append", help="may be repeated; default: all")
    parser.add_argument("--option", **output.OPTION_ARGUMENT)
    args = parser.parse_args()
    enable = output.pyalloc_options(parser, args.option)
    progress = output.Progress()
    results = []
    with Workers() as workers:
        for path in args.traces:
            with PreparedTrace(read_trace(path)) as prepared:
                for allocator in args.allocator or ALLOCATORS:
                    results.append(smallest(workers, prepared, allocator, enable, progress))
        facts = machine.describe(workers.facts)
    progress.done()
    output.emit({"results": results, "machine": facts}, args.json, lambda: as_text(results))
    return 0


def smallest(
    workers: Workers,
    prepared: PreparedTrace,
    allocator: str,
    enable: dict[str, Any],
    progress: output.Progress,
    enough: int | None = None,
) -> dict[str, Any]:
    """The smallest capacity of one allocator. `enough` is one known to suffice; without it one is looked for."""
    live = prepared.trace.live_peak

    def completes(capacity: int) -> bool:
        progress.say(f"{prepared.trace.name} on {allocator}: {capacity / live:.4f} x peak live")
        result = replay(workers, prepared, allocator, Setting(capacity, enable, timed=False))
        return result["failed_at"] is None

    if enough is None:
        enough = int(replay(workers, prepared, allocator, Setting(None, enable, timed=False))["reserved_peak_bytes"])
    found = bisect(live, enough, smallest_probe(live), completes)
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


def as_text(results: list[dict[str, Any]]) -> str:
    header = ["trace", "allocator", "peak live", "smallest device", "ratio", "MiB over"]
    rows: list[list[object]] = []
    for one in results:
        row = [one["trace"], one["allocator"], show(one["live_peak_bytes"]), show(one["smallest_bytes"]), one["ratio"]]
        rows.append([*row, one["over_mib"]])
    return output.table(header, rows)


if __name__ == "__main__":
    output.run_main(main)
