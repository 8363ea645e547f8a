"""Pools that sleep: their memory goes to the driver and back, their tensors keep their addresses."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable

from . import errors, torch_pools
from ._abi import PROGRESS
from ._native import library

Progress = Callable[[int, int, int], object]
_PRIVATE = -2  # PYALLOC_PRIVATE_POOLS


def sleep(
    pools: Iterable[str] = ("weights", "kv"), *, offload: Iterable[str] = (), progress: Progress | bool | None = None
) -> int:
    """Gives the memory of whole pools to the driver, on every device in use, and returns its bytes. Tensors of the
    pools stay what they are, at the same addresses, but must not be used before wake(); they may be freed. So captured
    graphs and views are good again afterwards.

        pyalloc.sleep(["weights", "kv"], offload={"weights"})
        ...                                 # others have the memory
        pyalloc.wake()

    "private" stands for all private pools of torch together (MemPool, CUDA graphs).

    The device is waited for first. The contents of the pools in `offload`, which are among `pools`, are copied to
    pinned host memory, and wake() restores them; those of the others are lost. Pools that sleep already stay as they
    are. While a pool sleeps, allocating in it raises RuntimeError (PyallocError in this package's calls), naming the
    pool; ledger() and pools() say what sleeps. Functions of on_unmap() are called before anything is unmapped. With
    enable(mode="pools") entering a scope of such a pool is what raises, and "private" stands for nothing.

    progress: fn(device, done, total), called as bytes are copied, and not from another thread, total being all that is
    copied of the device; True prints a line to
    standard error, and None does where that is a terminal.

    All or nothing: raises torch.OutOfMemoryError for too little host memory, StateError while a CUDA graph is captured,
    while memory of a pool is shared with other processes, while another thread is in sleep() or wake(), without pyalloc
    as torch's allocator, or, with mode="pools", while a scope of a pool is open, DriverError when the driver refuses,
    InvalidArgumentError for unknown pools. An exception of `progress` is raised once the pools sleep.
    """
    core = library()
    names, kept = _names("pools", pools), _names("offload", offload)
    if kept.keys() - names.keys():
        raise errors.InvalidArgumentError(
            f"offload names {', '.join(sorted(kept.keys() - names.keys()))}, not among the pools that are to sleep: "
            f"{', '.join(names) or 'none'}"
        )
    _check_in_use()
    beside = torch_pools.active() if core.device_count() > 0 else None  # else no scope was ever entered
    kept_out = contextlib.nullcontext() if beside is None else beside.falling_asleep(set(names.values()))
    with _Reporter("sleep", progress) as reporter, errors.as_torch_raises(), kept_out:
        return core.sleep(list(names.values()), [name in kept for name in names], reporter.function)


def wake(pools: Iterable[str] | None = None, *, progress: Progress | bool | None = None) -> None:
    """Brings memory back to pools that sleep, at the old addresses and with what sleep() was to keep; None: to all of
    them. What the other pools contain is undefined. Pools that are awake stay as they are. progress: as for sleep().

    All or nothing, on every device: raises torch.OutOfMemoryError when the memory cannot be had, by the same ladder as
    any allocation (on_oom functions are asked), and a later wake() may find it; else as sleep().
    """
    core = library()
    names = _names("pools", [*core.pool_names(), "private"] if pools is None else pools)
    with _Reporter("wake", progress) as reporter, errors.as_torch_raises():
        core.wake(list(names.values()), reporter.function)
        if (beside := torch_pools.active()) is not None:
            beside.wake(set(names.values()))


def _names(what: str, pools: Iterable[str]) -> dict[str, int]:
    if isinstance(pools, str) or not isinstance(pools, Iterable):
        example = pools if isinstance(pools, str) else "kv"
        raise errors.InvalidArgumentError(f"{what} {pools!r}; expected several names, as in [{example!r}]")
    return {name: _PRIVATE if name == "private" else library().find_pool(name) for name in pools}


def _check_in_use() -> None:
    from .allocator import is_enabled

    if not is_enabled() and library().device_count() == 0:
        raise errors.StateError("pyalloc is not torch's allocator in this process: call pyalloc.enable() first")


class _Reporter:
    """The C function that hears of copies, and what the user's own raised in it."""

    def __init__(self, what: str, progress: Progress | bool | None) -> None:
        self._what = what
        self._shows = progress is True or (progress is None and sys.stderr is not None and sys.stderr.isatty())
        self._call = progress if callable(progress) else None
        if progress is not None and not isinstance(progress, bool) and self._call is None:
            raise errors.InvalidArgumentError(f"progress {progress!r}; expected fn(device, done, total), True or False")
        self._error: BaseException | None = None
        self._printed = False
        self.function = PROGRESS(self._hear) if self._shows or self._call else None

    def __enter__(self) -> _Reporter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._printed:
            print(file=sys.stderr)
        if error is None and self._error is not None:
            raise self._error

    def _hear(self, _: int | None, device: int, done: int, total: int) -> None:
        try:
            if self._call is not None:
                self._call(device, done, total)
            if self._shows:
                unit, name = (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")
                line = (
                    f"\rpyalloc: {self._what}: device {device}: {done / unit:.2f} of {total / unit:.2f} {name} copied"
                )
                print(line, end="", file=sys.stderr, flush=True)
                self._printed = True
        except BaseException as raised:  # nothing may leave towards the core
            self._error = self._error or raised
