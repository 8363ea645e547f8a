"""The Markdown page of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import costs, machine, targets
from .capacity import show
from .output import markdown, spread_text
from .ratios import ratio
from .workers import ALLOCATORS

Report = Mapping[str, Any]
LATENCY_ROWS = (
    ("pair_fresh", "same size, fresh process"),
    ("pair_churned", "same size, after churn"),
    ("random_1000", "random log-normal, 1,000 live"),
    ("random_10000", "random log-normal, 10,000 live"),
    ("random_100000", "random log-normal, 100,000 live"),
    ("threads_1", "random, 1 thread"),
    ("threads_2", "random, 2 threads, a stream and a core each (wall time / operations)"),
    ("threads_4", "random, 4 threads (more than cores: how they share them moves it, so no ratio)"),
    ("torch_empty", "`torch.empty` + free from Python"),
)


def page(report: Report, pictures: Sequence[str]) -> str:
    parts = ["# Benchmarks", introduction(report)]
    complete = {"replays", "latency"} <= report.keys()
    if complete:
        parts.append("## Targets\n\n" + verdicts(report))
    if "replays" in report:
        parts += ["## Memory\n\n" + memory(report), "## Little memory\n\n" + tight(report)]
    if "frontier.svg" in pictures:
        parts.append("## Frontier\n\n![Reserved memory against modelled driver time](frontier.svg)")
    if "memory.svg" in pictures:
        parts.append("![Live and reserved memory over the trace that fragments most](memory.svg)")
    if "replays" in report:
        parts.append("## Repeated steps\n\n" + steady(report))
    if "latency" in report:
        parts.append("## Time per operation\n\n" + latency(report))
        if "latency.svg" in pictures:
            parts.append("![Time per operation](latency.svg)")
    return "\n\n".join(parts) + "\n"


def readme(report: Report) -> str:
    """What README.md shows of a whole report: verdicts, memory and time, without the recorded traces and RMM's grid."""
    runs, order = report["replays"], ("native", "expandable", "pyalloc")
    header = [
        "trace, peak live",
        *(f"reserved / live: {one}" for one in order),
        *(f"smallest device: {one}" for one in order),
    ]
    rows: list[list[object]] = []
    for name in report["captures"]:
        row: list[object] = [f"{name}, {show(runs[f'ample/{name}/native']['live_peak_bytes'])}"]
        row += [f"{runs[f'ample/{name}/{one}']['ratio']:.3f}" for one in order]
        rows.append([*row, *(f"{runs[f'smallest/{name}/{one}']['ratio']:.3f}" for one in order)])
    times = []
    for case, words in LATENCY_ROWS:
        found = report["latency"]["ns"][case]
        medians: list[object] = [_number(found[one]["median"], "{:,.0f}") for one in order]
        times.append([words, *medians, _number(ratio(report["latency"], case), "{:.3f}")])
    return "\n\n".join(
        [
            markdown(header, rows),
            markdown(["ns per free and allocation", *order, "pyalloc / native"], times),
            verdicts(report),
            f"{machine.one_line(report['machine'])}.",
        ]
    )


def introduction(report: Report) -> str:
    return "\n\n".join(
        [
            f"Written by `tools/bench/report.py` on {machine.one_line(report['machine'])}, in {report['seconds']} s.",
            "A simulated GPU: memory, calls and their order are real, kernels do nothing; driver time is *modelled*: "
            f"calls counted, each at its cost on an H200 ({costs.listed()}).",
            "*Live* is requested bytes of blocks not freed, *reserved* the physical memory taken from the device for "
            "them. native is torch's caching allocator, expandable the same with `expandable_segments:True`.",
        ]
    )


def verdicts(report: Report) -> str:
    rows = []
    for row in targets.judge(dict(report)):
        rows.append([row.what, row.target, row.measured, "met" if row.met else "; ".join(row.missed)])
    return markdown(["what", "target", "measured", "verdict"], rows)


