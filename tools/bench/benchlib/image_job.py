"""In a job's process: KV tensors of images come and go beside weights, and the kv pool's fragmentation is looked at."""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Mapping
from typing import Any

from . import allocator_setup


def run(allocator: str, options: Mapping[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """options: requests ([arrival in s, end in s, bytes of each tensor] in order of arrival), layers, capacity, weights
    (bytes), samples (how many), enable. Answers the samples: seconds, and the figures of the kv pool.
    """
    driver = allocator_setup.prepare_device(int(options["capacity"]), "immediate")
    allocator_setup.choose(allocator, dict(options["enable"]))
    import torch

    import pyalloc

    with pyalloc.pool("weights"):
        weights = torch.empty(int(options["weights"]), dtype=torch.uint8, device="cuda")
    requests, layers = options["requests"], int(options["layers"])
    every = max(1, len(requests) // int(options["samples"]))
    leaving: list[tuple[float, int, list[torch.Tensor]]] = []  # end, number, tensors
    samples, refused = [], 0
    with pyalloc.pool("kv"):
        for number, (arrival, end, sizes) in enumerate(requests):
            while leaving and leaving[0][0] <= arrival:
                heapq.heappop(leaving)
            tensors = []
            try:
                for size in sizes:
                    tensors += [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(layers)]
            except torch.OutOfMemoryError:
                refused += 1
                continue
            heapq.heappush(leaving, (end, number, tensors))
            if number % every == 0:
                kv = next(one for one in pyalloc.pools() if one.name == "kv")
                samples.append(
                    {
                        "seconds": arrival,
                        "requested": kv.requested,
                        "used": kv.used,
                        "external": kv.external_fragmentation,
                        "granule": kv.granule_fragmentation,
                    }
                )
    figures = allocator_setup.pyalloc_counters()
    del weights
    violations = driver.simgpu_violations() if driver is not None else 0
    return {"samples": samples, "refused": refused, "counters": figures, "violations": violations}
