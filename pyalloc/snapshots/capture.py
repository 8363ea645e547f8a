"""snapshot(): where this process's memory is now. No Python runs for a block: the core writes rows, and each of their
columns is read as a whole.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

from .._native import Library, library
from .._version import __version__
from ..allocator import describe_options, enabled_state
from ..attribution import bills
from ..device_account import Ledger, ledger
from ..devices import MOST_DEVICES
from ..out_of_memory import oom_report
from .model import NONE, Blocks, DeviceSnapshot, Events, Segment, Snapshot
from .torch_history import Recorded, Sites, call_sites, events, recorded

_TRIES = 3  # to have ledger and blocks of one moment
_K = TypeVar("_K")


def snapshot(*, sites: bool = True) -> Snapshot:
    """Where the memory of this process is: devices, pools, segments and blocks, with fragmentation, tags and options.

        pyalloc.snapshot().save("before.json")

    sites: also the stacks that allocated the blocks, a moment before, and the last 20,000 allocations and frees, while
    torch records memory history (torch.cuda.memory._record_memory_history()); with sample_stacks the stacks of some
    blocks; else there are none. `pyalloc snapshot` draws the file and converts it for torch's viewer, `pyalloc diff`
    compares two. The program may go on allocating meanwhile: a device's
    threads are held up for some milliseconds for each 10,000 blocks. Raises DriverError when the driver cannot be
    asked for its free memory, and StateError in a process that was forked after CUDA was in use.
    """
    core = library()
    state = enabled_state()
    torch = sys.modules.get("torch")
    versions = {"pyalloc": __version__, "python": platform.python_version()}
    if torch is not None:
        versions["torch"] = str(torch.__version__)
    unix_ms = time.time_ns() // 1_000_000
    # Under another registration torch records blocks of its own, or none.
    history = recorded() if sites and state is not None and state.mode == "bridge" else None
    devices = [_device(core, number, history) for number in range(core.device_count() or MOST_DEVICES)]
    return Snapshot(
        unix_ms=unix_ms,
        pid=os.getpid(),
        program=Path(sys.argv[0]).name if getattr(sys, "argv", None) else "",
        versions=versions,
        registration=state.mode if state is not None else "none",
        options={option["key"]: option["value"] for option in describe_options()},
        devices=tuple(one for one in devices if one is not None),
        bills=tuple(one for one in bills() if one.blocks or one.open_scopes),
        oom=oom_report(),
    )


def _device(core: Library, number: int, history: Recorded | None) -> DeviceSnapshot | None:
    """None for a device that is not in use."""
    for _ in range(_TRIES):
        account = ledger(number)
        if account.total == 0:
            return None
        segment_rows, block_rows = core.snapshot_rows(number)
        names = core.pool_names()
        if exact := _agree(account, names, segment_rows):
            break
    firsts = accumulate(segment_rows["blocks"], initial=0)
    rows = (dict(zip(segment_rows, row, strict=True)) for row in zip(*segment_rows.values(), strict=True))
    segments = tuple(
        Segment(**{**row, "pool": _name(names, row["pool"]), "large": bool(row["large"]), "first": first})
        for row, first in zip(rows, firsts, strict=False)
    )
    blocks = _blocks(core, block_rows, {} if history is None else call_sites(history, number))
    return DeviceSnapshot(account, segments, blocks, exact, Events() if history is None else events(history, number))


def _name(names: list[str], pool: int) -> str:
    return names[pool] if pool < len(names) else "private"  # above the named ones: torch's MemPools and CUDA graphs


def _agree(account: Ledger, names: list[str], rows: dict[str, list[int]]) -> bool:
    """Whether each pool's figures are the sums over its segments: both are of one moment, or of equal ones."""
    sums = {name: [0, 0, 0] for name in (*names, "private")}
    for pool, *figures in zip(rows["pool"], rows["bytes"], rows["allocated"], rows["requested"], strict=True):
        of_pool = sums[_name(names, pool)]
        of_pool[:] = [one + more for one, more in zip(of_pool, figures, strict=True)]
    return all([one.reserved, one.allocated, one.requested] == sums[one.name] for one in account.pools)


def _blocks(core: Library, rows: dict[str, list[int]], sites: Sites) -> Blocks:
    tag_names = {number: core.tag_name(number) for number in set(rows["tag"])}
    tags, tag_places = _places(tag_names[number] or None for number in rows["tag"])
    stacks, site_places = _places(
        sites.get(address) if state == 0 else None
        for address, state in zip(rows["address"], rows["state"], strict=True)
    )
    return Blocks(
        address=tuple(rows["address"]),
        bytes=tuple(rows["bytes"]),
        requested=tuple(rows["requested"]),
        state=tuple(rows["state"]),
        stream=tuple(rows["stream"]),
        tag=tag_places,
        site=site_places,
        tags=tags,
        sites=stacks,
    )


def _places(values: Iterable[_K | None]) -> tuple[tuple[_K, ...], tuple[int, ...]]:
    """The different values, and for each its place among them; NONE for None."""
    places: dict[_K, int] = {}
    found = tuple(NONE if value is None else places.setdefault(value, len(places)) for value in values)
    return tuple(places), found
