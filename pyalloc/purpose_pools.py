"""Purpose pools: which pool a thread's allocations go to, and what each pool holds.

Blocks of different pools never share physical memory, so memory of one lifetime does not keep memory of another from
being given back. What is idle in one pool serves the next need of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import errors, torch_pools
from ._native import library
from ._words import counted, readable
from .allocator import is_enabled
from .devices import MOST_DEVICES, Device, device_number
from .fragmentation import PoolFragmentation
from .scope import ThreadScope


@dataclass(frozen=True)
class PoolStats(PoolFragmentation):
    """One pool of one device; sizes in bytes.

    requested: asked for by its live blocks; requested_total: by all blocks it ever handed out; allocated: the live
    ones, rounded as allocated; used: the 2 MiB granules those touch, and the reserve; reserved: its mapped granules,
    the idle ones, which any pool may take, included; limit: most that may be used, None without one; peak: most that
    was used at once, None for ledger()'s "private", which is several; largest_free: the longest free mapped run;
    largest_remapped: the largest request that its free mapped memory could serve, moved together; reserve: kept mapped
    for its blocks alone (lora), a part of used; asleep: granules that its blocks touch and that sleep() gave to the
    driver, no part of used; offloaded: host memory that holds what is to be restored.
    """

    name: str
    blocks: int
    requested: int
    requested_total: int
    allocated: int
    used: int
    reserved: int
    limit: int | None
    peak: int | None
    largest_free: int
    largest_remapped: int
    reserve: int
    asleep: int
    offloaded: int

    def __repr__(self) -> str:
        limit = f", limit {readable(self.limit)}" if self.limit else ""
        asleep = f", {readable(self.asleep)} asleep" if self.asleep else ""
        return (
            f"<PoolStats of {self.name!r}: {readable(self.requested)} live in {counted(self.blocks, 'block')}, "
            f"{readable(self.used)} used, {readable(self.reserved)} reserved{limit}{asleep}>"
        )


class PoolScope(ThreadScope):
    """What pool() returns: entered and left any number of times, on any thread, but left on the thread that entered it.
    Leaving it elsewhere raises StateError and changes nothing on either thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"pyalloc.pool({self._name!r})"

    def __enter__(self) -> None:
        self._number = library().find_pool(self._name)  # a pool's for good
        library().push_pool(self._number)
        if (pools := torch_pools.active()) is not None:
            try:
                pools.enter(self._number)
            except BaseException:
                library().pop_pool(self._number)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (pools := torch_pools.active()) is not None:
            pools.leave(self._number, error)
        library().pop_pool(self._number)


def pool(name: str) -> PoolScope:
    """What this thread allocates inside goes to the pool `name`: "weights", "kv", "workspace", "lora", "general", or
    one made by create_pool().

        with pyalloc.pool("kv"):
            cache = torch.empty(layers, 2, tokens, width, device="cuda")

        @pyalloc.pool("weights")
        def load(): ...

    Each outermost scope of "workspace" is a step. A step's blocks lie in an arena of their stream; a step that finds it
    empty and asks for the same sizes in the same order as the last gets the same addresses. What is still alive when
    its step ends stays valid, and escapes() counts it; a function's local tensors are alive until it returns, so make
    the scope its decorator.

    Scopes nest, and an exception leaves them in order. A scope belongs to the thread that entered it; autograd's
    backward runs on threads of its own, which are not covered. Tasks that take turns on one thread share its scopes, so
    hold none over an await: leaving scopes in another order raises StateError, and leaves them. As a decorator only of
    functions that are done when they return. A tensor is freed to its own pool wherever that happens. Without pyalloc
    as torch's allocator a scope does nothing. Entering it raises InvalidArgumentError for an unknown name.

    With enable(mode="pools") a scope goes through torch's MemPools: entering it initialises CUDA, a CUDA graph that is
    being captured keeps its own memory whatever scope is entered, and a pool holds torch's segments; see enable().
    """
    if callable(name):  # @pyalloc.pool without a name
        raise errors.InvalidArgumentError(
            f"pyalloc.pool was given {name!r}; expected a pool's name, as a decorator @pyalloc.pool('workspace')"
        )
    return PoolScope(name)


