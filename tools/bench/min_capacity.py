#!/usr/bin/env python3
"""The smallest device on which a trace still completes, for each allocator, as a ratio to the trace's peak live bytes.

Found by bisection between peak live and what the allocator reserves when there is plenty, to within a granule of
2 MiB or 0.02 % of peak live. A trace may complete at some capacity and fail at a larger one: this finds one border.
"""

from __future__ import annotations

from typing import Any

from benchlib import machine, output
from benchlib.capacity import show
from benchlib.replays import PreparedTrace, smallest_capacity
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
                    progress.say(f"{prepared.trace.name} on {allocator}")
                    results.append(smallest_capacity(workers, prepared, allocator, enable))
        facts = machine.describe(workers.facts)
    progress.done()
    output.emit({"results": results, "machine": facts}, args.json, lambda: as_text(results))
    return 0


def as_text(results: list[dict[str, Any]]) -> str:
    header = ["trace", "allocator", "peak live", "smallest device", "ratio", "MiB over"]
    rows: list[list[object]] = []
    for one in results:
        row = [one["trace"], one["allocator"], show(one["live_peak_bytes"]), show(one["smallest_bytes"]), one["ratio"]]
        rows.append([*row, one["over_mib"]])
    return output.table(header, rows)


if __name__ == "__main__":
    output.run_main(main)
