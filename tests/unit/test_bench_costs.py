"""The benchmarks' cost table, what an operation cost, and the smallest capacity."""

from __future__ import annotations

import json
from array import array
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from benchlib import costs
from benchlib.capacity import GRANULE, bisect, granules, parse_capacity, show
from benchlib.errors import BenchError
from benchlib.replays import PreparedTrace, operation_costs
from support import ROOT

GIB = 1 << 30


MEASURED = json.loads((ROOT / "tools" / "bench" / "results" / "h200_vmm_probe.json").read_text())


@pytest.mark.parametrize("row", [row for row in MEASURED["calls"] if not row["busy"]], ids=str)
def test_the_table_is_what_was_measured(row: dict[str, Any]) -> None:
    """Within a third of an H200's figures, for handles of 2 to 128 MiB and 1 to 1,000 mappings."""
    by_name = {cost.name: cost for cost in costs.COSTS}
    mappings, mib = row["mappings"], row["handle_mib"]
    total = mappings * mib
    near = partial(pytest.approx, rel=0.33)
    assert by_name["create"].of(mib=mib) == near(row["create_us_each"])
    assert by_name["map"].of() == near(row["map_us_each"])
    assert by_name["release"].of(mib=mib) == near(row["release_us_each"])
    assert by_name["set-access"].of(mappings=mappings, mib=total) == near(row["set_access_us_call"])
    assert by_name["unmap"].of(mappings=mappings, mib=total) == near(row["unmap_us_call"])


def test_every_cost_is_shown() -> None:
    line = costs.one_line()
    assert "create 8.5 us + 0.023 per MiB" in line
    assert "set-access 23 us per mapping + 0.04 per MiB" in line
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
