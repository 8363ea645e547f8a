"""Registration without the bridge: torch's own CUDAPluggableAllocator around two C functions, plus every hook torch
lets C have.

Torch offers no hook for statistics, so while this registration is in force its statistics functions (torch._C) are
replaced by ones that read the core. What cannot be mended is named in LOST.
"""

from collections.abc import Callable
from typing import Any, Final

from ._native import Library
from .stats import device_stats

LOST: Final = (
    "running out of memory gives a tensor with a null pointer instead of torch.OutOfMemoryError; no memory_snapshot, "
    "cacheInfo, OOM observers, free-memory callbacks of torch or profiler memory events; memory used in a CUDA graph "
    "is not kept for its replays; every stream's frees are stamped with an event"
)

# torch's hook setters and the C functions for them.
_HOOKS: Final = {
    "set_init_fn": "pyalloc_plain_init",
    "set_reset_fn": "pyalloc_plain_reset",
    "set_memory_fraction_fn": "pyalloc_plain_set_memory_fraction",
    "set_base_alloc_fn": "pyalloc_plain_base_alloc",
    "set_record_stream_fn": "pyalloc_plain_record_stream",
}


def install_plain(library: Library) -> None:
    """Makes the plain pair torch's CUDA allocator. Raises torch's RuntimeError when CUDA is in use already."""
    import torch

    allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(library.path, "pyalloc_malloc", "pyalloc_free")
    for setter, symbol in _HOOKS.items():
        getattr(allocator.allocator(), setter)(library.address(symbol))
    torch.cuda.memory.change_current_allocator(allocator)
    for name, function in _replacements(library, torch._C).items():
        setattr(torch._C, name, function)


def _torch_stats(device: int) -> dict[str, Any]:
    """device_stats with the keys that only torch has, each saying that there is no such thing here."""
    none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    return {
        **device_stats(device),
        "oversize_allocations": dict(none),
        "oversize_segments": dict(none),
        "max_split_size": -1,
        "reserved_bytes_by_private_pools": {},
    }


def _replacements(library: Library, torch_c: Any) -> dict[str, Callable[..., Any]]:
    """The functions of torch._C that would raise, or read the allocator that is not in use, under plain
    registration.
    """
    return {
        "_cuda_memoryStats": _torch_stats,
        "_cuda_resetPeakMemoryStats": library.reset_peak_stats,
        "_cuda_resetAccumulatedMemoryStats": library.reset_accumulated_stats,
        "_accelerator_isAllocatorInitialized": lambda: library.device_count() > 0,
        "_accelerator_emptyCache": torch_c._cuda_emptyCache,
        "_accelerator_getDeviceStats": _torch_stats,
        "_accelerator_resetPeakStats": library.reset_peak_stats,
        "_accelerator_resetAccumulatedStats": library.reset_accumulated_stats,
    }
