"""What the viewer at pytorch.org/memory_viz needs of a snapshot, as checks that are stricter than it is: where the
viewer would draw nonsense or stop with an error, these fail.
"""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

# Opcodes that the viewer's own unpickler lacks: of protocol 5, and of integers over 8 bytes and long text.
UNKNOWN_TO_THE_VIEWER = {"LONG4", "BINUNICODE8", "BINBYTES8", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"}
LARGEST_INTEGER = 2**53


def load(path: Path) -> dict[str, Any]:
    """A dumped snapshot that has passed every check."""
    data = path.read_bytes()
    assert data[:2] == b"\x80\x04", data[:2]
    assert not UNKNOWN_TO_THE_VIEWER & {opcode.name for opcode, _, _ in pickletools.genops(data)}
    snapshot: dict[str, Any] = pickle.loads(data)
    check(snapshot)
    return snapshot


def check(snapshot: dict[str, Any]) -> None:
    """Raises AssertionError for whatever a viewer could not show."""
    _check_plain(snapshot)
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"], segment
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place, block
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive"), block
            place += block["size"]
    for device, trace in enumerate(snapshot["device_traces"]):
        times = [entry["time_us"] for entry in trace]
        assert times == sorted(times)
        go_back([one for one in snapshot["segments"] if one["device"] == device], trace)


def _check_plain(value: Any) -> None:
    assert type(value) in (dict, list, tuple, str, int, float, bool, type(None)), type(value)
    if type(value) is int:
        assert abs(value) < LARGEST_INTEGER, value
    elif type(value) is dict:
        for key, one in value.items():
            _check_plain(key)
            _check_plain(one)
    elif type(value) in (list, tuple):
        for one in value:
            _check_plain(one)


def go_back(segments: list[dict[str, Any]], trace: list[dict[str, Any]]) -> dict[str, int]:
    """Goes from the snapshot back to before the first entry, as the viewer does for a moment in between. Returns what
    was there then: blocks, and mapped bytes.
    """
    mapped = {one["address"]: (one["total_size"], one["stream"]) for one in segments}
    blocks = {}  # address to (bytes, waiting to be freed)
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks[block["address"]] = (block["size"], block["state"] == "active_pending_free")
    for entry in reversed(trace):
        action, address, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            assert not blocks[address][1], entry
            _segment_of(mapped, address, blocks.pop(address)[0])
        elif action == "free_requested":
            assert blocks[address][1], entry
            blocks[address] = (blocks[address][0], False)
        elif action == "free_completed":
            assert address not in blocks, entry
            _segment_of(mapped, address, size)
            blocks[address] = (size, True)
        elif action == "segment_map":
            start = _segment_of(mapped, address, size)
            total, stream = mapped.pop(start)
            assert stream == entry["stream"], entry
            if start < address:
                mapped[start] = (address - start, stream)
            if address + size < start + total:
                mapped[address + size] = (start + total - address - size, stream)
            inside = [one for one in blocks if address <= one < address + size]
            assert not inside, (entry, inside)
        elif action == "segment_unmap":
            _map_again(mapped, address, size, entry["stream"])
        else:
            assert action in ("snapshot", "oom", "annotate"), entry
    return {"blocks": len(blocks), "mapped": sum(total for total, _ in mapped.values())}


def _segment_of(mapped: dict[int, tuple[int, int]], address: int, size: int) -> int:
    holding = [one for one, (total, _) in mapped.items() if one <= address and address + size <= one + total]
    assert len(holding) == 1, (address, size, sorted(mapped.items()))
    return holding[0]


def _map_again(mapped: dict[int, tuple[int, int]], address: int, size: int, stream: int) -> None:
    overlapping = [one for one, (total, _) in mapped.items() if one < address + size and address < one + total]
    assert not overlapping, (address, size, overlapping)
    after = mapped.get(address + size)
    if after is not None and after[1] == stream:
        del mapped[address + size]
        size += after[0]
    before = next((one for one, (total, _) in mapped.items() if one + total == address), None)
    if before is not None and mapped[before][1] == stream:
        address, size = before, mapped[before][0] + size
    mapped[address] = (size, stream)
