#!/usr/bin/env python3
"""What it costs an allocation and its free, from Python, to be watched: by sampled stacks, by torch's history.

One process on the simulated GPU turns each on and off in turns, so that what else the machine does meets all of them;
times are of the processor. A figure is the median of the rounds, and what it adds is the median of the rounds'
differences to the same round with nothing on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchlib import machine, output

EXAMPLES = """\
examples:
  python tools/bench/watching.py
  python tools/bench/watching.py --rounds 100 --json
"""
SIZES = {"4 KB": 4000, "1 MiB": 1 << 20}
MEASURED = 2000  # allocations in a pass


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="default 40")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected at least 1")
    report = {"rows": measure(args.rounds), "machine": machine.describe({})}
    header = ["torch.empty + free, ns", *(f"{size}{more}" for size in SIZES for more in ("", ", added"))]
    output.emit(
        report,
        args.json,
        lambda: output.table(header, [list(row.values()) for row in report["rows"]]),
    )
    return 0


def measure(rounds: int) -> list[dict[str, Any]]:
    import pyalloc
    from pyalloc import sampled_stacks, simgpu

    simgpu.install(memory="8GiB")
    pyalloc.enable(bridge="require", sample_stacks="64MiB")
    import torch
    from torch.cuda import memory

    bridge: Any = sampled_stacks._bridge
    device = torch.device("cuda", 0)

    def sample(interval: int) -> Callable[[], None]:
        return lambda: bridge.pyalloc_bridge_sample_stacks(interval)

    def record(**options: Any) -> Callable[[], None]:
        return lambda: memory._record_memory_history(max_entries=10000, **options)

    def nothing() -> None:
        bridge.pyalloc_bridge_sample_stacks(0)
        memory._record_memory_history(None)

    cases = {
        "nothing": nothing,
        "sample_stacks:1GiB": sample(1 << 30),
        "sample_stacks:64MiB": sample(64 << 20),
        "sample_stacks:1MiB": sample(1 << 20),
        "history without stacks": record(context=None),
        "history, Python stacks": record(stacks="python"),
        "history, C++ stacks": record(stacks="all"),
    }

    def one_pass(size: int) -> float:
        started = time.process_time_ns()
        for _ in range(MEASURED):
            torch.empty(size, dtype=torch.uint8, device=device)
        return (time.process_time_ns() - started) / MEASURED

    found: dict[str, dict[str, list[float]]] = {case: {size: [] for size in SIZES} for case in cases}
    for round_ in range(rounds + 1):
        for case, begin in cases.items():
            begin()
            for size, bytes_ in SIZES.items():
                taken = one_pass(bytes_)
                if round_ > 0:  # the first warms up
                    found[case][size].append(taken)
            nothing()
    rows = []
    for case in cases:
        row: dict[str, Any] = {"case": case}
        for size in SIZES:
            pairs = zip(found[case][size], found["nothing"][size], strict=True)
            row[size] = round(statistics.median(found[case][size]), 1)
            row[f"{size}, added"] = round(statistics.median(one - other for one, other in pairs), 1)
        rows.append(row)
    return rows


if __name__ == "__main__":
    output.run_main(main)
