#!/usr/bin/env python3
"""Replays an allocation trace on pyalloc, on torch's native allocator or on its expandable segments.

The trace is replayed by native code through c10's allocator interface, on the simulated GPU, in a process of its own.
Each allocation and free stands for one operation on its stream that is finished 200 us of trace time later, so that
waits, events and retries mean something. Driver calls cost what the table printed with the result says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchlib import costs, machine, output
from benchlib.capacity import parse_capacity, show
from benchlib.replays import PreparedTrace, Setting, replay
from benchlib.traces import read_trace
from benchlib.workers import ALLOCATORS, Workers

EXAMPLES = """\
examples:
  python tools/bench/replay.py serving.csv.gz                                   all three allocators
  python tools/bench/replay.py serving.csv.gz --allocator pyalloc --slack 0
  python tools/bench/replay.py serving.csv.gz --capacity 1.05x                  a device of 1.05 times peak live
  python tools/bench/replay.py rmm_log.txt --allocator native --capacity 24GiB --json
  python tools/bench/replay.py serving.csv.gz --allocator pyalloc --pools tag    blocks go to pools by the column tag
  python tools/bench/replay.py serving.csv.gz --frontier --picture frontier.svg
"""
SLACKS = (0.0, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("trace", type=output.file_argument, help="our csv or csv.gz, or a log of RMM's logging adaptor")
    parser.add_argument(
        "--allocator", choices=ALLOCATORS, action="append", help="may be repeated; without it: all of them"
    )
    parser.add_argument("--capacity", metavar="SIZE", help="bytes, 80GiB, or 1.05x of peak live; default: ample")
    parser.add_argument("--slack", type=float, help="pyalloc's option slack; default: its own")
    parser.add_argument("--option", **output.OPTION_ARGUMENT)
    parser.add_argument("--pools", choices=("tag",), help="pyalloc's purpose pools, by the trace's column tag")
    parser.add_argument("--validate", type=int, default=0, metavar="N", help="pyalloc checks itself every N rows")
    parser.add_argument("--no-timing", action="store_true", help="without the second pass, which gives ns_per_op")
    parser.add_argument("--frontier", action="store_true", help="sweep slack: reserved memory against driver time")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="with --frontier: draw it (needs matplotlib)")
    args = parser.parse_args()
    if args.picture is not None and not args.frontier:
        parser.error("--picture goes with --frontier")
    if args.slack is not None and args.slack < 0:
        parser.error(f"--slack {args.slack}: expected 0 or more")

    enable = output.pyalloc_options(parser, args.option)
    if args.slack is not None:
        enable["slack"] = args.slack
    with PreparedTrace(read_trace(args.trace, by_tag=args.pools == "tag")) as prepared, Workers() as workers:
        capacity = parse_capacity(args.capacity, prepared.trace.live_peak) if args.capacity is not None else None
        setting = Setting(
            capacity, enable, timed=not args.no_timing, validate_rows=args.validate, purpose_pools=args.pools == "tag"
        )
        progress = output.Progress()
        results = []
        for allocator in args.allocator or ALLOCATORS:
            for slack in SLACKS if args.frontier and allocator == "pyalloc" else (None,):
                progress.say(
                    f"{prepared.trace.name} on {allocator}" + (f", slack {slack}" if slack is not None else "")
                )
                chosen = setting if slack is None else Setting(capacity, {**enable, "slack": slack}, timed=False)
                results.append(replay(workers, prepared, allocator, chosen))
        progress.done()
        facts = machine.describe(workers.facts)
    if args.picture is not None:
        from benchlib import pictures

        pictures.draw_frontier([results], args.picture)
    report = {"results": results, "costs": costs.table(), "machine": facts}
    if len(results) == 1:
        report = {**results[0], "costs": costs.table(), "machine": facts}
    output.emit(report, args.json, lambda: as_text(results, facts, prepared))
    return 0


def as_text(results: list[dict[str, Any]], facts: dict[str, Any], prepared: PreparedTrace) -> str:
    trace = prepared.trace
    header = ["allocator", "slack", "reserved", "ratio", "ns/op", "calls", "events", "waits", "syncs", "retries"]
    header += ["driver ms", "worst us", "failed at"]
    rows = []
    for one in results:
        slack = one.get("options", {}).get("slack", "default" if one["allocator"] == "pyalloc" else None)
        calls = sum(one["driver_calls"].values())
        rows.append(
            [one["allocator"], slack, show(one["reserved_peak_bytes"]), one["ratio"], one["ns_per_op"], calls]
            + [one[key] for key in ("events", "waits", "device_syncs", "retries")]
            + [one["modelled_driver_us"] / 1e3, one["modelled_worst_us"], one["failed_at"]]
        )
    lines = [
        f"{trace.name}: {trace.count:,} operations, {trace.streams} streams, peak live {show(trace.live_peak)}, "
        f"device of {show(results[0]['capacity'])}",
        output.table(header, rows),
    ]
    for one in results:
        if "pools" in one:
            used = {name: figures for name, figures in one["pools"].items() if figures["peak"]}
            rows = [
                [name, show(one["live_peak"]), show(one["peak"]), f"{one['peak'] / max(1, one['live_peak']):.3f}"]
                for name, one in used.items()
            ]
            lines.append(output.table(["pool", "peak live", "peak used", "ratio"], rows))
    lines += [f"{one['allocator']}: {one['message'].splitlines()[0][:200]}" for one in results if one.get("message")]
    lines += [f"{one['allocator']}: driver rule broken: {one['violation']}" for one in results if one.get("violation")]
    if any(one["pools_honoured"] is False for one in results):
        names = ", ".join(one["allocator"] for one in results if one["pools_honoured"] is False)
        lines.append(f"private pools are not supported by {names} yet: served from the default pool")
    return "\n".join([*lines, costs.one_line(), machine.one_line(facts)])


if __name__ == "__main__":
    output.run_main(main)
