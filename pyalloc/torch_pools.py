"""mode:pools: torch keeps its CUDA allocator, and pyalloc's pool scopes go through torch's MemPools, whose segments are
blocks of pyalloc's pools.

Torch lets only one scope at a time into a MemPool, from whatever thread. So a scope takes, of each device, a MemPool of
its pool that nobody is in, or makes one, and puts them back when it is left. MemPools are kept, as torch keeps their
segments for the next scope; one that goes gives its free segments back, and lives on in torch while it has tensors.

Torch would serve a scope of a pool that sleeps from segments it keeps, without asking. So such a scope is refused, and
no pool falls asleep while one of its scopes is open.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(eq=False)
class _Set:
    """The MemPools of a pool, one for each device."""

    number: int
    pools: list[MemPool]


class TorchPools:
    """Every MemPool made. _lock guards _idle, the sets that no scope is in, by pool; _taken, the others, but those that
    threads ended in; and _asleep, the pools that no scope may enter. The scopes that are open belong to their threads.
    Never destroyed: at the end of the process torch may be gone first.
    """

    def __init__(self, library: Library) -> None:
        import torch

        self._library = library
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Set]] = {}
        self._taken: weakref.WeakSet[_Set] = weakref.WeakSet()
        self._asleep: set[int] = set()
        self._allocators: dict[int, Any] = {}
        self._thread = threading.local()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        cuda: Any = torch.cuda  # has functions without annotations
        cuda._lazy_call(lambda: library.init(cuda.device_count()))

    def enter(self, number: int) -> None:
        """This thread's allocations go to the pool, on every device, until leave(). Initialises CUDA. During a capture
        nothing changes: a graph's memory is its own pool's. Raises StateError where torch has no MemPools, and for a
        pool that sleeps.
        """
        import torch

        cuda: Any = torch.cuda
        cuda.init()
        with contextlib.ExitStack() as entered:
            if not cuda.is_current_stream_capturing():
                taken = self._take(number)
                entered.callback(self._put_back, taken)
                for device, pool in enumerate(taken.pools):
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
                sets[:] = [one for one in sets if not any(map(_has_free_segments, one.pools))]

    @contextlib.contextmanager
    def falling_asleep(self, numbers: set[int]) -> Iterator[None]:
        """Keeps scopes out of pools from here until wake(); if the body raises, out of those alone that sleep somewhere
        all the same. StateError while one is open.
        """
        with self._lock:
            for one in self._taken:
                if one.number in numbers:
                    name = self._library.pool_names()[one.number]
                    raise errors.StateError(f"a scope of the pool {name!r} is open; leave it before the pool sleeps")
            numbers = numbers - self._asleep
            self._asleep |= numbers
        try:
            yield
        except BaseException:
            devices = range(self._library.device_count())
            self.wake(
                {one for one in numbers if not any(self._library.pool_stats(at, one)["asleep"] for at in devices)}
            )
            raise

    def wake(self, numbers: set[int]) -> None:
        """Lets scopes into pools again."""
        with self._lock:
            self._asleep -= numbers

    def _open_scopes(self) -> list[_Open]:
        if not hasattr(self._thread, "scopes"):
            self._thread.scopes = []
        scopes: list[_Open] = self._thread.scopes
        return scopes

    def _take(self, number: int) -> _Set:
        with self._lock:
            if number in self._asleep:
                name = self._library.pool_names()[number]
                raise errors.StateError(f"the pool {name!r} sleeps; pyalloc.wake() brings it back")
            idle = self._idle.setdefault(number, [])
            taken = idle.pop() if idle else self._make(number)
            self._taken.add(taken)
            return taken

    def _put_back(self, taken: _Set) -> None:
        with self._lock:
            self._taken.discard(taken)
            self._idle[taken.number].append(taken)

    def _make(self, number: int) -> _Set:
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
        return _Set(number, pools)

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
