"""When memory runs out: functions of the program's own that can free some, and what was refused."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from . import errors
from ._abi import RECLAIM
from ._native import library

Reclaimer = Callable[[int, int], "int | None"]
_F = TypeVar("_F", bound=Reclaimer)
_UNKNOWN = (1 << 64) - 1
_HIGHEST = 1_000_000  # priority; the core keeps higher ones for itself
_registered: dict[Reclaimer, Any] = {}  # keeps the C functions alive


def on_oom(fn: _F, priority: int = 0) -> _F:
    """Registers fn(bytes, device), called when `bytes` cannot be had on `device`; it returns the bytes it freed, 0 for
    none, or None when it cannot tell. Also a decorator, with the default priority.

        @pyalloc.on_oom
        def drop_cache(bytes, device):
            prefix_cache.clear()

    Torch's own registered callbacks come first, then these, the highest priority first and equal ones in the order of
    registration; those that come after the one that made room are not called. It runs on the thread that allocates,
    with no lock of pyalloc's held, and may allocate: what fails then is not offered to reclaimers again. An exception
    is printed to standard error and counts as nothing freed. priority: -1,000,000 to 1,000,000. Raises
    InvalidArgumentError when fn is registered already or cannot be called, or for another priority.
    """
    if not callable(fn):
        raise errors.InvalidArgumentError(f"on_oom was given {fn!r}; expected a function of (bytes, device)")
    if not isinstance(priority, int) or abs(priority) > _HIGHEST:
        raise errors.InvalidArgumentError(
            f"on_oom was given priority {priority!r}; expected a whole number from {-_HIGHEST} to {_HIGHEST}"
        )
    if fn in _registered:
        raise errors.InvalidArgumentError(f"{fn!r} is registered already; remove_on_oom() takes it off")

    def call(context: int | None, device: int, size: int) -> int:
        try:
            freed = fn(size, device)
            return _UNKNOWN if freed is None else min(max(0, int(freed)), _UNKNOWN - 1)
        except BaseException:  # nothing may leave towards the core, and what ctypes would return then is undefined
            name = getattr(fn, "__qualname__", repr(fn))
            print(f"Exception ignored in pyalloc.on_oom's {name}:\n{traceback.format_exc()}", file=sys.stderr)
            return 0

    function = RECLAIM(call)
    library().add_reclaimer(function, priority)
    _registered[fn] = function
    return fn


def remove_on_oom(fn: Reclaimer) -> None:
    """Takes a function of on_oom() off again. Raises InvalidArgumentError when it is not registered."""
    function = _registered.get(fn)
    if function is None:
        raise errors.InvalidArgumentError(f"{fn!r} is not registered; on_oom() does that")
    library().remove_reclaimer(function)
    del _registered[fn]


def oom_report() -> dict[str, Any]:
    """What was refused for lack of memory: "counts" by reason, and "last", up to 16, oldest first, each with unix_ms,
    device, pool, bytes, reason, message and freed: the bytes that each rung gave, in their order ("pending": frees
    that were complete, "slabs": empty slabs, "callbacks": torch's, "reclaimers": on_oom's, "events": waiting for
    events, "context": waiting for the device, "lenders": MemPools with use_on_oom). Reasons are "capacity" (there is
    not so much), "limit" (a limit of pyalloc's, or a reserve that may not overflow), "fragmentation" (there is, but in
    pieces that cannot move) and "pinned" (there would be, within the limit too, with what is set aside for LoRA
    adapters, or free in torch's private pools, and not in use).
    """
    return library().oom()
