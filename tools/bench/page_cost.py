#!/usr/bin/env python3
"""What the stats page costs: allocation latency with it and without, in turns, and the processor time of writing it.

Latency is measured as latency.py does, with pyalloc in two processes that differ in the option stats_page alone. What
writing costs is what the pages say themselves (publish_ns), of processes that allocate all the time meanwhile.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from typing import Any

import latency
from benchlib import machine, output
from benchlib.workers import Workers

from pyalloc.stats_page import StatsPage, page_files

EXAMPLES = """\
examples:
  python tools/bench/page_cost.py
  python tools/bench/page_cost.py --scale 0.2 --starts 2 --json
"""
LEAST_WRITES = 3  # of a page that lived long enough to say what it costs
LEAST_SECONDS = 0.5  # of a case, however fast the machine is: a page is written ten times a second
BOTH = ("pyalloc", "pyalloc stats_page=off")


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("--case", choices=latency.GROUPS, action="append", help="may be repeated; default: core")
    parser.add_argument("--starts", type=int, default=4, metavar="N", help="fresh processes, default 4")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F", help="length of every pass, 1 is full")
    args = parser.parse_args()
    progress = output.Progress()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYALLOC_SHARED_FOLDER"] = folder  # the pages stay there: the racers end without cleaning up
        with Workers() as workers:
            cases = tuple(args.case or ("core",))
            report = latency.measure(workers, BOTH, cases, args.starts, args.scale, progress, LEAST_SECONDS)
            report["machine"] = machine.describe(workers.facts)
        report["pages"] = [cost for path in page_files() if (cost := page_cost(path)) is not None]
    progress.done()
    output.emit(report, args.json, lambda: as_text(report))
    return 0


def page_cost(path: Any) -> dict[str, float] | None:
    """Of one page's life; None where it was too short to say."""
    with StatsPage(path) as page:
        process = page.read().process
    seconds = (process["published_ms"] - process["opened_ms"]) / 1000
    if process["publishes"] < LEAST_WRITES or seconds <= 0:
        return None
    return {
        "seconds": seconds,
        "publishes": process["publishes"],
        "us_each": process["publish_ns"] / process["publishes"] / 1000,
        "share_of_a_core": process["publish_ns"] / 1e9 / seconds,
    }


def as_text(report: dict[str, Any]) -> str:
    shares = [page["share_of_a_core"] for page in report["pages"]]
    lines = [latency.as_text(report)]
    if shares:
        each = statistics.median(page["us_each"] for page in report["pages"])
        lines.append(
            f"writing the page: {each:.0f} us each (median), {statistics.median(shares):.4%} of a core, "
            f"at most {max(shares):.4%}, of {len(shares)} processes"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    output.run_main(main)
