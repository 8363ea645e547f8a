#!/usr/bin/env python3
"""LoRA adapters loaded and unloaded whole, at random, on a device that weights have filled.

Small ones: Llama-3.2-1B, q_proj and v_proj, bf16, ranks 8 to 128 (1.6 to 26 MiB in 64 tensors). For pyalloc everything
but the reserve of 64 MiB is full; torch's allocators get the same 64 MiB free, and where they cannot load they must
unload another adapter first. Large ones, with --adapters TRACE: those of the trace's rows tagged `adapter`, which do
not fit the reserve, on a device with 6 GiB free: overflowing to the general pool, and prepared for with lora_prepare().
External fragmentation of the lora pool is that after each load, however little is free. --seed orders the loads.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from statistics import median
from typing import Any

from benchlib import costs, machine, output
from benchlib.errors import BenchError
from benchlib.workers import ALLOCATORS, Workers

EXAMPLES = """\
examples:
  python tools/bench/lora_loads.py
  python tools/bench/lora_loads.py --occupancy 60 --loads 2000
  python tools/bench/lora_loads.py --adapters multi_lora_swap.csv.gz --json
"""

HIDDEN, KV_WIDTH, LAYERS, BF16 = 2048, 512, 16, 2  # Llama-3.2-1B
RANKS = (8, 16, 32, 64, 128)
CAPACITY, RESERVE, ROOM = 16 << 30, 64 << 20, 6 << 30
LARGE_CAPACITY, LARGE_OCCUPANCY, LARGE_LOADS = 80 << 30, 4 << 30, 200
TENSORS = 256  # of a large adapter


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("--loads", type=int, default=9000, metavar="N", help="small loads (default 9000)")
    parser.add_argument(
        "--occupancy", type=int, default=60, metavar="MIB", help="most of the 64 MiB in use (default 60)"
    )
    parser.add_argument("--adapters", type=output.file_argument, metavar="TRACE", help="large ones as well")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the order of loads (default 1)")
    args = parser.parse_args()
    largest = sum(small_adapter(max(RANKS))) >> 20
    if args.loads < 1:
        parser.error(f"--loads {args.loads}: expected at least 1")
    if not largest < args.occupancy <= RESERVE >> 20:
        parser.error(f"--occupancy {args.occupancy}: expected {largest + 1} to {RESERVE >> 20} MiB")
    progress, results = output.Progress(), []
    small = {
        "adapters": [small_adapter(rank) for rank in RANKS],
        "loads": args.loads,
        "occupancy": args.occupancy << 20,
        "capacity": CAPACITY,
        "seed": args.seed,
    }
    with Workers() as workers:
        for allocator in ALLOCATORS:
            progress.say(f"small adapters on {allocator}")
            ours = allocator == "pyalloc"
            options = small | {"leave": 0 if ours else RESERVE, "enable": {"lora_reserve": RESERVE} if ours else {}}
            results.append(summary("small", allocator, workers.run("lora", allocator, options)))
        for prepare in (False, True) if args.adapters is not None else ():
            words = "large, prepared" if prepare else "large, overflowing"
            progress.say(words)
            options = {
                "adapters": large_adapters(args.adapters),
                "loads": LARGE_LOADS,
                "occupancy": LARGE_OCCUPANCY,
                "capacity": LARGE_CAPACITY,
                "seed": args.seed,
                "leave": ROOM,
                "prepare": prepare,
                "enable": {"lora_reserve": RESERVE},
            }
            results.append(summary(words, "pyalloc", workers.run("lora", "pyalloc", options)))
        facts = machine.describe(workers.facts)
    progress.done()
    report = {"occupancy_mib": args.occupancy, "results": results, "costs": costs.table(), "machine": facts}
    output.emit(report, args.json, lambda: f"{as_text(results)}\n{costs.one_line()}\n{machine.one_line(facts)}")
    return 0


def small_adapter(rank: int) -> list[int]:
    """Bytes of its tensors: A and B of q_proj and v_proj in each layer."""
    layer = (rank * HIDDEN, HIDDEN * rank, rank * HIDDEN, KV_WIDTH * rank)
    return [BF16 * size for _ in range(LAYERS) for size in layer]


def large_adapters(path: Path) -> list[list[int]]:
    """The different adapters of a trace: runs of 256 allocations tagged `adapter`."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        rows = csv.DictReader(file)
        if "tag" not in (rows.fieldnames or ()):
            raise BenchError(f"{path}: no column tag; expected a trace with adapters")
        sizes = [int(row["bytes"]) for row in rows if row["op"] == "alloc" and row["tag"] == "adapter"]
    runs = {tuple(sizes[start : start + TENSORS]) for start in range(0, len(sizes) - TENSORS + 1, TENSORS)}
    if not runs:
        raise BenchError(f"{path}: {len(sizes)} rows tagged adapter; expected at least {TENSORS}")
    return [list(run) for run in sorted(runs)]


def summary(what: str, allocator: str, raw: dict[str, Any]) -> dict[str, Any]:
    times, modelled = sorted(raw["microseconds"]), sorted(raw["modelled"])
    return {
        "adapters": what,
        "allocator": allocator,
        "loads": len(times),
        "p50_us": round(median(times), 1),
        "p99_us": round(times[(99 * len(times) - 1) // 100], 1),
        "modelled_p50_us": round(median(modelled), 1),
        "modelled_worst_us": round(modelled[-1], 1),
        "preparing_worst_us": round(raw["preparing_worst_us"], 1),
        "driver_calls": raw["calls"],
        "unloaded_first": raw["made_room"],
        "external_mean": round(raw["external_mean"], 4) if allocator == "pyalloc" else None,
        "external_most": round(raw["external_most"], 4) if allocator == "pyalloc" else None,
        "overflowed_blocks": raw.get("lora_overflows"),
    }


def as_text(results: list[dict[str, Any]]) -> str:
    header = ["adapters", "allocator", "loads", "p50 us", "p99 us", "driver p50 us", "worst", "preparing", "calls"]
    header += ["unloaded first", "external", "most", "overflowed"]
    return output.table(header, [list(one.values()) for one in results])


if __name__ == "__main__":
    output.run_main(main)