def memory(report: Report) -> str:
    runs = report["replays"]
    header = ["trace", "operations", "peak live", "native", "expandable", "pyalloc", "slack 0", "model"]
    header += ["driver ms: native", "expandable", "pyalloc"]
    rows: list[list[object]] = []
    for name in [*report["captures"], *report["recorded"]]:
        found = {allocator: runs[f"ample/{name}/{allocator}"] for allocator in ALLOCATORS}
        model = runs[f"model/{name}"]
        row: list[object] = [name, found["native"]["ops"], show(found["native"]["live_peak_bytes"])]
        row += [f"{found[allocator]['ratio']:.4f}" for allocator in ("native", "expandable", "pyalloc")]
        row += [f"{runs[f'slack 0/{name}']['ratio']:.4f}", f"{model['reserved_peak'] / model['live_peak']:.4f}"]
        row += [
            round(found[allocator]["modelled_driver_us"] / 1e3) for allocator in ("native", "expandable", "pyalloc")
        ]
        rows.append(row)
    text = "Peak reserved / peak live on an ample device, pyalloc at its default slack and at 0; the model is what "
    text += "sharing and moving granules can reach at slack 0."
    return f"{text}\n\n{markdown(header, rows)}"


def tight(report: Report) -> str:
    runs = report["replays"]
    header = ["trace", *(f"smallest: {allocator}" for allocator in ("native", "expandable", "pyalloc"))]
    header += [f"1.05x, ms: {allocator}" for allocator in ("native", "expandable", "pyalloc")]
    header += [f"1.01x, retries: {allocator}" for allocator in ("native", "expandable", "pyalloc")]
    rows: list[list[object]] = []
    for name in [*report["captures"], *report["recorded"]]:
        order = ("native", "expandable", "pyalloc")
        row: list[object] = [name, *(f"{runs[f'smallest/{name}/{one}']['ratio']:.4f}" for one in order)]
        for capacity, key in (("1.05x", "modelled_driver_us"), ("1.01x", "retries")):
            for allocator in order:
                run = runs.get(f"{capacity}/{name}/{allocator}")
                if run is None:
                    row.append(None)
                elif run["failed_at"] is not None:
                    row.append("fails")
                else:
                    row.append(round(run[key] / 1e3) if key == "modelled_driver_us" else run[key])
        rows.append(row)
    text = (
        "The smallest device on which a trace completes, as a ratio to peak live; modelled driver time with 1.05 times "
    )
    text += "peak live, and retries (each waits for the device) with 1.01 times."
    return f"{text}\n\n{markdown(header, rows)}"


def steady(report: Report) -> str:
    rows: list[list[object]] = []
    for key, one in report["replays"].items():
        kind, *rest = key.split("/")
        if kind == "steady":
            late = sum(one["driver_calls_after_split"].values())
            rows.append([f"{rest[0]}, {rest[1]}", one["ops"], f"{one['ratio']:.4f}", late, one["events"], one["waits"]])
        if kind == "two streams":
            late = sum(one["driver_calls_after_split"].values())
            name = f"fsdp, pyalloc, waits {rest[0]}"
            rows.append([name, one["ops"], f"{one['ratio']:.4f}", late, one["events"], one["waits"]])
    header = ["steps", "operations", "ratio", "driver calls after warm-up", "events", "waits"]
    return f"A model's steps, generated by `steady.py`.\n\n{markdown(header, rows)}"


def latency(report: Report) -> str:
    ns = report["latency"]["ns"]
    header = ["ns, median (lowest to highest)", *ALLOCATORS, "pyalloc / native"]
    grid = sorted((case for case in ns if case.startswith("rmm_")), key=_grid_order)
    cases = [*LATENCY_ROWS, *((case, f"RMM random_allocations, {case[4:]} MiB") for case in grid)]
    rows: list[list[object]] = []
    for case, words in cases:
        found = ns[case]
        row: list[object] = [words]
        for allocator in ALLOCATORS:
            row.append(spread_text(found[allocator], "{:,.0f}"))
        known = report["latency"].get("ratios", {}).get(case, {}).get("native")
        rows.append(
            [*row, spread_text(known, "{:.3f}") if known else _number(ratio(report["latency"], case), "{:.3f}")]
        )
    text = "One free and one allocation through c10's interface; of the RMM grid, one operation. The allocators take "
    text += (
        "turns in short passes, each in a process that stays alive; a ratio is the median of those of the turns, with "
    )
    text += "its 95 % interval. Processor time, but of threads: wall time while each had a core of its own."
    return f"{text}\n\n{markdown(header, rows)}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _grid_order(case: str) -> tuple[int, int]:
    count, mib = case.removeprefix("rmm_").split("x")
    return int(count), int(mib)
