"""Snapshots made by hand, for tests that need no GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyalloc.attribution import Bill
from pyalloc.device_account import Ledger
from pyalloc.purpose_pools import PoolStats
from pyalloc.snapshots.model import NONE, STATES, Blocks, DeviceSnapshot, Events, Frame, Segment, Snapshot

MIB = 1 << 20
STEP = (
    Frame("grow", "/torch/nn/modules/module.py", 10),
    Frame("handle", "/app/serve.py", 7),
    Frame("main", "/app/serve.py", 90),
)
REFUSED = {
    "unix_ms": 1_700_000_000_000,
    "device": 0,
    "pool": "kv",
    "bytes": 9 * MIB,
    "reason": "capacity",
    "freed": {},
    "message": "CUDA out of memory. Tried to allocate 9.00 MiB.",
}
OTHER = (Frame("load", "/app/model.py", 3),)

# A block: bytes, requested, state, tag, site.
Row = tuple[int, int, str, "str | None", "tuple[Frame, ...]"]


def live(size: int, tag: str | None = None, site: tuple[Frame, ...] = ()) -> Row:
    return size, size, "live", tag, site


def hole(size: int) -> Row:
    return size, 0, "free", None, ()


def snapshot_of(
    pools: dict[str, Sequence[Row]],
    unix_ms: int = 1_700_000_000_000,
    device: int = 0,
    events: Sequence[tuple[int, int]] = (),
) -> Snapshot:
    """A snapshot of one device: each pool is one segment of these blocks, end to end."""
    tags: dict[str, int] = {}
    sites: dict[tuple[Frame, ...], int] = {}
    columns: dict[str, list[int]] = {
        name: [] for name in ("address", "bytes", "requested", "state", "stream", "tag", "site")
    }
    segments, of_pools = [], []
    for place, (name, rows) in enumerate(pools.items()):
        address, first = (place + 1) << 40, len(columns["address"])
        begin = address
        for size, requested, state, tag, site in rows:
            values = {
                "address": address,
                "bytes": size,
                "requested": requested,
                "state": STATES.index(state),
                "stream": 0,
                "tag": NONE if tag is None else tags.setdefault(tag, len(tags)),
                "site": sites.setdefault(site, len(sites)) if site else NONE,
            }
            for column, value in values.items():
                columns[column].append(value)
            address += size
        allocated = sum(size for size, _, state, _, _ in rows if state == "live")
        requested = sum(asked for _, asked, state, _, _ in rows if state == "live")
        reserved = address - begin
        segments.append(
            Segment(begin, reserved, name, 0, 0, True, 0, allocated, allocated, requested, first, len(rows))
        )
        zeros = {field.name: 0 for field in dataclasses.fields(PoolStats)}
        figures = {"blocks": len([row for row in rows if row[2] == "live"]), "used": reserved, "peak": reserved}
        figures |= {"requested": requested, "requested_total": requested, "allocated": allocated, "reserved": reserved}
        of_pools.append(PoolStats(**{**zeros, **figures, "name": name, "limit": None}))
    zeros = {field.name: 0 for field in dataclasses.fields(Ledger)}
    reserved = sum(one.reserved for one in of_pools)
    sums = {"total": 1 << 33, "reserved": reserved, "used": reserved, "free": (1 << 33) - reserved}
    sums |= {name: sum(getattr(one, name) for one in of_pools) for name in ("requested", "allocated")}
    ledger = Ledger(
        **{**zeros, **sums, "device": device, "pools": tuple(of_pools), "outside_by": None, "outside_unknown": ""}
    )
    table = Blocks(**{name: tuple(column) for name, column in columns.items()}, tags=tuple(tags), sites=tuple(sites))
    told = Events(tuple(when for when, _ in events), tuple(size for _, size in events))
    return Snapshot(
        unix_ms=unix_ms,
        pid=4242,
        program="serve.py",
        versions={"pyalloc": "0", "python": "3"},
        registration="bridge",
        options={"slack": "0.05"},
        devices=(DeviceSnapshot(ledger, tuple(segments), table, True, told),),
        bills=tuple(Bill(tag, 1, 1, 1, 1, 1, 0) for tag in tags),
        oom={"counts": {"capacity": 1, "limit": 0}, "last": [dict(REFUSED)]},
    )
