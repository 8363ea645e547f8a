"""Turns what processes say of their memory into Prometheus's metric families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric as Family

from ..stats_page import Device, Field, Sample
from .capacity import room
from .naming import COUNTER, GAUGE, all_metrics

Labels = Mapping[str, str]

BUILD_INFO: Final = "pyalloc_build_info"
_FRAGMENTATION_HELP: Final = "share of memory lost, 0 to 1, by the kind of loss"
# Worked out here, not counted by the core: name, help.
_WORKED_OUT: Final = {
    BUILD_INFO: "1; the version of pyalloc that the program runs",
    "pyalloc_device_info": "1; the device's model, and its UUID as nvidia-smi has it",
    "pyalloc_device_fragmentation_ratio": _FRAGMENTATION_HELP,
    "pyalloc_pool_fragmentation_ratio": _FRAGMENTATION_HELP,
    "pyalloc_pool_available_bytes": "what new blocks of the pool can still get: the device's margin within the pool's "
    "limit, and what waits in its reserve",
}


@dataclass(frozen=True)
class Measured:
    """A process's figures. labels: what tells it from others, if there are any; fields: of each table of the sample."""

    sample: Sample
    fields: Mapping[str, tuple[Field, ...]]
    labels: Labels = field(default_factory=dict)


class Families:
    """Families by name, in the order in which they came. A family is what it was when it came first: a sample of
    another kind is left out, and so is a second one of the same labels, since Prometheus would refuse the whole.
    """

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())

    def declare(self, name: str, kind: str, text: str) -> Family:
        """The family of that name, new if there was none."""
        if name not in self._families:
            self._families[name] = Family(name, text, kind)
        return self._families[name]

    def add(self, name: str, kind: str, text: str, labels: Labels, value: float | None) -> None:
        """One sample; nothing for a value that is not known. name: without "_total"."""
        series = (name, tuple(labels.items()))
        if value is None or series in self._seen:
            return
        family = self.declare(name, kind, text)
        if family.type == kind:
            self._seen.add(series)
            family.add_sample(f"{name}_total" if kind == COUNTER else name, dict(labels), value)


def declared(fields: Mapping[str, tuple[Field, ...]]) -> Families:
    """Every family that processes with these tables can have, without samples."""
    families = Families()
    for name, text in _WORKED_OUT.items():
        families.declare(name, GAUGE, text)
    for _, metric in all_metrics(fields):
        families.declare(metric.name, metric.kind, metric.help)
    return families


def add_process(families: Families, measured: Measured) -> None:
    """Everything of one process."""
    sample, labels = measured.sample, measured.labels
    _worked_out(families, BUILD_INFO, {**labels, "version": str(sample.process.get("version", ""))}, 1)
    records = [("process", labels, sample.process)]
    for device in sample.devices:
        on_device = {"device": str(device.number), **labels}
        records.append(("device", on_device, device.values))
        _add_device(families, device, on_device)
        records += [("pool", {"pool": pool.name, **on_device}, pool.values) for pool in device.pools]
    for table, metric in all_metrics(measured.fields):
        for of_table, of_record, values in records:
            value = values.get(metric.key)
            if of_table == table and value is not None:
                families.add(metric.name, metric.kind, metric.help, of_record, value * metric.scale)


def _add_device(families: Families, device: Device, labels: Labels) -> None:
    if device.values.get("name"):
        model = {"name": device.values["name"], "uuid": str(device.values.get("uuid", ""))}
        _worked_out(families, "pyalloc_device_info", {**labels, **model}, 1)
    for kind, share in device.fragmentation().items():
        _worked_out(families, "pyalloc_device_fragmentation_ratio", {"kind": kind, **labels}, share)
    for pool in device.pools:
        of_pool = {"pool": pool.name, **labels}
        found = room(device, pool)
        _worked_out(families, "pyalloc_pool_available_bytes", of_pool, found.free if found else None)
        for kind, share in pool.fragmentation().items():
            _worked_out(families, "pyalloc_pool_fragmentation_ratio", {"kind": kind, **of_pool}, share)


def _worked_out(families: Families, name: str, labels: Labels, value: float | None) -> None:
    families.add(name, GAUGE, _WORKED_OUT[name], labels, value)
