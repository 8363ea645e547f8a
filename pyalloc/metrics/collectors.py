"""What Prometheus's client library asks at each scrape: this process, or every process of the host."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from .. import errors
from .._version import __version__
from .families import Families, add_process, declared
from .host import STATES, Host
from .naming import GAUGE
from .own_process import own_fields, own_process

_log = logging.getLogger("pyalloc")


class ProcessCollector(Collector):
    """This process. Of a driver that does not answer, as after an illegal access, the devices are left out and one
    warning says so: a program's other metrics are in the same registry.
    """

    def __init__(self) -> None:
        self._said = ""

    def describe(self) -> Iterable[Family]:
        return declared(own_fields())

    def collect(self) -> Iterable[Family]:
        families = Families()
        try:
            add_process(families, own_process())
        except errors.DriverError as error:
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("metrics have no devices: %s", error)
            add_process(families, own_process(devices=False))
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