def create_pool(
    name: str,
    *,
    like: str | None = None,
    limit: int | str | None = None,
    slab: int | str | None = None,
    contiguous: bool = False,
) -> str:
    """Makes a pool of your own, on every device, and returns its name; with one that exists, only its limit changes.

        pyalloc.create_pool("images", like="kv", limit="20GiB", slab="32MiB")

    name: 1 to 31 lower-case letters, digits and underscores. A process has at most 64 pools, and none is ever removed.
    like: the pool whose layout it has: "weights" is packed, "workspace" has steps and arenas, "kv" may have slabs
    (kv_large_threshold); "general"
    when None. Also one of your own; not "lora", whose reserve is its own.
    limit: most that its blocks may use on each device, in bytes or as "20GiB"; None leaves it as it is, 0 is none.
    slab: the slabs that its blocks from kv_large_threshold (or 4 MiB) to that size share: 4, 8, 16 or 32 MiB, 0 for
    none; None: as `like` has them. Not for pools like weights or workspace.
    contiguous: every tensor lies in one piece of physical memory, as NCCL, network cards (RDMA) and sharing with other
    processes want it: those of 2 MiB and more in a piece of just their size, rounded up to 2 MiB, smaller ones several
    in a piece of 2 MiB. The pieces can be exported as file descriptors, and network cards may reach them, where the
    device says so. Takes the place of the layout of `like`, which cannot be workspace. A freed piece serves the next
    tensor of its size, and goes back to the driver when memory is needed for anything else.
    Raises InvalidArgumentError, also for a limit below what is in use already, and for a layout that differs from that
    of the pool that exists; then no limit changes.
    """
    core = library()
    amount = None if limit is None else core.parse_size(limit)
    slabs = None if slab is None else core.parse_size(slab)
    number = core.create_pool(name, -1 if like is None else core.find_pool(like), slabs, bool(contiguous))
    if amount is not None:
        set_before: list[tuple[int, int]] = []
        try:
            for device in range(core.device_count() or MOST_DEVICES):
                before = core.pool_stats(device, number)["limit"]
                core.set_pool_limit(device, number, amount)
                set_before.append((device, before))
        except errors.PyallocError:
            for device, before in set_before:
                core.set_pool_limit(device, number, before)
            raise
    return name


def pools(device: Device = None) -> list[PoolStats]:
    """Every pool on one device: the five that always exist, then yours. device None: torch's current one, 0 before
    CUDA is in use. Exact; walks the heap, so not for a hot loop.
    """
    core = library()
    number = device_number(device)
    return [pool_figures(name, core.pool_stats(number, place)) for place, name in enumerate(core.pool_names())]


def pool_figures(name: str, values: dict[str, Any]) -> PoolStats:
    """The core's figures of one pool, by the names of its table, as users see them."""
    sizes = {key: size for key, size in values.items() if key != "limit"}
    return PoolStats(name=name, limit=values["limit"] or None, **sizes)


def escapes(device: Device = None) -> dict[int, int]:
    """How many blocks outlived the workspace step they were allocated in, by the bytes that were asked for, largest
    first; since the program's start, each block once. They keep a step from being given the addresses of the last; what
    is meant to live longer is better allocated outside. Only 256 sizes of a stream are told apart, those that come
    later are counted together as 0. A block that another thread allocated on the same stream counts when either
    thread's step ends.
    """
    sizes = library().escapes(device_number(device))
    return {int(size): sizes[size] for size in sorted(sizes, key=int, reverse=True)}


def lora_prepare(size: int | str, device: Device = None) -> None:
    """Makes room for an adapter of `size` bytes (or "500MiB") that is about to be loaded, beyond the reserve: the load
    then needs no driver call. The memory stays set aside until the next outermost `with pyalloc.pool("lora")` ends, on
    any thread, or until the next call; 0 only ends it. It comes from idle memory first, then as any memory does when it
    is short. Raises torch.OutOfMemoryError when it cannot be had, StateError without a reserve or where pyalloc is not
    torch's allocator, DriverError without a GPU; what was set aside before stays so then.
    """
    core = library()
    if not is_enabled() and core.device_count() == 0:
        raise errors.StateError(
            "pyalloc is not torch's allocator in this process: call pyalloc.enable() before the load"
        )
    with errors.as_torch_raises():
        core.lora_prepare(device_number(device), core.parse_size(size))


def empty_cache() -> None:
    """Gives the driver what no tensor uses. As torch.cuda.empty_cache(), but that with enable(mode="pools") it also
    returns what torch keeps for pools that no scope is open for. Of a pool that tensors are left in, the rest of the
    memory goes back when they are gone, and at the next call.
    """
    import torch

    if (pools := torch_pools.active()) is not None:
        torch.cuda.empty_cache()  # torch sees here which blocks no stream uses any more; until then they count as used
        pools.give_back()
    torch.cuda.empty_cache()
    if pools is not None:
        library().trim()


def reset_pool_peaks(device: Device = None) -> None:
    """Starts every pool's `peak` on one device again from what is used now."""
    core = library()
    for number in range(len(core.pool_names())):
        core.reset_pool_peak(device_number(device), number)
