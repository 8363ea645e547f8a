"""The core's statistics read directly, whatever way the allocator is registered."""

from typing import Any

from ._abi import KINDS
from ._native import library
from .devices import Device, device_number

_HISTORY = ("current", "peak", "allocated", "freed")


def device_stats(device: Device = 0) -> dict[str, Any]:
    """Statistics of one device, nested as torch.cuda.memory_stats_as_nested_dict nests them, with pyalloc's own
    counters beside.

    A group such as "allocated_bytes" is {"all" | "small_pool" | "large_pool": {"current" | "peak" | "allocated" |
    "freed": int}}; a counter such as "stolen_granules" is an int. Sizes are in bytes. All zero before the device's
    first allocation. Raises InvalidArgumentError for a device that does not exist.
    """
    core = library()
    raw = core.stats(device_number(device))
    result: dict[str, Any] = {}
    for field in core.stat_fields:
        value = getattr(raw, field["name"])
        if field["group"]:
            result[field["name"]] = {
                kind: {part: int(getattr(stat, part)) for part in _HISTORY}
                for kind, stat in zip(KINDS, value, strict=True)
            }
        else:
            result[field["name"]] = int(value)
    return result
