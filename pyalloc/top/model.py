"""What the viewer knows of a process, and the one list of records that tables and JSON are made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ..stats_page import Device, Pool, Sample

SCHEMA: Final = "pyalloc.top/1"
# Rates by the counters of which they are the growth.
RATES: Final = {
    "allocations": ("allocation.all.allocated",),
    "frees": ("allocation.all.freed",),
    "driver_calls": ("num_device_alloc", "num_device_free"),
    "stream_waits": ("stream_waits",),
    "stalls": ("num_alloc_retries",),
}
POINTS: Final = 600  # of history, one for each look

# How a process is: it writes its page; it holds the page but has not written for a while; it ended and took the page
# along; it ended and left the page behind, so it was killed or crashed.
RUNNING, SILENT, ENDED, DIED = "running", "silent", "ended", "died"


@dataclass
class Track:
    """What a series of samples showed of one device."""

    rates: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(RATES))
    reserved: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    allocated: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    allocations: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    driver_calls: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    high: int = 0  # most reserved at any look

    def add(self, device: Device, before: Device | None, seconds: float) -> None:
        """One more sample of the device, `seconds` after `before`."""
        if before is not None and seconds > 0:
            self.rates = {name: _growth(device, before, counters, seconds) for name, counters in RATES.items()}
        self.reserved.append(device.reserved)
        self.allocated.append(device.allocated)
        self.allocations.append(self.rates["allocations"] or 0)
        self.driver_calls.append(self.rates["driver_calls"] or 0)
        self.high = max(self.high, device.reserved)


def _growth(device: Device, before: Device, counters: Iterable[str], seconds: float) -> float | None:
    total = 0
    for name in counters:
        now, then = device.values.get(name), before.values.get(name)
        if now is None or then is None or now < then:  # somebody reset it
            return None
        total += now - then
    return total / seconds


@dataclass
class Process:
    """One process: its last sample, how it is, and what earlier samples showed."""

    sample: Sample
    page: str
    state: str = RUNNING
    tracks: dict[int, Track] = field(default_factory=dict)
    same_namespace: bool = True
    seen_ended: float = 0.0  # when it was found to be over, by the monotonic clock

    @property
    def pid(self) -> int:
        return int(self.sample.process["pid"])

    @property
    def program(self) -> str:
        return str(self.sample.process["program"])

    @property
    def alive(self) -> bool:
        """Whether it still holds what its page says."""
        return self.state in (RUNNING, SILENT)

    @property
    def ooms(self) -> int:
        """Allocations refused so far, whatever the reason."""
        return sum(value or 0 for name, value in self.sample.process.items() if name.startswith("oom_"))

    def add(self, sample: Sample) -> None:
        """A newer sample; the same one again changes nothing."""
        seconds = (sample.process["published_ns"] - self.sample.process["published_ns"]) / 1e9
        if seconds == 0 and self.tracks:
            return
        before = {device.number: device for device in self.sample.devices} if self.tracks else {}
        for device in sample.devices:
            track = self.tracks.setdefault(device.number, Track())
            track.add(device, before.get(device.number), seconds)
        self.sample = sample


@dataclass(frozen=True)
class Row:
    """A process on a device."""

    process: Process
    device: Device

    @property
    def key(self) -> tuple[str, int]:
        return self.process.page, self.device.number

    @property
    def track(self) -> Track:
        return self.process.tracks[self.device.number]


def _started(row: Row) -> int:
    return int(row.process.sample.process.get("opened_ms") or 0)


# Every key one may sort by: what it means, the value, and whether the largest comes first.
SORT_KEYS: Final[dict[str, tuple[str, Callable[[Row], Any], bool]]] = {
    "reserved": ("mapped memory", lambda row: row.device.reserved, True),
    "allocated": ("memory of live blocks", lambda row: row.device.allocated, True),
    "idle": ("mapped memory that no block uses", lambda row: row.device.idle, True),
    "fragmentation": (
        "effective external fragmentation",
        lambda row: row.device.effective_external_fragmentation,
        True,
    ),
    "rate": ("allocations a second", lambda row: row.track.rates["allocations"] or 0, True),
    "calls": ("driver calls a second", lambda row: row.track.rates["driver_calls"] or 0, True),
    "oom": ("allocations refused", lambda row: row.process.ooms, True),
    "pid": ("process number", lambda row: row.process.pid, False),
    "time": ("when the process began", _started, False),
    "program": ("command line", lambda row: row.process.program, False),
}


@dataclass(frozen=True)
class Selection:
    """Which rows are shown, and in what order."""

    pids: frozenset[int] = frozenset()
    devices: frozenset[int] = frozenset()
    text: str = ""
    sort: str = "reserved"
    invert: bool = False

    def rows(self, processes: Iterable[Process]) -> list[Row]:
        """Every process on every device it uses, that is asked for, in order."""
        _, value, largest_first = SORT_KEYS[self.sort]
        rows = [
            Row(process, device)
            for process in processes
            for device in process.sample.devices
            if (not self.pids or process.pid in self.pids)
            and (not self.devices or device.number in self.devices)
            and self.text.lower() in f"{process.pid} {process.program} {device.values['name']}".lower()
        ]
        rows.sort(key=lambda row: (row.process.pid, row.device.number))
        return sorted(rows, key=value, reverse=largest_first != self.invert)


def pools_in_use(device: Device) -> list[Pool]:
    """Those that have, had, or may have only so much, memory."""
    return [pool for pool in device.pools if pool.reserved or pool.values.get("peak") or pool.values.get("limit")]


def records(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The processes of the rows as JSON has them, each with the devices that its rows name. Sizes are integers, in
    bytes; null is what is not known; rates, a second, are null until there are two samples to compare.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        process = row.process
        one = found.get(process.page)
        if one is None:
            one = found[process.page] = {
                **process.sample.process,
                "state": process.state,
                "same_pid_namespace": process.same_namespace,
                "page": process.page,
                "devices": [],
                "tags": [dict(tag) for tag in process.sample.tags],
                "events": [dict(event) for event in process.sample.events],
            }
        one["devices"].append(
            {
                **row.device.values,
                "fragmentation": row.device.fragmentation(),
                "rates": row.track.rates,
                "pools": [{**_plain(pool.values), "fragmentation": pool.fragmentation()} for pool in row.device.pools],
            }
        )
    return list(found.values())


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Cells as lists of those in use."""
    cells = values.get("cells") or 0
    return {name: list(value[:cells]) if isinstance(value, bytes) else value for name, value in values.items()}
