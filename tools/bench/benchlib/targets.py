"""The project's targets against what a report measured. One function a row; it takes the report and says what missed.

The report's keys: "replays" (race.py's keys joined by "/"), "latency" (latency.py's report), "captures", "recorded".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import ratios

MIB = 1 << 20
Report = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """`missed` names what falls short, and by how much; empty: met. `measured` is the figure that decides."""

    what: str
    target: str
    measured: str
    missed: tuple[str, ...]

    @property
    def met(self) -> bool:
        return not self.missed


def judge(report: Report) -> list[Verdict]:
    return [row(report) for row in ROWS]


def _run(report: Report, *key: str) -> dict[str, Any]:
    found: dict[str, Any] = report["replays"]["/".join(key)]
    return found


def _ns(report: Report, case: str) -> float:
    return float(report["latency"]["ns"][case]["pyalloc"]["median"])


def _ratio(report: Report, case: str) -> float:
    found = ratios.ratio(report["latency"], case)
    assert found is not None, f"{case} is of one thread, which is always measured"
    return found


def _verdict(what: str, target: str, measured: str, problems: list[str]) -> Verdict:
    return Verdict(what, target, measured, tuple(problems))


def _at_most(what: str, target: str, value: float, limit: float, digits: int = 3) -> Verdict:
    problem = [f"{value:.{digits}f}, at most {limit:.{digits}f} wanted"] if value > limit else []
    return _verdict(what, target, f"{value:.{digits}f}", problem)


# --- time ---


def pair_fresh(report: Report) -> Verdict:
    ratio = _ratio(report, "pair_fresh")
    return _at_most("same-size pair, fresh process", "at most 1/4 of native", ratio, 1 / 4)


def pair_churned(report: Report) -> Verdict:
    ratio = _ratio(report, "pair_churned")
    return _at_most("same-size pair, after churn", "at most 1/7 of native", ratio, 1 / 7)


def random_large(report: Report) -> Verdict:
    ratio = _ratio(report, "random_100000")
    return _at_most("random log-normal, 1e5 live", "at most 1/15 of native", ratio, 1 / 15)


def growth(report: Report) -> Verdict:
    ratio = _ns(report, "random_100000") / _ns(report, "random_1000")
    return _at_most("time, 1e3 to 1e5 live", "at most 2x", ratio, 2, 2)


def from_python(report: Report) -> Verdict:
    ratio = _ratio(report, "torch_empty")
    return _at_most("torch.empty + free from Python", "at most 0.80 of native", ratio, 0.80)


def threads(report: Report) -> Verdict:
    speedup = report["latency"]["speedup"].get("2", {}).get("median")
    measured = "not measured: no two cores were free at once" if speedup is None else f"{speedup:.2f}x"
    problems = [f"{measured}, at least 1.7x wanted"] if speedup is None or speedup < 1.7 else []
    wrong = [count for count, exact in report["latency"]["exact_peaks"]["pyalloc"].items() if not exact]
    problems += [f"peaks wrong with {count} threads" for count in wrong]
    return _verdict("two threads, a stream each", "at least 1.7x one's throughput, peaks exact", measured, problems)


def enabling(report: Report) -> Verdict:
    return _at_most("enable()", "at most 50 ms", report["latency"]["enable_ms"]["median"], 50, 0)


def metadata(report: Report) -> Verdict:
    per_block, share = report["metadata"]["bytes_per_block"], report["metadata"]["share_of_device"]
    problems = [f"{per_block:.0f} B per live block, at most 128 wanted"] if per_block > 128 else []
    problems += [f"{share:.3%} of the device, at most 0.1 % wanted"] if share > 0.001 else []
    measured = f"{per_block:.0f} B per block, {share:.3%} of the device"
    return _verdict("metadata, 1e5 live", "at most 128 B per live block, 0.1 % of the device", measured, problems)


# --- memory ---


def _over(one: dict[str, Any]) -> float:
    return float(one["reserved_peak_bytes"] - one["live_peak_bytes"]) / MIB


def slack_zero(report: Report) -> Verdict:
    problems, worst = [], 0.0
    for name in [*report["captures"], *report["recorded"]]:
        one = _run(report, "slack 0", name)
        live = one["live_peak_bytes"]
        if name in report["captures"]:
            allowed = max(0.005 * live, 32 * MIB)
        else:
            model = _run(report, "model", name)["reserved_peak"] - live
            allowed = max(model + 0.002 * live, model + 16 * MIB)
        problems += _memory_problem(name, one, allowed)
        worst = max(worst, one["ratio"])
    target = "captures: 1.005 or 32 MiB over; recorded: the model + 0.2 % or 16 MiB"
    return _verdict("peak reserved / live, slack 0", target, f"up to {worst:.4f}", problems)


def default_slack(report: Report) -> Verdict:
    problems, worst = [], 0.0
    for name in [*report["captures"], *report["recorded"]]:
        one, expandable = (_run(report, "ample", name, allocator) for allocator in ("pyalloc", "expandable"))
        live = one["live_peak_bytes"]
        allowed = max(expandable["reserved_peak_bytes"] - live, 0.01 * live, 32 * MIB)
        problems += _memory_problem(name, one, allowed)
        worst = max(worst, one["ratio"])
    target = "the larger of expandable's and 1.01, or 32 MiB over"
    return _verdict("peak reserved / live, default slack", target, f"up to {worst:.4f}", problems)


def _memory_problem(name: str, one: dict[str, Any], allowed: float) -> list[str]:
    if one["failed_at"] is not None:
        return [f"{name} did not complete"]
    if one["reserved_peak_bytes"] - one["live_peak_bytes"] <= allowed:
        return []
    limit = 1 + allowed / one["live_peak_bytes"]
    return [f"{name} {one['ratio']:.4f} ({_over(one):.0f} MiB over), at most {limit:.4f} wanted"]


def driver_time(report: Report) -> Verdict:
    problems, worst = [], 0.0
    for name in report["captures"]:
        one, expandable = (_run(report, "1.05x", name, allocator) for allocator in ("pyalloc", "expandable"))
        if one["failed_at"] is not None:
            problems.append(f"{name} did not complete")
        elif expandable["failed_at"] is None:
            ratio = one["modelled_driver_us"] / expandable["modelled_driver_us"]
            worst = max(worst, ratio)
            if ratio > 1:
                problems.append(f"{name} {ratio:.2f}x expandable's")
    return _verdict("modelled driver time at 1.05 x live", "at most expandable's", f"up to {worst:.2f}x", problems)


def frontier(report: Report) -> Verdict:
    names = sorted({key.split("/")[1] for key in report["replays"] if key.startswith("frontier/")})
    problems = []
    for name in names:
        point = _run(report, "ample", name, "expandable")
        line = [one for key, one in report["replays"].items() if key.startswith(f"frontier/{name}/")]
        below = [one for one in line if one["ratio"] <= point["ratio"]]
        least = min(below, key=lambda one: one["modelled_driver_us"], default=None)
        if least is None:
            problems.append(f"{name} never as tight as expandable")
        elif least["modelled_driver_us"] > point["modelled_driver_us"]:
            times = least["modelled_driver_us"] / point["modelled_driver_us"]
            problems.append(f"{name} {times:.2f}x expandable's time at its ratio")
    measured = f"{len(names) - len(problems)} of {len(names)} traces"
    return _verdict("frontier", "passes below expandable's point", measured, problems)


def smallest(report: Report) -> Verdict:
    problems, worst = [], 0.0
    for name in [*report["captures"], *report["recorded"]]:
        one = _run(report, "smallest", name, "pyalloc")
        worst = max(worst, one["ratio"])
        if one["ratio"] > 1.003 and one["over_mib"] > 32:
            problems.append(f"{name} {one['ratio']:.4f} ({one['over_mib']:.0f} MiB over)")
    for name in report["captures"]:
        one = _run(report, "1.01x", name, "pyalloc")
        if one["failed_at"] is not None:
            problems.append(f"{name} did not complete at 1.01")
        elif one["device_syncs"] > 0:
            problems.append(f"{name}: {one['device_syncs']} device synchronises at 1.01")
    target = "1.003 or 32 MiB over; no device synchronise at 1.01"
    return _verdict("smallest capacity / live", target, f"up to {worst:.4f}", problems)


def steady(report: Report) -> Verdict:
    problems, calls = [], 0
    for key, one in report["replays"].items():
        kind, *rest = key.split("/")
        if kind == "steady" and rest[1] == "pyalloc":
            late = sum(one["driver_calls_after_split"].values())
            calls += late
            if late:
                problems.append(f"{rest[0]} {late} calls")
    return _verdict("steady state, default slack", "no cuMem* call after warm-up", f"{calls} calls", problems)


def worst_operation(report: Report) -> Verdict:
    problems, worst = [], 0.0
    for name in report["captures"]:
        one = _run(report, "1.02x", name, "pyalloc")
        worst = max(worst, one["modelled_p99_us"])
        if one["failed_at"] is not None:
            problems.append(f"{name} did not complete")
            continue
        parts = []
        if one["modelled_p99_us"] > 1000:
            parts.append(f"p99 {one['modelled_p99_us'] / 1e3:.2f} ms")
        if one["settled_excess_us"] > 300:
            parts.append(f"{one['settled_excess_us'] / 1e3:.2f} ms beyond 5 ms per GiB")
        if one["unmaps_on_path"]:
            parts.append(f"{one['unmaps_on_path']} unmaps on the path")
        problems += [f"{name} {', '.join(parts)}"] if parts else []
    target = "p99 1 ms; after the first fifth 0.3 ms + 5 ms per GiB; no unmap on the path"
    return _verdict("worst operation at 1.02 x live", target, f"p99 up to {worst / 1e3:.2f} ms", problems)


def two_streams(report: Report) -> Verdict:
    problems = []
    runs = {variant: _run(report, "two streams", variant) for variant in ("on", "on, slack 0", "off", "off, slack 0")}
    expandable = _run(report, "steady", "fsdp", "expandable")
    live = runs["on"]["live_peak_bytes"]
    problems += _memory_problem("on, slack 0", runs["on, slack 0"], max(0.005 * live, 32 * MIB))
    allowed = max(expandable["reserved_peak_bytes"] - live, 0.01 * live, 32 * MIB)
    problems += _memory_problem("on", runs["on"], allowed)
    for variant in ("off", "off, slack 0"):
        problems += _memory_problem(variant, runs[variant], 0.05 * live)
    if runs["on"]["violations"] or runs["off"]["violations"]:
        problems.append("driver rules broken")
    measured = f"on {runs['on']['ratio']:.4f} with {runs['on']['waits']} waits, off {runs['off']['ratio']:.4f}"
    target = "the memory rows with waits on; 1.05 with waits off"
    return _verdict("two streams (fsdp)", target, measured, problems)


ROWS: tuple[Callable[[Report], Verdict], ...] = (
    pair_fresh,
    pair_churned,
    random_large,
    growth,
    from_python,
    threads,
    slack_zero,
    default_slack,
    driver_time,
    frontier,
    smallest,
    steady,
    worst_operation,
    two_streams,
    metadata,
    enabling,
)
