"""Blocks, limits and giving memory back."""

from __future__ import annotations

from typing import Any

from ..program import MIB, TORCHS_SEGMENTS, covers, empty, raised


@covers("cuda.caching_allocator_alloc", "cuda.caching_allocator_delete")
def raw_blocks() -> Any:
    import torch
    from torch.cuda import memory

    first = memory.caching_allocator_alloc(3 * MIB)
    second = memory.caching_allocator_alloc(3 * MIB, stream=torch.cuda.Stream())
    held = torch.cuda.memory_allocated()
    memory.caching_allocator_delete(first)
    memory.caching_allocator_delete(second)
    foreign = raised(lambda: memory.caching_allocator_delete(12345))
    return first != second, held, torch.cuda.memory_allocated(), foreign


@covers(
    "cuda.caching_allocator_enable",
    "cuda.caching_allocator_disabled",
    "virtual.enable",
    "virtual.isEnabled",
    plain="has no effect",
)
def caching_switched_off() -> Any:
    import torch
    from torch.cuda import memory

    kept = empty(1)
    free = torch.cuda.mem_get_info()[0]
    with memory.caching_allocator_disabled():
        block = empty(30 * MIB)
        during = free - torch.cuda.mem_get_info()[0]
        del block
        after = free - torch.cuda.mem_get_info()[0]
    cached = empty(30 * MIB)
    memory.caching_allocator_enable(True)
    return during >= 30 * MIB, after <= 0, cached.numel() + kept.numel()


@covers(
    "cuda.set_per_process_memory_fraction",
    "virtual.setMemoryFraction",
    plain="what is beyond the limit is a tensor with a null pointer, as whatever cannot be had",
)
def memory_fraction() -> Any:
    import torch
    from torch.cuda import memory

    total = torch.cuda.mem_get_info()[1]
    memory.set_per_process_memory_fraction(0.25)
    refused = raised(lambda: empty(total // 2))
    return refused, empty(total // 8).data_ptr() != 0, raised(lambda: memory.set_per_process_memory_fraction(2.0))


@covers("cuda.get_per_process_memory_fraction", "virtual.getMemoryFraction")
def memory_fraction_read() -> Any:
    from torch.cuda import memory

    default = memory.get_per_process_memory_fraction()
    memory.set_per_process_memory_fraction(0.25)
    return default, memory.get_per_process_memory_fraction()


@covers("cuda.empty_cache", "virtual.emptyCache", pools=TORCHS_SEGMENTS)
def empty_cache() -> Any:
    import torch

    block = empty(64 * MIB)
    free = torch.cuda.mem_get_info()[0]
    del block
    had = torch.cuda.memory_reserved() >= 64 * MIB
    torch.cuda.empty_cache()
    return had, torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0] - free >= 64 * MIB
