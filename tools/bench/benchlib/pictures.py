"""Pictures of results, with matplotlib (pip install matplotlib, or pyalloc's extra `bench`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import BenchError

COLOURS = {"pyalloc": "#1b7f5c", "native": "#b3462d", "expandable": "#3b6fb6", "live": "#555555"}


def available() -> bool:
    return find_spec("matplotlib") is not None


def _axes(columns: int, height: float = 3.2) -> tuple[Any, list[Any]]:
    try:
        import matplotlib
    except ImportError:
        raise BenchError("pictures need matplotlib: pip install matplotlib") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pyalloc"  # the same picture gives the same bytes
    import matplotlib.pyplot

    figure, axes = matplotlib.pyplot.subplots(1, columns, figsize=(3.4 * columns, height), squeeze=False)
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    import matplotlib.pyplot

    matplotlib.pyplot.close(figure)


def draw_frontier(results: Sequence[Sequence[dict[str, Any]]], path: Path) -> None:
    """One panel a trace: reserved / live against modelled driver time; pyalloc's slacks a line, the others points."""
    figure, panels = _axes(len(results))
    for panel, runs in zip(panels, results, strict=True):
        line = [one for one in runs if one["allocator"] == "pyalloc"]
        line.sort(key=lambda one: one["ratio"])
        points = [(one["ratio"], one["modelled_driver_us"] / 1e3) for one in line]
        panel.plot(*zip(*points, strict=True), "o-", color=COLOURS["pyalloc"], label="pyalloc, by slack", markersize=4)
        for one in runs:
            if one["allocator"] != "pyalloc":
                at = (one["ratio"], one["modelled_driver_us"] / 1e3)
                panel.plot(*at, "D", color=COLOURS[one["allocator"]], label=one["allocator"])
        panel.set(title=runs[0]["trace"], xlabel="peak reserved / peak live")
        panel.title.set_fontsize(9)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("modelled driver time, ms")
    panels[0].legend(fontsize=7)
    _save(figure, path)


def draw_memory(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Live and reserved bytes over one trace, for each allocator."""
    figure, (panel,) = _axes(1, 3.6)
    figure.set_size_inches(7, 3.6)
    for index, one in enumerate(runs):
        samples = one["samples"]
        across = [100 * i / max(1, len(samples) // 2 - 1) for i in range(len(samples) // 2)]
        if index == 0:
            panel.plot(across, [v / (1 << 30) for v in samples[::2]], color=COLOURS["live"], label="live", linewidth=1)
        reserved = [v / (1 << 30) for v in samples[1::2]]
        panel.plot(across, reserved, color=COLOURS[one["allocator"]], label=one["allocator"], linewidth=1.2)
    panel.set(title=runs[0]["trace"], xlabel="% of the trace", ylabel="GiB")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8, loc="lower right")
    _save(figure, path)


def draw_latency(latency: dict[str, Any], cases: Sequence[tuple[str, str]], path: Path) -> None:
    """Bars of median nanoseconds a free and allocation; whiskers from the lowest to the highest round."""
    figure, (panel,) = _axes(1, 3.6)
    figure.set_size_inches(7, 3.6)
    allocators = list(next(iter(latency["ns"].values())))
    width = 0.8 / len(allocators)
    for index, allocator in enumerate(allocators):
        found = [latency["ns"][case][allocator] for case, _ in cases]
        medians = [one["median"] for one in found]
        below = [one["median"] - one["low"] for one in found]
        above = [one["high"] - one["median"] for one in found]
        at = [i + index * width for i in range(len(cases))]
        panel.bar(at, medians, width, yerr=[below, above], color=COLOURS[allocator], label=allocator, capsize=2)
    panel.set_xticks([i + 0.4 - width / 2 for i in range(len(cases))], [words for _, words in cases], fontsize=7)
    panel.set(ylabel="ns", yscale="log")
    panel.legend(fontsize=8)
    panel.grid(alpha=0.3, axis="y")
    _save(figure, path)
