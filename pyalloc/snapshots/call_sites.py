"""Which stack allocated which block, as far as torch's memory history has recorded it, or it was sampled."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .. import sampled_stacks
from .model import Frame

Sites = Mapping[int, tuple[Frame, ...]]  # by the address of a live block
_MOST_FRAMES = 64


def call_sites() -> Sites:
    """The stacks of this process's live blocks; empty while torch records no history and none is sampled, or under a
    registration that cannot.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    try:
        if not torch._C._cuda_isHistoryEnabled() and not sampled_stacks.sampling():
            return {}
        taken: dict[str, Any] = torch.cuda.memory._snapshot()
    except (AttributeError, RuntimeError):  # plain registration, or a torch that has no such thing
        return {}
    seen: dict[int, tuple[Frame, ...]] = {}  # torch gives one list for all blocks of a stack
    sites: dict[int, tuple[Frame, ...]] = {}
    for segment in taken["segments"]:
        for block in segment["blocks"]:
            frames = block.get("frames")
            if not frames or block["state"] != "active_allocated":
                continue
            site = seen.get(id(frames))
            if site is None:
                site = seen[id(frames)] = _frames(frames)
            sites[block["address"]] = site
    return sites


def _frames(frames: list[dict[str, Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(str(one["name"]), str(one["filename"]), int(one["line"])) for one in frames[:_MOST_FRAMES])


def where(site: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of a stack that is the program's own: not torch's, pyalloc's or C++'s."""
    for frame in site:
        parts = frame.filename.replace("\\", "/").split("/")
        if frame.filename.endswith(".py") and "torch" not in parts and "pyalloc" not in parts:
            return frame
    return site[0] if site else None
