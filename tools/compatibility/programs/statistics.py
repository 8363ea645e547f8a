"""Statistics, the snapshot, and torch.accelerator."""

from __future__ import annotations

import warnings
from typing import Any

from ..program import MIB, TORCHS_SEGMENTS, at_least, covers, empty

FIGURES = (
    "allocation.all.current",
    "allocation.all.allocated",
    "allocation.all.freed",
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "requested_bytes.all.current",
    "active.all.current",
    "active_bytes.all.current",
    "allocation.small_pool.current",
    "allocation.large_pool.current",
    "num_ooms",
    "num_alloc_retries",
    "max_split_size",
)


def three_blocks() -> tuple[Any, Any]:
    """Two that stay and a larger one that is gone."""
    kept = empty(3 * MIB), empty(1000)
    empty(9 * MIB)
    return kept


@covers("cuda.memory_stats", "virtual.getDeviceStats")
def memory_stats() -> Any:
    import torch

    before = torch.cuda.memory_stats()  # zeros
    kept = three_blocks()
    stats = torch.cuda.memory_stats()
    sane = stats["reserved_bytes.all.current"] >= stats["active_bytes.all.current"] and len(kept) == 2
    return [before.get(name) for name in FIGURES], [stats[name] for name in FIGURES], sane, at_least(stats)


@covers("cuda.memory_stats_as_nested_dict")
def nested_stats() -> Any:
    import torch

    kept = three_blocks()
    stats = torch.cuda.memory_stats_as_nested_dict()
    return stats["allocated_bytes"]["all"], at_least(stats), len(kept)


@covers("cuda.memory_allocated", "cuda.max_memory_allocated")
def allocated() -> Any:
    import torch

    kept = three_blocks()
    return torch.cuda.memory_allocated(), torch.cuda.memory_allocated(0), torch.cuda.max_memory_allocated(), len(kept)


@covers("cuda.memory_reserved", "cuda.max_memory_reserved", "cuda.memory_cached", "cuda.max_memory_cached")
def reserved() -> Any:
    import torch
    from torch.cuda import memory

    kept = three_blocks()
    now, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        same = memory.memory_cached() == now and memory.max_memory_cached() == most
    return now >= torch.cuda.memory_allocated(), most >= torch.cuda.max_memory_allocated() - 512, same, len(kept)


@covers(
    "cuda.reset_peak_memory_stats",
    "cuda.reset_max_memory_allocated",
    "cuda.reset_max_memory_cached",
    "virtual.resetPeakStats",
)
def reset_peaks() -> Any:
    import torch
    from torch.cuda import memory

    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for reset in (
            memory.reset_peak_memory_stats,
            memory.reset_max_memory_allocated,
            memory.reset_max_memory_cached,
        ):
            kept = three_blocks()
            reset()
            answers.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
            answers.append(torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved())
            del kept
    return answers


@covers("cuda.reset_accumulated_memory_stats", "virtual.resetAccumulatedStats")
def reset_totals() -> Any:
    import torch

    kept = three_blocks()
    torch.cuda.reset_accumulated_memory_stats()
    del kept
    stats = torch.cuda.memory_stats()
    return [stats[f"allocated_bytes.all.{part}"] for part in ("current", "peak", "allocated", "freed")]


@covers(
    "cuda.host_memory_stats",
    "cuda.host_memory_stats_as_nested_dict",
    "cuda.reset_accumulated_host_memory_stats",
    "cuda.reset_peak_host_memory_stats",
    "accelerator.empty_host_cache",
)
def pinned_memory() -> Any:
    import torch
    from torch.cuda import memory

    pinned = torch.empty(3 * MIB, dtype=torch.uint8).pin_memory()
    stats = memory.host_memory_stats()
    memory.reset_accumulated_host_memory_stats()
    memory.reset_peak_host_memory_stats()
    after = memory.host_memory_stats()
    del pinned
    torch.accelerator.memory.empty_host_cache()
    names = ("allocation.current", "allocated_bytes.current", "allocated_bytes.peak", "allocated_bytes.allocated")
    return [[one.get(name) for name in names] for one in (stats, after)], sorted(
        memory.host_memory_stats_as_nested_dict()
    )


@covers("cuda.memory_summary")
def memory_summary() -> Any:
    import torch

    kept = three_blocks()
    text = torch.cuda.memory_summary()
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|") and line.count("|") > 3], (
        len(kept)
    )


@covers("cuda.list_gpu_processes")
def list_gpu_processes() -> Any:
    import torch

    kept = empty(MIB)
    return torch.cuda.list_gpu_processes().splitlines()[0], len(kept)


@covers("cuda.mem_get_info", "accelerator.get_memory_info", "virtual.getMemoryInfo")
def mem_get_info() -> Any:
    import torch

    kept = empty(1)
    free, total = torch.cuda.mem_get_info()
    block = empty(64 * MIB)
    fewer = free - torch.cuda.mem_get_info()[0]
    same = torch.accelerator.memory.get_memory_info() == torch.cuda.mem_get_info()
    return total, fewer, same, len(kept) + len(block)


@covers("cuda.memory_snapshot", "virtual.snapshot")
def memory_snapshot() -> Any:
    import torch

    kept = three_blocks()
    segments = torch.cuda.memory_snapshot()
    whole = all(sum(block["size"] for block in one["blocks"]) == one["total_size"] for one in segments)
    states = []
    for tensor in kept:
        (found,) = [
            block
            for one in segments
            for block in one["blocks"]
            if block["address"] <= tensor.data_ptr() < block["address"] + block["size"]
        ]
        states.append((found["state"], found["requested_size"], found["address"] == tensor.data_ptr()))
    light = torch.cuda.memory_snapshot(include_traces=False)
    sums = [sum(one[key] for one in segments) for key in ("allocated_size", "active_size", "requested_size")]
    return (
        sorted(segments[0]),
        at_least(segments[0]["blocks"][0]),
        whole,
        states,
        sums,
        sum(one["total_size"] for one in segments) == torch.cuda.memory_reserved(),
        len(light) == len(segments),
        torch.cuda.memory_snapshot((0, 987654)),
    )


@covers("accelerator.memory_stats", "accelerator.memory_allocated", "accelerator.max_memory_allocated")
def accelerator_stats() -> Any:
    import torch

    kept = three_blocks()
    memory = torch.accelerator.memory
    stats = memory.memory_stats()
    return [stats[name] for name in FIGURES], memory.memory_allocated(), memory.max_memory_allocated(), len(kept)


@covers(
    "accelerator.memory_reserved",
    "accelerator.max_memory_reserved",
    "accelerator.reset_peak_memory_stats",
    "accelerator.reset_accumulated_memory_stats",
)
def accelerator_resets() -> Any:
    import torch

    kept = three_blocks()
    memory = torch.accelerator.memory
    same = memory.memory_reserved() == torch.cuda.memory_reserved()
    same_peak = memory.max_memory_reserved() == torch.cuda.max_memory_reserved()
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    return same, same_peak, memory.max_memory_allocated(), memory.memory_stats()["allocation.all.allocated"], len(kept)


@covers("accelerator.empty_cache", pools=TORCHS_SEGMENTS)
def accelerator_empty_cache() -> Any:
    import torch

    empty(64 * MIB)
    torch.accelerator.memory.empty_cache()
    return torch.cuda.memory_reserved()
