#!/usr/bin/env python3
"""Time per operation of the allocators, through the same c10 interface, in the same moments.

Each allocator has a process that stays alive, and they take turns: a round is one short pass of each. A ratio is the
median of the rounds' ratios, with its 95 % interval; rounds go on until that is narrow, or the time is up. All of it
is done several times from fresh processes. Passes of one thread are measured in processor time, those of several
threads in wall time while each has a core. A pair or a replacement is one free and one allocation.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchlib import machine, output, ratios
from benchlib.enabling import enable_milliseconds
from benchlib.latency_job import cores
from benchlib.workers import ALL, ALLOCATORS, Workers

EXAMPLES = """\
examples:
  python tools/bench/latency.py                                        pyalloc, native and expandable
  python tools/bench/latency.py --case core --allocator pyalloc --allocator native
  python tools/bench/latency.py --scale 0.1 --starts 1 --json          a quick look
"""
LIVE = (1000, 10000, 100000)
THREADS = (1, 2, 4)
RMM_GRID = tuple((count, mib) for count in (1000, 10000, 100000) for mib in (1, 4, 64, 256, 1024, 4096))
# Each line is raced in processes of its own, in this order: what is churned there is churned for what follows.
GROUPS = {
    "core": ("pair_fresh", *(f"random_{live}" for live in LIVE), "pair_churned"),
    "rmm": tuple(f"rmm_{count}x{mib}" for count, mib in RMM_GRID),
    "threads": ("_".join(map(str, ("threads", *THREADS))),),
    "python": ("torch_empty",),
}
CASES = (*GROUPS, "enable")
STARTS = 8
ROUNDS, SECONDS, WIDTH = (
    5,
    3,
    0.04,
)  # at least, at most for a case and start, and how narrow a ratio's interval is wanted
RMM_ROUNDS, RMM_SECONDS = 6, 0.6
ENABLES = 5
WORDS = {
    "pair_fresh": "same size, fresh process",
    "pair_churned": "same size, after churn",
    "random_": "random log-normal, live blocks: ",
    "rmm_": "RMM random_allocations, count x MiB: ",
    "threads_": "random, 1000 live each, threads: ",
    "torch_empty": "torch.empty + free, from Python",
}


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("--allocator", choices=ALLOCATORS, action="append", help="may be repeated; default: all")
    parser.add_argument("--case", choices=CASES, action="append", help="may be repeated; default: all")
    parser.add_argument("--starts", type=int, default=STARTS, metavar="N", help=f"fresh processes, default {STARTS}")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="length of every pass, 1 is full")
    args = parser.parse_args()
    if args.starts < 1 or not 0 < args.scale <= 10:
        parser.error(f"--starts {args.starts} --scale {args.scale}: expected at least one start, and a scale up to 10")
    with Workers() as workers:
        progress = output.Progress()
        report = measure(
            workers, tuple(args.allocator or ALLOCATORS), tuple(args.case or CASES), args.starts, args.scale, progress
        )
        progress.done()
        report["machine"] = machine.describe(workers.facts)
    output.emit(report, args.json, lambda: as_text(report))
    return 0


def measure(
    workers: Workers,
    allocators: tuple[str, ...],
    cases: tuple[str, ...],
    starts: int,
    scale: float,
    progress: output.Progress,
    least_seconds: float = 0.0,
) -> dict[str, Any]:
    """{"ns": case -> allocator -> spread(), "ratios": case -> other allocator -> ratios.summary() of ours to its,
    "speedup": threads -> that of ours to one thread, "exact_peaks": allocator -> threads -> yes, "enable_ms"}.
    """
    samples: dict[str, dict[str, list[float]]] = {}
    for index in range(starts):
        for group in (case for case in cases if case in GROUPS):
            progress.say(f"start {index + 1} of {starts}: {group}")
            grid = group == "rmm"
            options = {
                "allocators": allocators if index % 2 == 0 else allocators[::-1],
                "cases": GROUPS[group],
                "scale": scale,
                "rounds": RMM_ROUNDS if grid else ROUNDS,
                "seconds": RMM_SECONDS if grid else SECONDS,
                "width": WIDTH,
                "least_seconds": least_seconds,
            }
            for name, found in workers.run("turns", ALL, options)["samples"].items():
                for allocator, values in found.items():
                    samples.setdefault(name, {}).setdefault(allocator, []).extend(values)
    ours = [name for name in allocators if name == ratios.OURS]
    report: dict[str, Any] = {
        "starts": starts,
        "scale": scale,
        "ns": {name: {key: spread(found[key]) for key in allocators} for name, found in samples.items()},
        "ratios": {
            name: {
                other: ratios.summary(ratios.paired(found[one], found[other]))
                for one in ours
                for other in allocators
                if other != one
            }
            for name, found in samples.items()
            if not crowded(name)
        },
    }
    if "threads" in cases:
        one_thread = samples["threads_1"]
        report["speedup"] = {
            str(number): ratios.summary(ratios.paired(one_thread[name], samples[f"threads_{number}"][name]))
            for name in ours
            for number in THREADS
            if not crowded(f"threads_{number}")
        }
        report["exact_peaks"] = {}
        for allocator in allocators:
            progress.say(f"exact peaks: {allocator}")
            held = workers.run("latency", allocator, {"threads": THREADS})
            report["exact_peaks"][allocator] = held["exact_peaks"]
            report |= {"metadata": held["metadata"]} if held["metadata"] else {}
    if "enable" in cases and ours:
        progress.say("enable()")
        report["enable_ms"] = spread([enable_milliseconds() for _ in range(ENABLES)])
    return report


def crowded(name: str) -> bool:
    """Whether it is of more threads than there are cores: how those share them is the kernel's doing."""
    return name.startswith("threads_") and int(name.removeprefix("threads_")) > cores()


def spread(values: list[float]) -> dict[str, Any]:
    """Of those that were measured."""
    measured = [value for value in values if not math.isnan(value)]
    figures = (statistics.median(measured), min(measured), max(measured)) if measured else (None, None, None)
    rounded = (None if figure is None else round(figure, 1) for figure in figures)
    return {**dict(zip(("median", "low", "high"), rounded, strict=True)), "rounds": len(measured)}


def label(name: str) -> str:
    for start, words in WORDS.items():
        if name == start or (start.endswith("_") and name.startswith(start)):
            return words + name.removeprefix(start)
    return name


def as_text(report: dict[str, Any]) -> str:
    allocators = list(next(iter(report["ns"].values()), {}))
    header = ["ns per operation (lowest to highest)", *allocators]
    others = list(next(iter(report["ratios"].values()), {}))
    header += [f"pyalloc / {other}" for other in others]
    rows: list[list[object]] = []
    for name, found in report["ns"].items():
        row: list[object] = [label(name), *(output.spread_text(one, "{:,.0f}") for one in found.values())]
        row += [output.spread_text(report["ratios"].get(name, {}).get(other), "{:.3f}") for other in others]
        rows.append(row)
    lines = [output.table(header, rows)]
    for allocator, found in report.get("exact_peaks", {}).items():
        wrong = [threads for threads, yes in found.items() if not yes]
        verdict = f"wrong with {', '.join(wrong)} threads" if wrong else "exact with every number of threads"
        lines.append(f"peaks of {allocator}: {verdict}")
    if "enable_ms" in report:
        lines.append(f"enable(), torch imported and bridge compiled: {report['enable_ms']['median']:.0f} ms")
    return "\n".join([*lines, machine.one_line(report["machine"])])


if __name__ == "__main__":
    output.run_main(main)
