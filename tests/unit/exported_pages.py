"""Pages with figures that have kinds and units, and what the exporter says of them as Prometheus reads it."""

from __future__ import annotations

from page_builder import PageBuilder
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pyalloc.metrics.collectors import HostCollector
from pyalloc.metrics.host import Host

GIB = 1 << 30
alive: list[PageBuilder] = []  # a page whose builder is gone is a leftover
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(pid: int = 4711, namespace: int | None = None, **process: object) -> PageBuilder:
    """A page that says of some figures what they are."""
    builder = PageBuilder(pid, namespace, **process)
    builder.devices[0]["margin"] = 3 * GIB
    builder.devices[0]["num_ooms"] = 7
    builder.described = dict.fromkeys(("margin", "used", "limit", "reserved", "allocated"), ("gauge", "bytes"))
    builder.described |= {"num_ooms": ("counter", "errors"), "oom_limit": ("counter", "errors")}
    alive.append(builder)
    return builder


def text(host: Host | None = None) -> str:
    registry = CollectorRegistry()
    registry.register(HostCollector(host or Host()))
    return generate_latest(registry).decode()


def series(host: Host | None = None) -> Series:
    """Every series by its name and its labels that are not empty."""
    found: Series = {}
    for family in text_string_to_metric_families(text(host)):
        for sample in family.samples:
            key = (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value))
            assert key not in found, key
            found[key] = sample.value
    return found


def one_of(found: Series, name: str, /, **labels: str) -> float:
    (value,) = (value for (of, there), value in found.items() if of == name and labels.items() <= dict(there).items())
    return value


def page_states(found: Series) -> dict[str, int]:
    return {dict(labels)["state"]: int(value) for (name, labels), value in found.items() if name.endswith("_pages")}
