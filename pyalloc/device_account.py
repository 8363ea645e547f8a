"""ledger(): where all of a device's memory is. Figures of one moment that add up to the device's total."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from ._native import library
from ._words import readable
from .device_processes import UnknownProcessesError, process_memory
from .devices import Device, device_number
from .fragmentation import DeviceFragmentation
from .purpose_pools import PoolStats, pool_figures


@dataclass(frozen=True)
class Outside:
    """Who holds the memory outside pyalloc, in bytes; the three add up to Ledger.outside.

    this_process: CUDA's context and libraries of this process, which NVML does not tell apart; other_processes: of all
    others together; unattributed: what no process is said to hold, as the driver's own. NVML is asked a moment after
    the rest, so what it says is cut to fit.
    """

    this_process: int
    other_processes: int
    unattributed: int


@dataclass(frozen=True)
class Ledger(DeviceFragmentation):
    """A device's whole account; sizes in bytes. reserved + shelf + outside + free = total, and reserved is the sum of
    the pools'; torch's private ones (MemPool, CUDA graphs) are one together, "private", where they have any memory.

    reserved: mapped granules of all pools; shelf: granules kept unmapped for reuse; outside: what is neither pyalloc's
    nor free, and outside_by its parts, None when NVML cannot say (outside_unknown says why); free: what the driver has
    left. requested, allocated: live blocks, as asked and as rounded; used: granules that those touch, and the reserve;
    idle: granules that may move to where memory is needed; reserve: kept mapped for LoRA adapters alone; set_aside:
    what no block uses of it, and of what private pools in use keep; limit: most
    that pyalloc may hold, the total where there is none; margin: what can still be had before memory runs out (idle,
    shelf, and what the driver has left within the limit); activation_peak: most that was used at once by the pools
    other than weights, kv, lora and those laid out like them, since the last reset of a pool's peak; largest_free: the
    longest free mapped run; largest_remapped: the largest request that free mapped memory could serve, moved together,
    both outside the reserve; asleep: granules that tensors touch and that sleep() gave to the driver; offloaded: host
    memory that holds what is to be restored.
    For fragmentation what is set aside is not free memory.

    str() is a table for people, as_dict() the same for JSON.
    """

    device: int
    total: int
    reserved: int
    shelf: int
    outside: int
    free: int
    requested: int
    allocated: int
    used: int
    idle: int
    reserve: int
    set_aside: int
    limit: int
    margin: int
    activation_peak: int
    largest_free: int
    largest_remapped: int
    asleep: int
    offloaded: int
    pools: tuple[PoolStats, ...]
    outside_by: Outside | None
    outside_unknown: str

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and text; "fragmentation" for the device and in each pool."""
        whole = asdict(self)
        whole["pools"] = [{**asdict(one), "fragmentation": one.fragmentation()} for one in self.pools]
        return {**whole, "fragmentation": self.fragmentation()}

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def __repr__(self) -> str:
        return (
            f"<Ledger of device {self.device}: {readable(self.requested)} live, {readable(self.reserved)} reserved, "
            f"{readable(self.outside)} outside pyalloc, {readable(self.free)} free of {readable(self.total)}; "
            "print() shows all>"
        )


def ledger(device: Device = None) -> Ledger:
    """The whole account of one device: per pool, outside pyalloc, and free. device None: torch's current one, 0 before
    CUDA is in use. Exact, also while other threads allocate; walks the heap, so not for a hot loop. All zero, but for
    the pools' limits, before the device's first allocation. Raises InvalidArgumentError for a device that does not
    exist, DriverError when the driver cannot be asked.
    """
    number = device_number(device)
    values, pools = library().ledger(number)
    outside_by, unknown = None, "the device is not in use"
    if values["total"]:
        try:
            outside_by, unknown = _outside(values, process_memory(number)), ""
        except UnknownProcessesError as error:
            unknown = str(error)
    return Ledger(
        device=number,
        pools=tuple(pool_figures(name, of_pool) for name, of_pool in pools.items()),
        outside_by=outside_by,
        outside_unknown=unknown,
        **values,
    )


def _outside(values: dict[str, int], held: dict[int, int]) -> Outside:
    outside = values["outside"]
    beyond_pyalloc = held.pop(os.getpid()) - values["reserved"] - values["shelf"]
    own = min(outside, max(0, beyond_pyalloc))
    others = min(outside - own, sum(held.values()))
    return Outside(own, others, outside - own - others)


def _lines(whole: Ledger) -> list[str]:
    heads = ["reserved", "used", "allocated", "requested", "limit", "peak"]
    rows = [[f"device {whole.device}", *heads]]
    for one in whole.pools:
        if one.reserved or one.limit or one.peak or one.asleep:
            sizes = [one.reserved, one.used, one.allocated, one.requested, one.limit, one.peak]
            rows.append([f"  {one.name}", *("-" if size is None else readable(size) for size in sizes)])
    alone = [("  shelf", whole.shelf), ("  outside pyalloc", whole.outside)]
    if whole.outside_by is not None:
        alone += [
            ("    context and libraries", whole.outside_by.this_process),
            ("    other processes", whole.outside_by.other_processes),
            ("    unattributed", whole.outside_by.unattributed),
        ]
    alone += [("  free", whole.free), ("  total", whole.total)]
    rows += [[name, readable(size), *[""] * (len(heads) - 1)] for name, size in alone]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    if whole.outside_unknown:
        lines.append(f"who is outside: unknown, {whole.outside_unknown}")
    summary = {
        "limit": whole.limit,
        "left before out-of-memory": whole.margin,
        "activation peak": whole.activation_peak,
        "LoRA reserve": whole.reserve,
        **({"asleep": whole.asleep, "in host memory": whole.offloaded} if whole.asleep else {}),
    }
    lines.append(", ".join(f"{name} {readable(size)}" for name, size in summary.items()))
    figures = whole.fragmentation().items()
    lines.append("fragmentation: " + ", ".join(f"{kind.replace('_', ' ')} {value:.3f}" for kind, value in figures))
    return [line.rstrip() for line in lines]
