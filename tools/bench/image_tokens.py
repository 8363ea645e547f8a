#!/usr/bin/env python3
"""Fragmentation of the kv pool while KV tensors of images come and go, with large-page slabs of 16 MiB and without.

TRACE has a request a line: arrival_s, output_tokens, image_tokens_each (numbers with spaces between). Each image has a
KV tensor a layer, of a model with 28 layers, 4 KV heads of 128 and bf16: 2 KiB a token, keys and values. It is freed
when the request's output is done, at 30 tokens a second. The device is filled by weights so that the peak of the KV
tensors makes it 95 % full. Beside what was measured stands what slabs of 2 MiB for one size each (and several granules
for what is larger) would use at the least: computed, with every size packed anew at each moment.
"""

from __future__ import annotations

import csv
import gzip
import heapq
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from benchlib import machine, output
from benchlib.capacity import show
from benchlib.errors import BenchError
from benchlib.workers import Workers

EXAMPLES = """\
examples:
  python tools/bench/image_tokens.py requests.csv.gz
  python tools/bench/image_tokens.py requests.csv.gz --requests 3000 --json
"""

LAYERS, TOKENS_PER_SECOND = 28, 30.0
TOKEN_BYTES = 2 * 4 * 128 * 2  # keys and values, heads, head size, bf16
CAPACITY, FULL, SLAB = 80 << 30, 0.95, 2 << 20
SETTINGS = {  # words for values of kv_large_threshold
    "2 MiB granules only (default)": "0",
    "16 MiB slabs from 4 MiB on": "4MiB",
    "16 MiB slabs from 1 MiB on": "1MiB",
    "16 MiB slabs from 2 MiB on": "2MiB",
}


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("trace", type=output.file_argument)
    parser.add_argument("--requests", type=int, default=15_000, metavar="N", help="at most so many (default 15000)")
    args = parser.parse_args()
    if args.requests < 1:
        parser.error(f"--requests {args.requests}: expected at least 1")
    requests = read_requests(args.trace, args.requests)
    if not any(sizes for _, _, sizes in requests):
        raise BenchError(
            f"{args.trace}: no request with an image; expected columns arrival_s, output_tokens, image_tokens_each"
        )
    peak = max(bytes_of(live) for live in live_tensors(requests))
    if peak >= FULL * CAPACITY:
        raise BenchError(f"{args.trace}: {show(peak)} of KV tensors at once; this device has {show(CAPACITY)}")
    progress, results = output.Progress(), []
    with Workers() as workers:
        for words, threshold in SETTINGS.items():
            progress.say(words)
            options = {
                "requests": requests,
                "layers": LAYERS,
                "capacity": CAPACITY,
                "weights": int(FULL * CAPACITY - peak),
                "samples": 400,
                "enable": {"kv_large_threshold": threshold},
            }
            results.append({"setting": words, **summary(workers.run("images", "pyalloc", options))})
        facts = machine.describe(workers.facts)
    progress.done()
    report = {"trace": args.trace.name, "requests": len(requests), "live_peak_bytes": peak, "results": results}
    report["one_size_slabs"] = round(one_size_slabs(requests), 4)
    output.emit(report | {"machine": facts}, args.json, lambda: f"{as_text(report)}\n{machine.one_line(facts)}")
    return 0


def read_requests(path: Path, most: int) -> list[tuple[float, float, list[int]]]:
    """Arrival, end, and bytes of each image's tensor of one layer."""
    found = []
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            for row in csv.DictReader(file):
                sizes = [int(tokens) * TOKEN_BYTES for tokens in row["image_tokens_each"].split() if int(tokens) > 0]
                arrival = float(row["arrival_s"])
                found.append((arrival, arrival + int(row["output_tokens"]) / TOKENS_PER_SECOND, sizes))
                if len(found) == most:
                    break
    except (KeyError, ValueError, OSError) as error:
        raise BenchError(
            f"{path}: {error!r}; expected CSV with columns arrival_s, output_tokens and image_tokens_each"
        ) from error
    return found


def live_tensors(requests: list[tuple[float, float, list[int]]]) -> Iterator[Counter[int]]:
    """After each arrival, how many tensors of each size there are."""
    leaving: list[tuple[float, int, list[int]]] = []
    live: Counter[int] = Counter()
    for number, (arrival, end, sizes) in enumerate(requests):
        while leaving and leaving[0][0] <= arrival:
            for size in heapq.heappop(leaving)[2]:
                live[size] -= LAYERS
        for size in sizes:
            live[size] += LAYERS
        heapq.heappush(leaving, (end, number, sizes))
        yield live


def bytes_of(live: Counter[int]) -> int:
    return sum(size * count for size, count in live.items())


def one_size_slabs(requests: list[tuple[float, float, list[int]]]) -> float:
    """Used / live of slabs of 2 MiB with blocks of one size each, as densely as can be, after the first fifth."""
    ratios = []
    for number, live in enumerate(live_tensors(requests)):
        if number < len(requests) // 5 or number % 40 != 0 or bytes_of(live) == 0:
            continue
        slabs = {size: -(-count // max(1, SLAB // size)) * -(-size // SLAB) for size, count in live.items()}
        ratios.append(sum(slabs.values()) * SLAB / bytes_of(live))
    return mean(ratios) if ratios else 0.0


def summary(raw: dict[str, Any]) -> dict[str, Any]:
    """Over the samples after the first fifth."""
    settled = raw["samples"][len(raw["samples"]) // 5 :]
    return {
        "external_mean": round(mean(one["external"] for one in settled), 4),
        "external_most": round(max(one["external"] for one in settled), 4),
        "granule_mean": round(mean(one["granule"] for one in settled), 4),
        "granule_most": round(max(one["granule"] for one in settled), 4),
        "used_over_live": round(mean(one["used"] / max(1, one["requested"]) for one in settled), 4),
        "refused": raw["refused"],
        "mapped_runs": raw["counters"]["map_runs"],
        "stolen_granules": raw["counters"]["stolen_granules"],
        "violations": raw["violations"],
    }


def as_text(report: dict[str, Any]) -> str:
    header = ["setting", "external", "most", "granule", "most", "used / live", "refused", "runs mapped"]
    keys = (
        "external_mean",
        "external_most",
        "granule_mean",
        "granule_most",
        "used_over_live",
        "refused",
        "mapped_runs",
    )
    rows = [[one["setting"], *(one[key] for key in keys)] for one in report["results"]]
    return (
        f"{report['trace']}: {report['requests']:,} requests, KV tensors of {show(report['live_peak_bytes'])} at once\n"
        f"{output.table(header, rows)}\n"
        f"slabs of 2 MiB for one size each, packed as densely as can be: used / live {report['one_size_slabs']}"
    )


if __name__ == "__main__":
    output.run_main(main)
