"""Device capacities as people write them, and the arithmetic of the smallest one that suffices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from pyalloc.errors import ConfigError
from pyalloc.simgpu import parse_size

from .errors import BenchError

GRANULE = 2 << 20
_MULTIPLE = re.compile(r"(\d+(?:\.\d+)?)\s*[xX]")


def granules(size: float) -> int:
    """Rounded up to whole granules, in bytes: what a device can have."""
    return math.ceil(size / GRANULE) * GRANULE


def parse_capacity(text: str, live_peak: int) -> int:
    """Bytes of "80GiB", "512MiB", "1073741824", or "1.05x": so many times a trace's peak live bytes, in whole granules.

    Raises BenchError for anything else, and for a capacity below one granule.
    """
    multiple = _MULTIPLE.fullmatch(text.strip())
    try:
        size = granules(float(multiple.group(1)) * live_peak) if multiple is not None else parse_size(text)
    except ConfigError:
        raise BenchError(
            f"{text!r} is no capacity; expected bytes, a size such as 80GiB, or a multiple of peak live such as 1.05x"
        ) from None
    if size < GRANULE:
        raise BenchError(f"capacity {text!r} is {size} bytes; a device has at least {GRANULE} (one granule)")
    return size


def show(size: float) -> str:
    """1.50 GiB, 32.0 MiB, 17 B."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{int(size)} B"


@dataclass(frozen=True)
class Smallest:
    """The smallest capacity found to suffice, and how close below it one failed."""

    capacity: int
    failed: int
    probes: int


def bisect(low: int, high: int, tolerance: int, completes: Callable[[int], bool]) -> Smallest:
    """The smallest capacity, within `tolerance` bytes, at which `completes`, between `low` (the least that could do)
    and `high`.

    Whether a run completes need not be monotone in capacity: this finds a place where failing turns into completing.
    Raises BenchError when even `high` does not complete.
    """
    low, high = granules(low), granules(high)
    probes = 1
    if completes(low):
        return Smallest(low, low - GRANULE, probes)
    probes += 1
    if not completes(high):
        raise BenchError(f"the run does not complete with {show(high)} either; no capacity to look for below that")
    while high - low > max(tolerance, GRANULE):
        middle = granules((low + high) // 2)
        if middle >= high:
            break
        probes += 1
        if completes(middle):
            high = middle
        else:
            low = middle
    return Smallest(high, low, probes)
