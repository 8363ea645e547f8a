#!/usr/bin/env python3
"""Runs every benchmark over a folder of traces and writes one Markdown and one JSON table, with pictures.

Traces lie in the folder; those in its subfolder real/ were recorded on GPUs and are small. Files named
*.driver.csv.gz and *.blocks.csv.gz belong to traces and are left out. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import latency
from benchlib import costs, machine, output, pages, pictures, race, ratios, targets
from benchlib.errors import BenchError
from benchlib.pool import Pool, Task
from benchlib.replays import PreparedTrace, Setting, replay
from benchlib.traces import read_trace
from benchlib.workers import ALLOCATORS, Workers

EXAMPLES = """\
examples:
  python tools/bench/report.py traces/
  python tools/bench/report.py traces/ --out /tmp/report --only replays
  python tools/bench/report.py traces/ --against tools/bench/results/report.json       how far two runs differ
"""
RESULTS = Path(__file__).resolve().parent / "results"
PARTS = ("replays", "latency")
_BESIDES = (".driver.csv.gz", ".blocks.csv.gz")
RMM_SCALE = 0.1


def main() -> int:
    parser = output.parser((__doc__ or "").strip(), EXAMPLES)
    parser.add_argument("folder", type=Path, help="of traces")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="default: tools/bench/results")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated; the rest is kept as it was")
    parser.add_argument(
        "--starts", type=int, default=latency.STARTS, metavar="N", help=f"of latency.py, default {latency.STARTS}"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="replays at once")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier report.json to compare with")
    args = parser.parse_args()
    earlier = read_report(args.against) if args.against is not None else None
    args.out.mkdir(parents=True, exist_ok=True)
    written = args.out / "report.json"
    report: dict[str, Any] = read_report(written) if args.only and written.is_file() else {}
    started = time.monotonic()
    progress = output.Progress()
    parts = tuple(args.only or PARTS)
    if "latency" in parts:  # first: nothing else runs yet
        progress.milestone("time per operation")
        report |= measure_latency(args.starts, progress)
    if "replays" in parts:
        report |= measure_replays(trace_files(args.folder), args.jobs, progress)
    progress.done()
    report["costs"] = costs.table()
    report["seconds"] = round(time.monotonic() - started)
    write(report, args.out)
    result: dict[str, Any] = {"out": str(args.out), "seconds": report["seconds"]}
    if {"replays", "latency"} <= report.keys():
        result["missed"] = {row.what: row.missed for row in targets.judge(report) if not row.met}
    if earlier is not None:
        result["differences"] = differences(report, earlier)
    output.emit(result, args.json, lambda: as_text(result))
    return 0


def trace_files(folder: Path) -> dict[str, Path]:
    """Captures first, then what lies in real/, by name. Raises BenchError when there is none."""
    if not folder.is_dir():
        raise BenchError(f"{folder} is no folder; expected one with traces (*.csv.gz or *.csv)")
    found: dict[str, Path] = {}
    for place, prefix in ((folder, ""), (folder / "real", "real/")):
        for path in sorted([*place.glob("*.csv.gz"), *place.glob("*.csv")]):
            if not path.name.endswith(_BESIDES):
                found[prefix + path.name.removesuffix(".gz").removesuffix(".csv")] = path
    if not found:
        raise BenchError(f"{folder} holds no trace (*.csv.gz or *.csv)")
    return found


def measure_latency(starts: int, progress: output.Progress) -> dict[str, Any]:
    with Workers() as workers:
        found = latency.measure(workers, ALLOCATORS, ("core", "threads", "python", "enable"), starts, 1.0, progress)
        grid = latency.measure(workers, ALLOCATORS, ("rmm",), starts, RMM_SCALE, progress)
        for figures in ("ns", "ratios"):
            found[figures] |= grid[figures]
        books = found.pop("metadata")
        return {"latency": found, "metadata": books, "machine": machine.describe(workers.facts)}


def measure_replays(files: Mapping[str, Path], jobs: int, progress: output.Progress) -> dict[str, Any]:
    with ExitStack() as stack:
        traces = {}
        for name, path in files.items():
            progress.say(f"reading {name}")
            traces[name] = stack.enter_context(PreparedTrace(read_trace(path)))
        captures = [name for name in files if not name.startswith("real/")]
        pool = stack.enter_context(Pool(max(1, jobs)))

        def stage(words: str, tasks: dict[race.Key, Task]) -> dict[race.Key, Any]:
            left = len(tasks)
            progress.milestone(f"{words}: {left} tasks")

            def done(key: race.Key) -> None:
                nonlocal left
                left -= 1
                progress.say(f"{words}: {left} left, {' '.join(key)} done")

            return pool.run(tasks, done)

        replays = stage("plenty of memory", race.ample(traces))
        replays |= stage("little memory", race.tight(traces, set(captures), replays))
        replays |= stage("generated steps", race.generated())
        with Workers() as workers:
            for name in captures:
                for allocator in ALLOCATORS:
                    progress.say(f"time per operation: {name} on {allocator}")
                    timed = replay(workers, traces[name], allocator, Setting())
                    replays["ample", name, allocator]["ns_per_op"] = timed["ns_per_op"]
            facts = machine.describe(workers.facts)
        return {
            "captures": captures,
            "recorded": [name for name in files if name.startswith("real/")],
            "replays": {"/".join(key): result for key, result in replays.items()},
            "machine": facts,
        }


def write(report: Mapping[str, Any], out: Path) -> None:
    drawn = draw(report, out) if pictures.available() else []
    (out / "report.json").write_text(json.dumps(without_samples(report), indent=1) + "\n")
    (out / "report.md").write_text(pages.page(report, drawn))


def draw(report: Mapping[str, Any], out: Path) -> list[str]:
    """Writes the pictures and returns their file names."""
    names = []
    if "replays" in report:
        runs = report["replays"]
        fragmenting = sorted({key.split("/")[1] for key in runs if key.startswith("frontier/")})
        if fragmenting:
            panels = []
            for name in fragmenting:
                line = [one for key, one in runs.items() if key.startswith(f"frontier/{name}/")]
                panels.append([*line, *(runs[f"ample/{name}/{other}"] for other in ("native", "expandable"))])
            pictures.draw_frontier(panels, out / "frontier.svg")
            names.append("frontier.svg")
            worst = max(fragmenting, key=lambda name: float(runs[f"ample/{name}/native"]["ratio"]))
            lines = [runs[f"ample/{worst}/{allocator}"] for allocator in ("native", "expandable", "pyalloc")]
            if all("samples" in one for one in lines):
                pictures.draw_memory(lines, out / "memory.svg")
                names.append("memory.svg")
    if "latency" in report:
        cases = [("pair_fresh", "same size,\nfresh"), ("pair_churned", "same size,\nchurned")]
        cases += [(f"random_{live}", f"random,\n{live:,} live") for live in latency.LIVE]
        cases += [("torch_empty", "torch.empty\n(Python)")]
        pictures.draw_latency(report["latency"], cases, out / "latency.svg")
        names.append("latency.svg")
    return names


def without_samples(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report without the points of its pictures."""
    replays = {
        key: {name: value for name, value in run.items() if name != "samples"}
        for key, run in report.get("replays", {}).items()
    }
    return {**report, "replays": replays} if replays else dict(report)


