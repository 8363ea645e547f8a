#!/usr/bin/env python3
"""Repeated steps of a model (prefill, decode, training, sharded training): what reaches the driver once they are warm.

The steps are generated; --write keeps them as traces for replay.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchlib import costs, machine, output
from benchlib.capacity import show
from benchlib.replays import PreparedTrace, Setting, replay
from benchlib.workers import ALLOCATORS, Workers
from benchlib.workloads import WARM_STEPS, WORKLOADS, build, generate

from pyalloc.trace_file import TraceWriter, open_for_writing

EXAMPLES = """\
examples:
  python tools/bench/steady.py
  python tools/bench/steady.py --workload fsdp --allocator pyalloc --option cross_stream_wait=off
  python tools/bench/steady.py --write traces/          prefill.csv.gz, decode.csv.gz, train.csv.gz, fsdp.csv.gz
"""


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), action="append", help="may be repeated; default: all")
    parser.add_argument("--allocator", choices=ALLOCATORS, action="append", help="may be repeated; default: all")
    parser.add_argument("--steps", type=int, default=24, metavar="N", help="steps after the warm-up (default 24)")
    parser.add_argument("--option", **output.OPTION_ARGUMENT)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the traces there and measure nothing")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: expected at least 1")
    names = args.workload or list(WORKLOADS)
    if args.write is not None:
        args.write.mkdir(parents=True, exist_ok=True)
        for name in names:
            with open_for_writing(args.write / f"{name}.csv.gz") as file:
                generate(name, args.steps, TraceWriter(file))
        return 0

    progress = output.Progress()
    with Workers() as workers:
        enable = output.pyalloc_options(parser, args.option)
        results = measure(workers, names, args.allocator or list(ALLOCATORS), args.steps, enable, progress)
        facts = machine.describe(workers.facts)
    progress.done()
    report = {"results": results, "costs": costs.table(), "machine": facts}
    output.emit(report, args.json, lambda: f"{as_text(results)}\n{machine.one_line(facts)}")
    return 0


def measure(
    workers: Workers,
    names: list[str],
    allocators: list[str],
    steps: int,
    enable: dict[str, Any],
    progress: output.Progress,
) -> list[dict[str, Any]]:
    """A replay's result for each workload and allocator; driver_calls_after_split are those after the warm-up."""
    results = []
    for name in names:
        trace, split = build(name, steps)
        with PreparedTrace(trace) as prepared:
            for allocator in allocators:
                progress.say(f"{name} on {allocator}")
                results.append(
                    replay(workers, prepared, allocator, Setting(enable=enable, timed=False, split_row=split))
                )
    return results


def as_text(results: list[dict[str, Any]]) -> str:
    header = ["workload", "allocator", "operations", "peak live", "ratio", "calls", "after warm-up", "events", "waits"]
    rows: list[list[object]] = []
    for one in results:
        calls, late = sum(one["driver_calls"].values()), sum(one["driver_calls_after_split"].values())
        row = [one["trace"], one["allocator"], one["ops"], show(one["live_peak_bytes"]), one["ratio"], calls, late]
        rows.append([*row, one["events"], one["waits"]])
    lines = [output.table(header, rows)]
    lines += [f"{name}: {work.words}" for name, work in WORKLOADS.items()]
    lines.append(f"warm after {WARM_STEPS} steps")
    return "\n".join(lines)


if __name__ == "__main__":
    output.run_main(main)
