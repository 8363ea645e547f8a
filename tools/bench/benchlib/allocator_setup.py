"""In a job's process: chooses the device and the allocator, before CUDA is used."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from typing import Any

from pyalloc.errors import PyallocError

from . import costs
from .errors import BenchError


def simulated_driver() -> ctypes.CDLL | None:
    """The simulated GPU this process was started with, or None on a real one."""
    driver = ctypes.CDLL(None)
    return driver if hasattr(driver, "simgpu_present") else None


def prepare_device(capacity: int | None, streams: str) -> ctypes.CDLL | None:
    """Makes the simulated device one of `capacity` bytes whose calls cost what the table says. Real GPU: nothing."""
    driver = simulated_driver()
    if driver is None:
        return None
    driver.simgpu_last_error.restype = ctypes.c_char_p
    if driver.simgpu_reset(f"memory:{capacity or 80 << 30},devices:1,streams:{streams}".encode()) != 0:
        raise BenchError(f"the simulated GPU cannot be set up: {driver.simgpu_last_error().decode()}")
    for cost in costs.COSTS:
        charges = (cost.per_call, cost.per_mapping, cost.per_mib)
        if driver.simgpu_set_cost(cost.entry_point.encode(), *map(ctypes.c_double, charges)) != 0:
            raise BenchError(f"the simulated GPU has no entry point {cost.entry_point}")
    driver.simgpu_set_cost_moves_clock(0)
    return driver


@dataclass
class Chosen:
    """The allocator in force. The functions are addresses of pyalloc's own, 0 for torch's allocators."""

    enable_ms: float = 0.0
    maintain: int = 0
    validate: int = 0
    push_pool: int = 0
    pop_pool: int = 0


def choose(allocator: str, options: dict[str, Any]) -> Chosen:
    """Installs the allocator and initialises CUDA. `options` are arguments of pyalloc.enable(), for pyalloc alone."""
    import torch

    chosen = Chosen()
    if allocator == "pyalloc":
        chosen = _choose_pyalloc(options)
    elif allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    cuda: Any = torch.cuda  # has functions without annotations
    cuda.init()
    torch.cuda.current_stream().synchronize()  # the context exists from here on
    return chosen


def _choose_pyalloc(options: dict[str, Any]) -> Chosen:
    started = time.perf_counter()
    try:
        import pyalloc

        pyalloc.enable(**{"bridge": "require", "lora_reserve": 0, **options})
        enable_ms = (time.perf_counter() - started) * 1e3
        dll = ctypes.CDLL(pyalloc.library_path())
    except (PyallocError, TypeError) as error:
        raise BenchError(f"pyalloc cannot be enabled: {error}") from error
    names = ("maintain", "validate", "push_pool", "pop_pool")
    functions = [ctypes.cast(dll[f"pyalloc_{name}"], ctypes.c_void_p).value or 0 for name in names]
    return Chosen(enable_ms, *functions)


def pyalloc_pools() -> dict[str, dict[str, int]]:
    """The figures of pyalloc's pools on device 0 (pool_fields.def)."""
    from pyalloc import _native

    library = _native.library()
    return {name: library.pool_stats(0, number) for number, name in enumerate(library.pool_names())}


def pyalloc_counters() -> dict[str, int]:
    """pyalloc's own single-number statistics of device 0 (stat_fields.def)."""
    from pyalloc import _native

    library = _native.library()
    stats = library.stats(0)
    return {field["name"]: int(getattr(stats, field["name"])) for field in library.stat_fields if not field["group"]}
