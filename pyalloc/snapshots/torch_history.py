"""What torch's memory history knows of this process's blocks, and what was sampled of them: which stack allocated
which, and what was allocated and freed last.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from .. import sampled_stacks
from .model import Events, Frame

Recorded = Mapping[str, Any]  # as torch.cuda.memory._snapshot() has it
Sites = Mapping[int, tuple[Frame, ...]]  # by the address of a live block

_MOST_FRAMES: Final = 64
_MOST_EVENTS: Final = 20_000
_SIGNS: Final = {"alloc": 1, "free_requested": -1}


def recorded() -> Recorded | None:
    """What torch has, under the bridge; None while it records no history and no stack is sampled."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    if not torch._C._cuda_isHistoryEnabled() and not sampled_stacks.sampling():
        return None
    taken: Recorded = torch.cuda.memory._snapshot()
    return taken


def call_sites(history: Recorded, device: int) -> Sites:
    """The stacks of a device's live blocks, of those that were recorded or sampled when they were allocated."""
    seen: dict[int, tuple[Frame, ...]] = {}  # torch gives one list for all blocks of a stack
    sites: dict[int, tuple[Frame, ...]] = {}
    segments = (one for one in history["segments"] if one["device"] == device)
    for block in (one for segment in segments for one in segment["blocks"]):
        frames = block.get("frames")
        if not frames or block["state"] != "active_allocated":
            continue
        site = seen.get(id(frames))
        if site is None:
            site = seen[id(frames)] = _frames(frames)
        sites[block["address"]] = site
    return sites


def events(history: Recorded, device: int) -> Events:
    """The last allocations and frees of a device."""
    traces = history["device_traces"]
    entries = [one for one in traces[device] if one["action"] in _SIGNS] if device < len(traces) else []
    last = entries[-_MOST_EVENTS:]
    return Events(
        tuple(int(one["time_us"]) for one in last), tuple(_SIGNS[one["action"]] * int(one["size"]) for one in last)
    )


def _frames(frames: list[dict[str, Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(str(one["name"]), str(one["filename"]), int(one["line"])) for one in frames[:_MOST_FRAMES])
