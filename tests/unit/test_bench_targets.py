"""The targets as the report judges them: met by a report that meets them, and each missed by the figure it is about."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from benchlib import pages, targets
from benchlib.race import SLACKS, TIGHT, TWO_STREAMS
from benchlib.workers import ALLOCATORS
from benchlib.workloads import WORKLOADS

GIB = 1 << 30
LIVE = 20 * GIB
CAPTURE, RECORDED = "serving", "real/training"
RATIOS = {"pyalloc": 1.002, "native": 1.2, "expandable": 1.03}


def run(ratio: float, driver_us: float = 100.0, **other: Any) -> dict[str, Any]:
    return {
        "ops": 1000,
        "ns_per_op": 100.0,
        "live_peak_bytes": LIVE,
        "reserved_peak_bytes": int(ratio * LIVE),
        "ratio": ratio,
        "over_mib": (ratio - 1) * LIVE / (1 << 20),
        "failed_at": None,
        "modelled_driver_us": driver_us,
        "modelled_p99_us": 500.0,
        "settled_excess_us": 10.0,
        "unmaps_on_path": 0,
        "device_syncs": 0,
        "retries": 0,
        "events": 3,
        "waits": 2,
        "violations": 0,
        "driver_calls_after_split": {},
        **other,
    }


@pytest.fixture
def report() -> dict[str, Any]:
    runs: dict[str, Any] = {}
    for name in (CAPTURE, RECORDED):
        for allocator in ALLOCATORS:
            runs[f"ample/{name}/{allocator}"] = run(RATIOS[allocator])
            runs[f"smallest/{name}/{allocator}"] = {"ratio": 1.001, "over_mib": 20.0}
            if name == CAPTURE:
                runs |= {f"{factor}x/{name}/{allocator}": run(RATIOS[allocator]) for factor in TIGHT}
        runs[f"slack 0/{name}"] = run(1.002)
        runs[f"model/{name}"] = {"live_peak": LIVE, "reserved_peak": int(1.001 * LIVE)}
    runs |= {f"frontier/{CAPTURE}/{slack:g}": run(1 + slack, 90.0) for slack in SLACKS}
    runs |= {f"steady/{name}/{allocator}": run(RATIOS[allocator]) for name in WORKLOADS for allocator in ALLOCATORS}
    runs |= {f"two streams/{variant}": run(1.002) for variant in TWO_STREAMS}
    ns = {
        "pair_fresh": (40, 200),
        "pair_churned": (40, 400),
        "random_1000": (60, 800),
        "random_10000": (70, 1000),
        "random_100000": (100, 2000),
        "threads_1": (80, 800),
        "threads_2": (44, 1400),
        "threads_4": (44, 1500),
        "torch_empty": (800, 1200),
        "rmm_1000x4": (100, 100),
    }
    spread = {"low": 1.0, "high": 5000.0, "rounds": 3}
    return {
        "captures": [CAPTURE],
        "recorded": [RECORDED],
        "replays": runs,
        "seconds": 600,
        "machine": {
            "cpu": "a CPU",
            "cores": 2,
            "memory_gib": 24.0,
            "load": 0.1,
            "kernel": "6",
            "python": "3",
            "torch": "2",
            "pyalloc": "0",
            "device": "simulated",
        },
        "metadata": {"bytes_per_block": 60.0, "share_of_device": 0.0004},
        "latency": {
            "ns": {
                case: {
                    "pyalloc": {"median": float(ours), **spread},
                    "native": {"median": float(native), **spread},
                    "expandable": {"median": float(native), **spread},
                }
                for case, (ours, native) in ns.items()
            },
            "ratios": {
                case: {
                    other: {
                        "median": ours / native,
                        "low": 0.9 * ours / native,
                        "high": 1.1 * ours / native,
                        "rounds": 9,
                    }
                    for other in ("native", "expandable")
                }
                for case, (ours, native) in ns.items()
                if case != "threads_4"
            },
            "speedup": {"1": {"median": 1.0}, "2": {"median": 1.82}},
            "exact_peaks": {"pyalloc": {"1": True, "2": True}},
            "enable_ms": {"median": 20.0, **spread},
        },
    }


def missed(report: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {row.what: row.missed for row in targets.judge(report) if not row.met}


def test_all_are_met(report: dict[str, Any]) -> None:
    assert missed(report) == {}
    assert len(targets.judge(report)) == len(targets.ROWS)


@pytest.mark.parametrize(
    ("key", "change", "what"),
    [
        (f"slack 0/{CAPTURE}", {"ratio": 1.006, "reserved_peak_bytes": int(1.006 * LIVE)}, "slack 0"),
        (f"slack 0/{RECORDED}", {"ratio": 1.004, "reserved_peak_bytes": int(1.004 * LIVE)}, "slack 0"),
        (f"slack 0/{CAPTURE}", {"failed_at": 7}, "slack 0"),
        (f"ample/{CAPTURE}/pyalloc", {"ratio": 1.04, "reserved_peak_bytes": int(1.04 * LIVE)}, "default slack"),
        (f"1.05x/{CAPTURE}/pyalloc", {"modelled_driver_us": 101.0}, "modelled driver time"),
        (f"1.01x/{CAPTURE}/pyalloc", {"device_syncs": 1}, "smallest capacity"),
        (f"1.02x/{CAPTURE}/pyalloc", {"modelled_p99_us": 1001.0}, "worst operation"),
        (f"1.02x/{CAPTURE}/pyalloc", {"settled_excess_us": 301.0}, "worst operation"),
        (f"1.02x/{CAPTURE}/pyalloc", {"unmaps_on_path": 1}, "worst operation"),
        (f"smallest/{RECORDED}/pyalloc", {"ratio": 1.004, "over_mib": 80.0}, "smallest capacity"),
        ("steady/train/pyalloc", {"driver_calls_after_split": {"cuMemMap": 1}}, "steady state"),
        ("two streams/off", {"ratio": 1.06, "reserved_peak_bytes": int(1.06 * LIVE)}, "two streams"),
    ],
)
def test_a_replay_that_falls_short(report: dict[str, Any], key: str, change: dict[str, Any], what: str) -> None:
    report["replays"][key] |= change
    ((row, problems),) = missed(report).items()
    assert what in row
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("case", "ratio", "what"),
    [
        ("pair_fresh", 0.251, "same-size pair, fresh"),
        ("pair_churned", 0.143, "same-size pair, after churn"),
        ("random_100000", 0.067, "random log-normal"),
        ("torch_empty", 0.801, "torch.empty"),
    ],
)
def test_a_time_that_falls_short(report: dict[str, Any], case: str, ratio: float, what: str) -> None:
    report["latency"]["ratios"][case]["native"]["median"] = ratio
    ((row, _),) = missed(report).items()
    assert what in row


def test_growth_that_falls_short(report: dict[str, Any]) -> None:
    report["latency"]["ns"]["random_1000"]["pyalloc"]["median"] = 49
    ((row, _),) = missed(report).items()
    assert "1e3 to 1e5" in row


def test_threads_that_do_not_scale_or_were_not_measured(report: dict[str, Any]) -> None:
    report["latency"]["speedup"]["2"]["median"] = 1.69
    assert missed(report) == {"two threads, a stream each": ("1.69x, at least 1.7x wanted",)}
    report["latency"]["speedup"]["2"]["median"] = None
    ((problem,),) = missed(report).values()
    assert "not measured" in problem


def test_what_was_not_measured_is_left_open_on_the_page(report: dict[str, Any]) -> None:
    nothing = {"median": None, "low": None, "high": None, "rounds": 0}
    report["latency"]["ns"]["threads_2"]["native"] = nothing
    report["latency"]["ratios"]["threads_2"]["native"] = nothing
    line = next(line for line in pages.page(report, []).splitlines() if "2 threads" in line)
    assert line.count("| - |") == 2, "its time and its ratio"
    assert "| - |" in next(line for line in pages.readme(report).splitlines() if "2 threads" in line)


def test_small_excesses_do_not_count(report: dict[str, Any]) -> None:
    """32 MiB over is allowed whatever the ratio."""
    small = {"live_peak_bytes": GIB, "reserved_peak_bytes": GIB + (30 << 20), "ratio": 1.0293}
    report["replays"][f"slack 0/{CAPTURE}"] |= small
    report["replays"][f"ample/{CAPTURE}/pyalloc"] |= small
    assert missed(report) == {}


def test_the_frontier_needs_a_point_below(report: dict[str, Any]) -> None:
    for slack in SLACKS:
        report["replays"][f"frontier/{CAPTURE}/{slack:g}"]["modelled_driver_us"] = 110.0
    assert list(missed(report)) == ["frontier"]


def test_peaks_and_books(report: dict[str, Any]) -> None:
    wrong = copy.deepcopy(report)
    wrong["latency"]["exact_peaks"]["pyalloc"]["2"] = False
    wrong["metadata"]["bytes_per_block"] = 129.0
    wrong["latency"]["enable_ms"]["median"] = 51.0
    assert set(missed(wrong)) == {"two threads, a stream each", "metadata, 1e5 live", "enable()"}


def test_the_page_holds_every_target_and_trace(report: dict[str, Any]) -> None:
    text = pages.page(report, ["frontier.svg"])
    for row in targets.judge(report):
        assert f"| {row.what} |" in text
    assert "| serving | 1,000 | 20 GiB | 1.2000 | 1.0300 | 1.0020 |" in text
    assert "![Reserved memory against modelled driver time](frontier.svg)" in text
    assert "create 8.5 us + 0.023 per MiB" in text