def differences(report: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """How far the ratios of two runs are apart: memory, the most of all; time against native, of each case."""
    found: dict[str, Any] = {}
    runs, before = report.get("replays", {}), earlier.get("replays", {})
    memory = [abs(runs[key]["ratio"] / before[key]["ratio"] - 1) for key in runs if "ratio" in before.get(key, {})]
    if memory:
        found["memory"] = round(max(memory), 4)
    if "latency" in report and "latency" in earlier:
        both = [case for case in report["latency"]["ns"] if case in earlier["latency"]["ns"]]
        pairs = {case: [ratios.ratio(one["latency"], case) for one in (report, earlier)] for case in both}
        found["time_ratios"] = {
            case: round(now / before - 1, 4) for case, (now, before) in pairs.items() if now and before
        }
    return found


def read_report(path: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} is no report: {error}") from error
    return report


def as_text(result: Mapping[str, Any]) -> str:
    lines = [f"wrote {result['out']}/report.md and report.json after {result['seconds']} s"]
    lines += [f"missed: {what}: {'; '.join(missed)}" for what, missed in result.get("missed", {}).items()]
    apart = result.get("differences", {})
    if "memory" in apart:
        lines.append(f"memory: ratios at most {apart['memory']:.2%} from the other run's")
    if "time_ratios" in apart:
        worst = sorted(apart["time_ratios"].items(), key=lambda item: -abs(item[1]))
        lines.append("time: ratios from the other run's, " + ", ".join(f"{case} {value:+.1%}" for case, value in worst))
    return "\n".join(lines)


if __name__ == "__main__":
    output.run_main(main)
