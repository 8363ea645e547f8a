"""How much more a process can hold, per pool and device: what /health/capacity says, for load balancers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..stats_page import Device, Pool

if TYPE_CHECKING:
    from .families import Measured

SCHEMA: Final = "pyalloc.capacity/1"


@dataclass(frozen=True)
class Room:
    """Bytes: free is what new blocks can still get; total, what is used and that: the most that could be used now."""

    free: int
    total: int


def room(device: Device, pool: Pool | None = None) -> Room | None:
    """What the device has left for anybody; of a pool, no more of that than its limit leaves, and what waits in its
    reserve. None where it is not known. Free parts of granules in use are not counted, so it is rather too little.
    """
    margin, values = device.values.get("margin"), (device if pool is None else pool).values
    used = values.get("used")
    if margin is None or used is None:
        return None
    if pool is None:
        return Room(margin, used + margin)
    limit = values.get("limit") or 0
    beyond = min(margin, max(0, limit - used)) if limit else margin
    waiting = max(0, (values.get("reserve") or 0) - (values.get("allocated") or 0))
    return Room(beyond + waiting, used + beyond)


def capacity(processes: Iterable[Measured]) -> dict[str, Any]:
    """The answer as JSON has it, in bytes. A pool's total grows and shrinks with the other pools, unless it has a
    limit. null is what is not known: of blocks that is all, until a KV block manager says how many it has.
    """
    return {"schema": SCHEMA, "processes": [_of_process(one) for one in processes]}


def _of_process(measured: Measured) -> dict[str, Any]:
    process, devices = measured.sample.process, measured.sample.devices
    return {
        **{name: process[name] for name in ("program", "pid")},
        **{name: text for name, text in measured.labels.items() if text and name != "pid"},
        "devices": [
            {
                "device": device.number,
                **_figures(room(device)),
                "pools": [{"pool": pool.name, **_figures(room(device, pool))} for pool in device.pools],
            }
            for device in devices
        ],
    }


def _figures(found: Room | None) -> dict[str, int | None]:
    return {
        "free_blocks": None,
        "total_blocks": None,
        "free_bytes": found.free if found else None,
        "total_bytes": found.total if found else None,
    }
