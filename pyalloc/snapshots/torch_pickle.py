"""A snapshot for torch's own viewers: pytorch.org/memory_viz and `python -m torch.cuda._memory_viz`.

Those read a pickle of protocol 4 at most, of plain dicts, lists, tuples, text and numbers. A segment is drawn as its
blocks end to end, so nothing may be left out. There are no events in a snapshot of ours: device_traces has an empty
list for each device.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

from .model import Block, DeviceSnapshot, Frame, Segment, Snapshot

PROTOCOL: Final = 4  # the web viewer knows no newer one
_STATES: Final = {"live": "active_allocated", "pending": "active_pending_free", "free": "inactive"}


def torch_pickle(snapshot: Snapshot) -> bytes:
    """The pickle. Pools have no place in torch's format: each segment has its pool's name as "pool", which viewers do
    not read, and as its frame, which they show.
    """
    return pickle.dumps(as_torch_dict(snapshot), protocol=PROTOCOL)


def as_torch_dict(snapshot: Snapshot) -> dict[str, Any]:
    """The dict of torch.cuda.memory._snapshot()."""
    stacks: dict[tuple[Frame, ...], list[dict[str, Any]]] = {}
    last = max((one.ledger.device for one in snapshot.devices), default=-1)
    return {
        "segments": [_segment(device, one, stacks) for device in snapshot.devices for one in device.segments],
        "device_traces": [[] for _ in range(last + 1)],
        "allocator_settings": dict(snapshot.options),
        "external_annotations": [],
    }


def _segment(
    device: DeviceSnapshot, segment: Segment, stacks: dict[tuple[Frame, ...], list[dict[str, Any]]]
) -> dict[str, Any]:
    return {
        "device": device.ledger.device,
        "address": segment.address,
        "total_size": segment.bytes,
        "allocated_size": segment.allocated,
        "active_size": segment.active,
        "requested_size": segment.requested,
        "stream": segment.stream,
        "segment_type": "large" if segment.large else "small",
        "segment_pool_id": (segment.key_first, segment.key_second),
        "is_expandable": True,
        "pool": segment.pool,
        "frames": [{"name": f"pool {segment.pool}", "filename": "pyalloc", "line": 0}],
        "blocks": [_block(one, stacks) for one in device.blocks_of(segment)],
    }


def _block(block: Block, stacks: dict[tuple[Frame, ...], list[dict[str, Any]]]) -> dict[str, Any]:
    site = block.site
    if block.tag is not None:
        site = (Frame(f"tag {block.tag}", "pyalloc", 0), *site)
    if site not in stacks:
        stacks[site] = [{"name": one.name, "filename": one.filename, "line": one.line} for one in site]
    return {
        "address": block.address,
        "size": block.bytes,
        "requested_size": block.requested,
        "state": _STATES[block.state],
        "frames": stacks[site],
    }
