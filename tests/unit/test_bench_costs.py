"""The benchmarks' cost table, what an operation cost, and the smallest capacity."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest
from benchlib import costs
from benchlib.capacity import GRANULE, bisect, granules, parse_capacity, show
from benchlib.errors import BenchError
from benchlib.replays import PreparedTrace, operation_costs

GIB = 1 << 30


def test_the_cost_table() -> None:
    by_name = {cost.name: cost for cost in costs.COSTS}
    assert by_name["create"].of(mib=2) == 106
    assert by_name["create"].of(mib=128) == 484
    assert by_name["set-access"].of(mappings=10) == 25
    assert by_name["unmap"].of(mappings=64) == 76
    assert by_name["map"].of(calls=10) == 15
    assert by_name["cudaMalloc"].of(mib=20) == 160
    assert by_name["cudaFree"].of() == 200
    assert by_name["device synchronise"].of() == 1000
    assert by_name["release"].of() == 20
    assert by_name["reserve"].of() == 10


def test_every_cost_is_shown() -> None:
    line = costs.one_line()
    assert "create 100 us + 3 per MiB" in line
    assert "set-access 20 us + 0.5 per mapping" in line
    assert [row["entry_point"] for row in costs.table()] == [cost.entry_point for cost in costs.COSTS]
    assert all(cost.name in line for cost in costs.COSTS)


def prepared(sizes: list[int]) -> PreparedTrace:
    stand_in = SimpleNamespace(trace=SimpleNamespace(count=len(sizes)), sizes=array("Q", sizes))
    return cast(PreparedTrace, stand_in)


def test_costs_of_operations() -> None:
    # row 0 lies in the first fifth; row 7 asked for 1 GiB, so 5 ms of its 6 are allowed
    trace = prepared([0, 0, 0, 0, 0, 0, 0, GIB, 0, 512])
    found = operation_costs([[0, 9000.0], [7, 6000.0], [9, 400.0]], trace)
    assert found["driver_operations"] == 3
    assert found["modelled_worst_us"] == 9000
    assert found["settled_worst_us"] == 6000
    assert found["settled_excess_us"] == 1000
    assert found["settled_excess_of_us"] == 6000


def test_the_percentile_of_costs() -> None:
    found = operation_costs([[i, float(i + 1)] for i in range(200)], prepared([0] * 200))
    assert found["modelled_p99_us"] == 198
    nothing: dict[str, Any] = operation_costs([], prepared([0]))
    assert nothing["modelled_p99_us"] == nothing["settled_excess_us"] == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * GIB),
        ("8388608", 8 << 20),
        ("24 GB", 24 * 10**9),
        ("1.05x", granules(1.05 * 10 * GIB)),
        ("2X", 20 * GIB),
        ("1x", 10 * GIB),
    ],
)
def test_capacities(text: str, size: int) -> None:
    assert parse_capacity(text, 10 * GIB) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "1.05", "5x5", "0x", "1MiB", "12 apples"])
def test_capacities_that_make_no_sense(text: str) -> None:
    with pytest.raises(BenchError, match="capacity"):
        parse_capacity(text, 10 * GIB)


def test_capacities_are_whole_granules() -> None:
    assert granules(1) == GRANULE
    assert granules(GRANULE) == GRANULE
    assert granules(GRANULE + 0.5) == 2 * GRANULE
    assert show(3 * GIB) == "3 GiB"
    assert show(100) == "100 B"


@pytest.mark.parametrize("border", [100, 101, 137, 199, 200])
def test_the_border_is_found(border: int) -> None:
    asked: list[int] = []

    def completes(capacity: int) -> bool:
        asked.append(capacity)
        return capacity >= border * GRANULE

    found = bisect(100 * GRANULE, 200 * GRANULE, GRANULE, completes)
    assert found.capacity == border * GRANULE
    assert found.failed == (border - 1) * GRANULE
    assert found.probes == len(asked) <= 9


def test_a_tolerance_saves_probes() -> None:
    found = bisect(0, 1024 * GRANULE, 64 * GRANULE, lambda capacity: capacity >= 700 * GRANULE)
    assert 700 * GRANULE <= found.capacity <= 764 * GRANULE
    assert found.probes <= 7


def test_no_capacity_that_suffices() -> None:
    with pytest.raises(BenchError, match="does not complete with"):
        bisect(GRANULE, 10 * GRANULE, GRANULE, lambda capacity: False)
