"""mode:pools: torch keeps its CUDA allocator, and pyalloc's pool scopes go through torch's MemPools, whose segments are
blocks of pyalloc's pools.

Torch lets only one scope at a time into a MemPool, from whatever thread. So a scope takes, of each device, a MemPool of
its pool that nobody is in, or makes one, and puts them back when it is left. MemPools are kept, as torch keeps their
segments for the next scope; one that goes gives its free segments back, and lives on in torch while it has tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import errors
from ._native import Library

if TYPE_CHECKING:
    from torch.cuda import MemPool


class _Open(NamedTuple):
    """A scope that a thread is in; `left` ends it in torch."""

    number: int
    entered_ms: int
    left: contextlib.ExitStack


class TorchPools:
    """Every MemPool made, by pool: sets of one for each device. _lock guards _idle, the sets that no scope is in; the
    scopes that are open belong to their threads. Never destroyed: at the end of the process torch may be gone first.
    """

    def __init__(self, library: Library) -> None:
        import torch

        self._library = library
        self._lock = threading.Lock()
        self._idle: dict[int, list[list[MemPool]]] = {}
        self._allocators: dict[int, Any] = {}
        self._thread = threading.local()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        cuda: Any = torch.cuda  # has functions without annotations
        cuda._lazy_call(lambda: library.init(cuda.device_count()))

    def enter(self, number: int) -> None:
        """This thread's allocations go to the pool, on every device, until leave(). Initialises CUDA. During a capture
        nothing changes: a graph's memory is its own pool's. Raises StateError where torch has no MemPools.
        """
        import torch

        cuda: Any = torch.cuda
        cuda.init()
        with contextlib.ExitStack() as entered:
            if not cuda.is_current_stream_capturing():
                pools = self._take(number)
                entered.callback(self._put_back, number, pools)
                for device, pool in enumerate(pools):
                    entered.enter_context(cuda.use_mem_pool(pool, device=device))
            self._open_scopes().append(_Open(number, int(time.time() * 1000), entered.pop_all()))

    def leave(self, number: int, error: BaseException | None) -> None:
        """Ends the scope of the pool that this thread entered last, if there is one. An out-of-memory error of torch's
        that leaves it gets a note of why pyalloc refused.
        """
        scopes = self._open_scopes()
        for place in reversed(range(len(scopes))):
            if scopes[place].number == number:
                scope = scopes.pop(place)
                scope.left.close()
                if error is not None:
                    self._explain(error, scope)
                return

    def give_back(self) -> None:
        """Returns to pyalloc the free segments of the pools that no scope is in."""
        with self._lock:
            for sets in self._idle.values():
                sets[:] = [pools for pools in sets if not any(map(_has_free_segments, pools))]

    def _open_scopes(self) -> list[_Open]:
        if not hasattr(self._thread, "scopes"):
            self._thread.scopes = []
        scopes: list[_Open] = self._thread.scopes
        return scopes

    def _take(self, number: int) -> list[MemPool]:
        with self._lock:
            idle = self._idle.setdefault(number, [])
            return idle.pop() if idle else self._make(number)

    def _put_back(self, number: int, pools: list[MemPool]) -> None:
        with self._lock:
            self._idle[number].append(pools)

    def _make(self, number: int) -> list[MemPool]:
        import torch

        if number not in self._allocators:
            allocate, free = self._library.segment_functions(number)
            self._allocators[number] = torch._C._cuda_customAllocator(allocate, free)
        pools = []
        before = torch.cuda.current_device()
        try:
            for device in range(torch.cuda.device_count()):
                # A MemPool is of the current device; made so, it creates no context on one that is not in use.
                torch.cuda._maybe_exchange_device(device)
                pools.append(torch.cuda.MemPool(self._allocators[number]))
        except RuntimeError as error:
            raise errors.StateError(
                f"torch's current allocator ({torch.cuda.get_allocator_backend()}) has no MemPools, which mode:pools "
                f"needs: {error}"
            ) from error
        finally:
            torch.cuda._exchange_device(before)
        return pools

    def _explain(self, error: BaseException, scope: _Open) -> None:
        import torch

        if not isinstance(error, torch.OutOfMemoryError) or not hasattr(error, "add_note"):  # Python 3.10 has no notes
            return
        name = self._library.pool_names()[scope.number]
        for refusal in self._library.oom()["last"][-1:]:
            if refusal["unix_ms"] >= scope.entered_ms and refusal["pool"] == name:
                error.add_note(f"pyalloc: {refusal['message']}")


def _has_free_segments(pool: Any) -> bool:
    return any(segment["active_size"] == 0 for segment in pool.snapshot())


_active: TorchPools | None = None


def install(library: Library) -> None:
    """Lets pool scopes go through MemPools from now on."""
    global _active
    _active = TorchPools(library)


def active() -> TorchPools | None:
    """What install() made, or None: pyalloc is torch's allocator, or not in use."""
    return _active
