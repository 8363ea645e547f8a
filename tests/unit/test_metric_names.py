"""What figures are called in Prometheus, from the description of a stats page."""

from __future__ import annotations

import re

import pytest

from pyalloc.metrics.families import Families, declared
from pyalloc.metrics.naming import COUNTER, GAUGE, metrics_of
from pyalloc.metrics.own_process import own_fields
from pyalloc.stats_page import Field


def field(name: str, kind: str, unit: str, type: str = "int64") -> Field:
    return Field(name=name, type=type, offset=0, bytes=8, kind=kind, unit=unit, help=f"what {name} is")


@pytest.mark.parametrize(
    ("name", "kind", "unit", "expected", "scale"),
    [
        ("margin", "gauge", "bytes", "pyalloc_device_margin_bytes", 1),
        ("shelf_bytes", "gauge", "bytes", "pyalloc_device_shelf_bytes", 1),
        ("published_ms", "gauge", "ms", "pyalloc_device_published_seconds", 1e-3),
        ("publish_ns", "counter", "ns", "pyalloc_device_publish_seconds", 1e-9),
        ("stream_waits", "counter", "waits", "pyalloc_device_stream_waits", 1),
        ("pending_frees", "gauge", "blocks", "pyalloc_device_pending_frees", 1),
        ("num_ooms", "counter", "errors", "pyalloc_device_num_ooms", 1),
        ("requested_total", "counter", "bytes", "pyalloc_device_ever_requested_bytes", 1),
    ],
)
def test_a_number(name: str, kind: str, unit: str, expected: str, scale: float) -> None:
    (metric,) = metrics_of("device", [field(name, kind, unit)])
    assert (metric.name, metric.kind, metric.key, metric.scale) == (expected, kind, name, scale)
    assert metric.help == f"what {name} is"


def test_a_statistic_is_four_metrics() -> None:
    found = {metric.name: metric for metric in metrics_of("device", [field("active", "stat", "blocks", "stat")])}
    assert {name: (metric.kind, metric.key) for name, metric in found.items()} == {
        "pyalloc_device_active_blocks": (GAUGE, "active.all.current"),
        "pyalloc_device_peak_active_blocks": (GAUGE, "active.all.peak"),
        "pyalloc_device_allocated_active_blocks": (COUNTER, "active.all.allocated"),
        "pyalloc_device_freed_active_blocks": (COUNTER, "active.all.freed"),
    }
    names = [metric.name for metric in metrics_of("device", [field("segment", "stat", "segments", "stat")])]
    assert names[:2] == ["pyalloc_device_segments", "pyalloc_device_peak_segments"]


@pytest.mark.parametrize(
    "left_out",
    [
        field("pid", "fact", ""),
        field("devices", "gauge", ""),
        field("published_ns", "gauge", "ns"),
        field("cells", "gauge", "cells"),
        field("name", "fact", "", "text"),
        field("live_cells", "gauge", "", "cells"),
        field("x" * 101, "gauge", "bytes"),
        field("y", "gauge", 'b"}'),
    ],
)
def test_what_is_no_metric(left_out: Field) -> None:
    assert metrics_of("process", [left_out]) == []


def test_the_ledger_s_figure_is_the_one_of_two() -> None:
    both = [field("reserved_bytes", "stat", "bytes", "stat"), field("reserved", "gauge", "bytes")]
    found = {metric.name: metric.key for metric in metrics_of("device", both)}
    assert found["pyalloc_device_reserved_bytes"] == "reserved"
    assert found["pyalloc_device_peak_reserved_bytes"] == "reserved_bytes.all.peak"


def test_every_figure_of_the_core_has_a_good_name() -> None:
    families = {family.name: family for family in declared(own_fields())}
    assert len(families) > 80
    for name, family in families.items():
        assert re.fullmatch(r"pyalloc_[a-z_]+", name)
        assert "__" not in name
        assert not name.endswith("_total"), "a counter's name gets it by itself, and a gauge has none"
        assert family.documentation
        assert "tag" not in name.split("_"), "tags are too many for Prometheus"
    assert families["pyalloc_pool_ever_requested_bytes"].type == COUNTER
    assert families["pyalloc_pool_requested_bytes"].type == GAUGE
    # Every counter and gauge of the tables is there.
    tables = own_fields()
    for table in ("device", "pool"):
        figures = [one.name for one in tables[table] if one.kind in (GAUGE, COUNTER) and one.unit]
        keys = {metric.key for metric in metrics_of(table, tables[table])}
        drawing, in_the_ledger = {"cells", "cell_bytes"}, {"idle_bytes", "shelf_bytes"}
        assert set(figures) - keys <= drawing | in_the_ledger


def test_a_sample_that_does_not_fit_its_family_is_left_out() -> None:
    families = Families()
    families.add("pyalloc_device_x", GAUGE, "first", {"device": "0"}, 1)
    families.add("pyalloc_device_x", COUNTER, "second", {"device": "1"}, 2)
    families.add("pyalloc_device_x", GAUGE, "third", {"device": "0"}, 3)
    families.add("pyalloc_device_x", GAUGE, "fourth", {"device": "2"}, None)
    (family,) = families
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("pyalloc_device_x", {"device": "0"}, 1)
    ]
    assert family.documentation == "first"
