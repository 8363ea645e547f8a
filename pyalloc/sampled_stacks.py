"""Which code holds the memory: the stacks of sampled blocks (option sample_stacks)."""

import ctypes
import json
from dataclasses import dataclass
from typing import Any

from . import errors
from ._words import readable
from .devices import Device, device_number

_bridge: ctypes.CDLL | None = None  # while stacks are sampled


@dataclass(frozen=True)
class SampledBlock:
    """One live block whose stack was kept.

    Attributes:
        device: The ordinal that torch uses.
        address: Of its first byte.
        pool: The pool it lies in, such as "kv".
        stream: The handle of the stream it was allocated on; 0 for the default stream.
        bytes: What was asked for.
        weight: The live bytes it stands for: sums of weights, by stack or by pool, estimate the live bytes there.
        frames: The Python frames that allocated it, innermost first, each a dict with filename, line and name, as in
            torch's snapshots. Empty for a thread without Python, such as one of autograd's.
    """

    device: int
    address: int
    pool: str
    stream: int
    bytes: int
    weight: int
    frames: list[dict[str, Any]]

    def __repr__(self) -> str:
        first = self.frames[0] if self.frames else None
        place = f"{first['filename']}:{first['line']} in {first['name']}" if first else "a thread without Python"
        return (
            f"<SampledBlock of {self.pool!r}: {readable(self.bytes)}, stands for {readable(self.weight)}, at {place}>"
        )


def start(bridge: ctypes.CDLL, interval: int) -> None:
    """Samples one stack for about every `interval` bytes allocated; 0: none. Called once, with the loaded bridge."""
    global _bridge
    bridge.pyalloc_bridge_samples_json.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    bridge.pyalloc_bridge_samples_json.restype = ctypes.c_size_t
    bridge.pyalloc_bridge_sample_stacks.argtypes = (ctypes.c_uint64,)
    bridge.pyalloc_bridge_sample_stacks.restype = None
    bridge.pyalloc_bridge_sample_stacks(interval)
    _bridge = bridge if interval else None


def sampling() -> bool:
    """Whether stacks are sampled in this process."""
    return _bridge is not None


def sampled_blocks(device: Device = None) -> list[SampledBlock]:
    """The live blocks whose stack was kept, the heaviest first.

    Args:
        device: Only blocks of this one; None: of all.

    Raises:
        StateError: pyalloc does not sample: it is not enabled with its torch bridge and sample_stacks.
        InvalidArgumentError: there is no such device.
    """
    if _bridge is None:
        raise errors.StateError(
            "no stacks are sampled; enable pyalloc with its torch bridge and an interval, such as sample_stacks:64MiB"
        )
    number = None if device is None else device_number(device)
    import torch

    # Frames first: a block freed in between is left out, and one sampled in between is not yet known.
    # Not memory_snapshot(): in torch 2.14 each call of that loses a reference to True, on which Python before 3.12 dies
    # after some ten thousand calls.
    cuda: Any = torch.cuda
    frames = {
        block["address"]: block["frames"]
        for segment in cuda.memory._snapshot()["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    found = [
        SampledBlock(frames=[frame for frame in frames[row["address"]] if _is_python(frame)], **row)
        for row in _rows(_bridge)
        if row["address"] in frames and number in (None, row["device"])
    ]
    return sorted(found, key=lambda block: block.weight, reverse=True)


def _is_python(frame: dict[str, Any]) -> bool:
    """Torch's history has C++ frames as well, unless it was asked for Python's alone."""
    return str(frame["filename"]).endswith((".py", ">"))  # "<stdin>"


def _rows(bridge: ctypes.CDLL) -> list[dict[str, Any]]:
    capacity = 1 << 16
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        needed = int(bridge.pyalloc_bridge_samples_json(buffer, capacity))
        if needed < capacity:
            rows: list[dict[str, Any]] = json.loads(buffer.value.decode())
            return rows
        capacity = 2 * needed
