"""Ratios of two allocators' times, and how well they are known.

Passes of one round were made within the same moments, so a round gives one ratio; what counts is the median of them,
and its 95 % interval by ranks, which assumes nothing about how the values are spread. A value that is not a number
was not measured, and its round gives none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

OURS = "pyalloc"
FEWEST = 3  # rounds, for a figure


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median by ranks: from the k-th lowest to the k-th highest value, with the largest k of
    which the binomial law of n and 1/2 puts at most 2.5 % below k. All values when there are fewer than six.
    """
    ordered, count = sorted(values), len(values)
    # The chances that so many values lie below the median, or at most so many, times 2**count: whole numbers, for a
    # power of 1/2 that small is no float.
    exactly = below = 1
    rank = 0
    while 40 * below <= 1 << count and rank + 1 < count / 2:
        rank += 1
        exactly = exactly * (count - rank + 1) // rank
        below += exactly
    rank = max(1, rank)
    return ordered[rank - 1], ordered[count - rank]


def paired(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio of each round in which both were measured."""
    return [one / other for one, other in zip(ours, theirs, strict=True) if not math.isnan(one + other)]


def known(found: Mapping[str, Sequence[float]], width: float) -> bool:
    """Whether the interval of every ratio of ours is at most `width` wide, as a share of the ratio. `found` is by
    allocator, a value for each round.
    """
    for other, theirs in found.items():
        if OURS not in found or other == OURS:
            continue
        values = paired(found[OURS], theirs)
        if len(values) < FEWEST:
            return False
        low, high = median_interval(values)
        if high - low > width * statistics.median(values):
            return False
    return True


def summary(values: Sequence[float]) -> dict[str, Any]:
    """The median of ratios with its interval, and of how many; None for them when there are too few."""
    if len(values) < FEWEST:
        return {"median": None, "low": None, "high": None, "rounds": len(values)}
    low, high = median_interval(values)
    figures = {"median": statistics.median(values), "low": low, "high": high}
    return {name: round(value, 4) for name, value in figures.items()} | {"rounds": len(values)}


def ratio(latency: Mapping[str, Any], case: str, other: str = "native") -> float | None:
    """Ours to `other`'s time in a report of latency.py; None where it was not measured. In a report from before ratios
    were kept, that of the medians.
    """
    if "ratios" not in latency:
        found = latency["ns"][case]
        return float(found[OURS]["median"] / found[other]["median"])
    median = latency["ratios"].get(case, {}).get(other, {}).get("median")
    return None if median is None else float(median)
