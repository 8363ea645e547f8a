"""Allocators, pools and CUDA graphs."""

from __future__ import annotations

from typing import Any

from .. import program
from ..program import MIB, call, covers, empty, raised


@covers("cuda.get_allocator_backend", "virtual.name", bridge='answers "pyalloc"', plain='answers "pluggable"')
def backend() -> Any:
    import torch

    return torch.cuda.get_allocator_backend(), call("name")


@covers("cuda.CUDAPluggableAllocator")
def foreign_allocator_in_a_pool() -> Any:
    import torch
    from torch.cuda import memory

    theirs = memory.CUDAPluggableAllocator(program.calls._name, "foreign_malloc", "foreign_free")
    pool = torch.cuda.MemPool(theirs.allocator())
    with torch.cuda.use_mem_pool(pool):
        block = empty(30 * MIB)
    held = program.calls.foreign_count()
    outside = empty(30 * MIB)
    same = program.calls.foreign_count()
    inside = any(one["address"] <= block.data_ptr() < one["address"] + one["total_size"] for one in pool.snapshot())
    del block, pool
    torch.cuda.empty_cache()
    return held, same, inside, program.calls.foreign_count(), len(outside)


@covers("cuda.change_current_allocator")
def swap_after_initialisation() -> Any:
    from torch.cuda import memory

    theirs = memory.CUDAPluggableAllocator(program.calls._name, "foreign_malloc", "foreign_free")
    memory.change_current_allocator(theirs)


@covers(
    "cuda.MemPool",
    "cuda.use_mem_pool",
    "virtual.beginAllocateToPool",
    "virtual.endAllocateToPool",
    "virtual.releasePool",
)
def mem_pool() -> Any:
    import torch

    def holds(pool: Any, tensor: Any) -> bool:
        return any(one["address"] <= tensor.data_ptr() < one["address"] + one["total_size"] for one in pool.snapshot())

    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = empty(30 * MIB)
        with torch.cuda.use_mem_pool(other):
            second = empty(30 * MIB)
        count = pool.use_count()
        again = raised(torch.cuda.use_mem_pool(pool).__enter__)
    outside = empty(30 * MIB)
    where = [[holds(one, tensor) for one in (pool, other)] for tensor in (first, second, outside)]
    place = first.data_ptr()
    del first
    unused = empty(30 * MIB).data_ptr() != place
    with torch.cuda.use_mem_pool(pool):
        reused = empty(30 * MIB).data_ptr() == place
    identity = pool.id[0] == 0 and pool.id != other.id
    del pool, other
    torch.cuda.empty_cache()
    return where, count, again, unused, reused, identity, second.numel(), torch.cuda.memory_allocated()


@covers(
    "virtual.markCaptureBegin",
    "virtual.markCaptureEnd",
    plain="a graph is captured, but its memory is not kept for its replays",
)
def graph() -> Any:
    import torch

    static = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        during = empty(30 * MIB).zero_()
        places = [during.data_ptr()]
        del during
        result = static + 1
    places.append(result.data_ptr())
    del result
    # What the graph uses stays its own for as long as it can be replayed.
    theirs = [empty(size) for size in (30 * MIB, 4 * MIB) for _ in range(3)]
    kept = [all(abs(tensor.data_ptr() - place) >= 4 * MIB for tensor in theirs) for place in places]
    graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    return kept, len(theirs)


@covers("virtual.beginAllocateToPool", "virtual.endAllocateToPool", "virtual.releasePool")
def graph_pool() -> Any:
    import torch

    static = torch.zeros(1 << 20, device="cuda")
    graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
    with torch.cuda.graph(graphs[0]):
        first = static + 1
    with torch.cuda.graph(graphs[1], pool=graphs[0].pool()):
        second = first + 1
    pool = tuple(graphs[0].pool())
    same = pool == tuple(graphs[1].pool())
    owned = sum(one["allocated_size"] for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] == pool)
    return same, owned, second.numel()
