"""In a job's process: adapters loaded and unloaded whole, on a device that other pools have filled."""

from __future__ import annotations

import contextlib
import ctypes
import random
import time
from collections.abc import Mapping
from statistics import mean
from typing import Any

from . import allocator_setup, costs

MIB = 1 << 20


class Loads:
    """One allocator's loads, each with its time and the calls that get, map or return memory."""

    def __init__(self, allocator: str, options: Mapping[str, Any]) -> None:
        self._driver = allocator_setup.prepare_device(int(options["capacity"]), "immediate")
        if self._driver is not None:
            self._driver.simgpu_charged_us.restype = ctypes.c_double
            self._driver.simgpu_calls.restype = ctypes.c_int64
        self.ours = allocator == "pyalloc"
        allocator_setup.choose(allocator, dict(options["enable"]))
        self.adapters: dict[int, list[Any]] = {}
        self.occupied = self.made_room = self.number = 0
        self.microseconds: list[float] = []
        self.modelled: list[float] = []
        self.preparing = [0.0]
        self.calls = 0
        self._random = random.Random(int(options["seed"]))

    def fill(self, leave: int) -> None:
        """Takes all memory but `leave` bytes for something else, in ever smaller pieces."""
        import torch

        self._filler, piece = [], 1024 * MIB
        while piece >= 2 * MIB:
            free, _ = torch.cuda.mem_get_info()
            taken = False
            if free >= leave + piece:
                with contextlib.suppress(torch.OutOfMemoryError), self._scope("weights"):
                    self._filler.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
                    taken = True
            if not taken:
                piece //= 2

    def _scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        import pyalloc

        return pyalloc.pool(name) if self.ours else contextlib.nullcontext()

    def unload(self) -> None:
        """A random adapter goes."""
        number = self._random.choice(list(self.adapters))
        self.occupied -= sum(one.numel() for one in self.adapters.pop(number))

    def load(self, sizes: list[int]) -> None:
        """Loads an adapter; as long as there is no memory for it, unloads others, which its time includes."""
        import torch

        charged, calls = self._charged()
        started = time.perf_counter()
        while True:
            tensors: list[Any] = []
            try:
                with self._scope("lora"):
                    for size in sizes:
                        tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                break
            except torch.OutOfMemoryError:
                if not self.adapters:
                    raise
                tensors.clear()
                self.made_room += 1
                self.unload()
        self.microseconds.append((time.perf_counter() - started) * 1e6)
        after, calls_after = self._charged()
        self.modelled.append(after - charged)
        self.calls += calls_after - calls
        self.adapters[self.number] = tensors
        self.number += 1
        self.occupied += sum(sizes)

    def prepare(self, size: int) -> None:
        import pyalloc

        before, _ = self._charged()
        pyalloc.lora_prepare(size)
        self.preparing.append(self._charged()[0] - before)

    def _charged(self) -> tuple[float, int]:
        if self._driver is None:
            return 0.0, 0
        calls = sum(self._driver.simgpu_calls(name.encode()) for name in costs.MEMORY_CALLS)
        return float(self._driver.simgpu_charged_us()), calls


def run(allocator: str, options: Mapping[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """options: adapters (lists of tensors' bytes), loads, occupancy (bytes), capacity, leave (bytes not filled),
    prepare (whether lora_prepare comes before each load), seed, enable.
    """
    loads = Loads(allocator, options)
    loads.fill(int(options["leave"]))
    chooser, external = random.Random(int(options["seed"]) + 1), [0.0]
    for _ in range(int(options["loads"])):
        sizes = chooser.choice(options["adapters"])
        while loads.adapters and loads.occupied + sum(sizes) > int(options["occupancy"]):
            loads.unload()
        if options.get("prepare"):
            loads.prepare(sum(sizes))
        loads.load(sizes)
        if loads.ours:
            pools = allocator_setup.pyalloc_pools()["lora"]
            free = pools["reserved"] - pools["allocated"]
            external.append(1 - pools["largest_free"] / free if free > 0 else 0.0)
    answer: dict[str, Any] = {
        "microseconds": loads.microseconds,
        "modelled": loads.modelled,
        "preparing_worst_us": max(loads.preparing),
        "calls": loads.calls,
        "made_room": loads.made_room,
        "external_most": max(external),
        "external_mean": mean(external),
    }
    if loads.ours:
        counters = allocator_setup.pyalloc_counters()
        answer |= {name: counters[name] for name in ("lora_overflows", "lora_prepares", "num_sync_all_streams")}
    return answer
