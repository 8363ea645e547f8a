#!/usr/bin/env python3
"""Time per operation of the allocators, through the same c10 interface, in the same run.

Every round runs each allocator in a fresh process, one after the other, so that whatever else the machine does hits all
of them; medians over the rounds are compared. A pair or a replacement is one free and one allocation.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchlib import machine, output
from benchlib.enabling import enable_milliseconds
from benchlib.workers import ALLOCATORS, Workers

EXAMPLES = """\
examples:
  python tools/bench/latency.py                                        pyalloc, native and expandable, 5 rounds
  python tools/bench/latency.py --case core --allocator pyalloc --allocator native
  python tools/bench/latency.py --scale 0.1 --rounds 3 --json          a quick look
"""
CASES = ("core", "rmm", "threads", "python", "enable")
LIVE = (1000, 10000, 100000)
THREADS = (1, 2, 4)
RMM_GRID = tuple((count, mib) for count in (1000, 10000, 100000) for mib in (1, 4, 64, 256, 1024, 4096))
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
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="length of every loop, 1 is full")
    args = parser.parse_args()
    if args.rounds < 1 or not 0 < args.scale <= 10:
        parser.error(f"--rounds {args.rounds} --scale {args.scale}: expected at least one round, and a scale up to 10")
    with Workers() as workers:
        progress = output.Progress()
        report = measure(
            workers, tuple(args.allocator or ALLOCATORS), tuple(args.case or CASES), args.rounds, args.scale, progress
        )
        progress.done()
        report["machine"] = machine.describe(workers.facts)
    output.emit(report, args.json, lambda: as_text(report))
    return 0


def measure(
    workers: Workers,
    allocators: tuple[str, ...],
    cases: tuple[str, ...],
    rounds: int,
    scale: float,
    progress: output.Progress,
) -> dict[str, Any]:
    """{"ns": case -> allocator -> {"median", "low", "high", "rounds"}, "exact_peaks", "enable_ms"}."""
    samples: dict[str, dict[str, list[float]]] = {}
    exact: dict[str, dict[str, bool]] = {}
    # Threads start in a process of their own: what the loops before left behind is not theirs.
    groups = [[case] for case in cases if case != "enable"]
    for index in range(rounds):
        for group in groups:
            for allocator in allocators:
                progress.say(f"round {index + 1} of {rounds}: {', '.join(group)} on {allocator}")
                options = {"cases": group, "scale": scale, "live": LIVE, "threads": THREADS, "rmm": RMM_GRID}
                answer = workers.run("latency", allocator, options)
                for name, ns in answer["ns"].items():
                    samples.setdefault(name, {}).setdefault(allocator, []).append(ns)
                for threads, yes in answer.get("exact_peaks", {}).items():
                    held = exact.setdefault(allocator, {})
                    held[threads] = yes and held.get(threads, True)
    report: dict[str, Any] = {
        "rounds": rounds,
        "scale": scale,
        "ns": {name: {key: spread(values) for key, values in found.items()} for name, found in samples.items()},
    }
    if exact:
        report["exact_peaks"] = exact
    if "enable" in cases and "pyalloc" in allocators:
        progress.say("enable()")
        report["enable_ms"] = spread([enable_milliseconds() for _ in range(rounds)])
    return report


def spread(values: list[float]) -> dict[str, Any]:
    return {
        "median": round(statistics.median(values), 1),
        "low": round(min(values), 1),
        "high": round(max(values), 1),
        "rounds": len(values),
    }


def label(name: str) -> str:
    for start, words in WORDS.items():
        if name == start or (start.endswith("_") and name.startswith(start)):
            return words + name.removeprefix(start)
    return name


def as_text(report: dict[str, Any]) -> str:
    allocators = list(next(iter(report["ns"].values()), {}))
    header = ["ns per operation (lowest to highest)", *allocators]
    header += [f"pyalloc / {name}" for name in allocators if name != "pyalloc" and "pyalloc" in allocators]
    rows: list[list[object]] = []
    for name, found in report["ns"].items():
        row: list[object] = [label(name)]
        row += [f"{one['median']:.0f} ({one['low']:.0f} to {one['high']:.0f})" for one in found.values()]
        if "pyalloc" in found:
            own = found["pyalloc"]["median"]
            row += [f"{own / one['median']:.3f}" for key, one in found.items() if key != "pyalloc"]
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
