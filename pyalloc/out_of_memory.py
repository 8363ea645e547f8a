"""When memory runs out: functions of the program's own that can free some, and what was refused."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from . import errors
from ._native import RECLAIM, library

Reclaimer = Callable[[int, int], "int | None"]
_F = TypeVar("_F", bound=Reclaimer)
_UNKNOWN = (1 << 64) - 1
_registered: dict[Reclaimer, Any] = {}  # keeps the C functions alive


def on_oom(fn: _F, priority: int = 1) -> _F:
    """Registers fn(bytes, device), called when `bytes` cannot be had on `device`; it returns the bytes it freed, 0 for
    none, or None when it cannot tell. Also a decorator, with the default priority.

        @pyalloc.on_oom
        def drop_cache(bytes, device):
            prefix_cache.clear()

    The highest priority comes first, torch's own registered callbacks have 0, and those that come after the one that
    made room are not called. It runs on the thread that allocates, with no lock of pyalloc's held, and may allocate:
    what fails then is not offered to reclaimers again. An exception is printed to standard error and counts as
    nothing freed. Raises InvalidArgumentError when fn is registered already.
    """
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
    device, pool, bytes, reason and message. Reasons are "capacity" (there is not so much), "limit" (a limit of
    pyalloc's, or a reserve that may not overflow) and "fragmentation" (there is, but in pieces that cannot move).
    """
    return library().oom()
