"""The benchmarks' ratios: the interval of a median against its definition, and what was not measured."""

from __future__ import annotations

import math
import random
from typing import Any

import latency
import pytest
from benchlib import ratios

NAN = math.nan


def chance_outside(rank: int, count: int) -> float:
    """That the median of a law lies below the `rank`-th lowest of `count` values, or above the `rank`-th highest."""
    return 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count


@pytest.mark.parametrize("count", [*range(6, 120), 1100, 2501])
def test_the_interval_is_the_narrowest_of_95_percent(count: int) -> None:
    low, high = ratios.median_interval([float(value) for value in range(1, count + 1)])
    assert low + high == count + 1, "as many ranks from below as from above"
    assert chance_outside(int(low), count) <= 0.05
    assert low + 1 > count / 2 or chance_outside(int(low) + 1, count) > 0.05


@pytest.mark.parametrize("count", range(1, 6))
def test_the_interval_of_few_values_is_all_of_them(count: int) -> None:
    assert ratios.median_interval([3.0, 1.0, 2.0, 5.0, 4.0][:count]) == pytest.approx(
        (min([3, 1, 2, 5, 4][:count]), max([3, 1, 2, 5, 4][:count]))
    )


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """Of a lopsided law, as times are."""
    generator = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = ratios.median_interval([generator.expovariate(1.0) for _ in range(25)])
        hits += low <= math.log(2) <= high
    assert 0.94 < hits / 2000 < 0.98


def test_a_ratio_is_paired() -> None:
    """Both are slow in the same rounds: the ratio does not see it."""
    slow = [1.0, 3.0, 1.0, 2.0, 9.0]
    ours, theirs = [2 * one for one in slow], [10 * one for one in slow]
    assert ratios.paired(ours, theirs) == pytest.approx([0.2] * 5)
    assert ratios.known({"pyalloc": ours, "native": theirs}, 0.001)
    assert ratios.summary(ratios.paired(ours, theirs)) == {"median": 0.2, "low": 0.2, "high": 0.2, "rounds": 5}


def test_known_asks_for_every_other_allocator() -> None:
    steady, wild = [10.0] * 9, [5.0, 10.0, 20.0, 5.0, 10.0, 20.0, 5.0, 10.0, 20.0]
    assert ratios.known({"pyalloc": steady, "native": steady}, 0.01)
    assert not ratios.known({"pyalloc": steady, "native": steady, "expandable": wild}, 0.5)
    assert ratios.known({"native": wild}, 0.01), "without ours there is no ratio to know"


def test_rounds_that_were_not_measured_do_not_count() -> None:
    ours, theirs = [1.0, NAN, 1.0, 1.0, NAN], [2.0, 2.0, NAN, 2.0, 2.0]
    assert ratios.paired(ours, theirs) == [0.5, 0.5]
    assert not ratios.known({"pyalloc": ours, "native": theirs}, 0.5)
    assert ratios.summary([0.5, 0.5])["median"] is None
    assert latency.spread(ours) == {"median": 1.0, "low": 1.0, "high": 1.0, "rounds": 3}
    assert latency.spread([NAN]) == {"median": None, "low": None, "high": None, "rounds": 0}


def test_a_report_gives_its_ratio_or_that_of_its_medians() -> None:
    ns: dict[str, Any] = {"pair": {"pyalloc": {"median": 30.0}, "native": {"median": 120.0}}}
    assert ratios.ratio({"ns": ns}, "pair") == 0.25
    kept = {"pair": {"native": {"median": 0.24}}, "threads_2": {"native": {"median": None}}}
    assert ratios.ratio({"ns": ns, "ratios": kept}, "pair") == 0.24
    assert ratios.ratio({"ns": ns, "ratios": kept}, "threads_2") is None
    assert ratios.ratio({"ns": ns, "ratios": kept}, "threads_4") is None


def test_more_threads_than_cores_have_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "cores", lambda: 2)
    assert not latency.crowded("threads_2")
    assert latency.crowded("threads_4")
    assert not latency.crowded("random_100000")
