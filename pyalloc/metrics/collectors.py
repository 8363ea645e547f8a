"""What Prometheus's client library asks at each scrape: this process, or every process of the host."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from .._version import __version__
from .families import Families, add_process, declared
from .host import STATES, Host
from .naming import GAUGE
from .own_process import own_fields, own_process


class ProcessCollector(Collector):
    """This process."""

    def describe(self) -> Iterable[Family]:
        return declared(own_fields())

    def collect(self) -> Iterable[Family]:
        families = Families()
        add_process(families, own_process())
        return families


class HostCollector(Collector):
    """Every process that `host` sees, and how many pages it could and could not read."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def describe(self) -> Iterable[Family]:
        return ()  # what there is depends on who runs

    def collect(self) -> Iterable[Family]:
        families, look = Families(), self._host.look()
        families.add(
            "pyalloc_exporter_build_info", GAUGE, "1; the version of this exporter", {"version": __version__}, 1
        )
        for state in STATES:
            families.add(
                "pyalloc_exporter_pages",
                GAUGE,
                "stats pages on this host, by state",
                {"state": state},
                look.pages[state],
            )
        for measured in look.processes:
            add_process(families, measured)
        return families
