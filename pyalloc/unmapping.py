"""Functions of the program's own that hear of memory before it is unmapped, to take registrations off it."""

from __future__ import annotations

import atexit
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from . import errors, torch_pools
from ._abi import MAPPING_OBSERVER
from ._native import library

UnmapFunction = Callable[[int, int, int], object]
_F = TypeVar("_F", bound=UnmapFunction)
_registered: list[UnmapFunction] = []
_lock = threading.Lock()  # of adding and removing
NOT_WITH_POOLS = (
    'on_unmap functions cannot be called with enable(mode="pools"): torch holds its lock while pyalloc unmaps, and a '
    "function that waits for it would wait for ever"
)
_observing = False


def on_unmap(fn: _F) -> _F:
    """Registers fn(device, address, bytes), called before that run of addresses is unmapped: whoever registered memory
    there (NCCL, RDMA) takes the registration off. Also a decorator.

        @pyalloc.on_unmap
        def deregister(device, address, bytes):
            network.deregister(address, bytes)

    address and bytes are whole multiples of 2 MiB, and no live tensor lies there. Nothing is mapped there again before
    fn has returned. Memory that moves to another address leaves the old one later. It runs with no lock of pyalloc's
    held, on any thread, one of pyalloc's own among them, and may allocate and free. An exception is printed to standard
    error, and the unmapping goes on. Not called while the process exits.
    Raises InvalidArgumentError when fn is registered already or cannot be called; StateError with enable(mode="pools"),
    where torch holds its lock while pyalloc unmaps.
    """
    global _observing
    if not callable(fn):
        raise errors.InvalidArgumentError(f"on_unmap was given {fn!r}; expected a function of (device, address, bytes)")
    if torch_pools.active() is not None:
        raise errors.StateError(NOT_WITH_POOLS)
    with _lock:
        if fn in _registered:
            raise errors.InvalidArgumentError(f"{fn!r} is registered already; remove_on_unmap() takes it off")
        if not _observing:
            library().add_mapping_observer(_OBSERVER, _UNMAPPING)
            _observing = True
        _registered.append(fn)
    return fn


def registered() -> bool:
    """Whether there is a function to call."""
    return bool(_registered)


def remove_on_unmap(fn: UnmapFunction) -> None:
    """Takes a function of on_unmap() off again; another thread may still be in it. Raises InvalidArgumentError when it
    is not registered.
    """
    with _lock:
        if fn not in _registered:
            raise errors.InvalidArgumentError(f"{fn!r} is not registered; on_unmap() does that")
        _registered.remove(fn)
    if not _registered:
        _stop()


def _stop() -> None:
    """Without functions to call, the allocator need not tell anybody first."""
    global _observing
    with _lock:
        observing, _observing = _observing, False
    if observing:  # without the lock: it waits for calls that other threads are in
        library().remove_mapping_observer(_OBSERVER)


# pyalloc's own thread may call until then, and must not once the interpreter is gone.
atexit.register(_stop)


def _call(_: int | None, event: Any) -> None:
    run = event.contents
    for fn in list(_registered):
        try:
            fn(run.device, run.address, run.bytes)
        except BaseException:  # nothing may leave towards the core
            name = getattr(fn, "__qualname__", repr(fn))
            print(f"Exception ignored in pyalloc.on_unmap's {name}:\n{traceback.format_exc()}", file=sys.stderr)


_UNMAPPING = 2  # PYALLOC_UNMAPPING
_OBSERVER = MAPPING_OBSERVER(_call)  # for as long as the process lives
