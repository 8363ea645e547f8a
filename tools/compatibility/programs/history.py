"""The history of allocations."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

from ..program import MIB, covers, empty


@covers(
    "cuda._record_memory_history",
    "cuda._snapshot",
    "cuda._allocation_traceback",
    "virtual.recordHistory",
    "virtual.isHistoryEnabled",
    "virtual.getContextForPointer",
)
def history() -> Any:
    import torch
    from torch.cuda import memory

    memory._record_memory_history(max_entries=1000, stacks="python")
    block, kept = empty(3 * MIB), empty(1000)
    del block
    enabled = torch._C._cuda_isHistoryEnabled()
    frames = memory._allocation_traceback(kept.data_ptr())
    snapshot = memory._snapshot()
    memory._record_memory_history(enabled=None)
    trace = [
        (entry["action"], entry["size"], any(frame["filename"].endswith("history.py") for frame in entry["frames"]))
        for entry in snapshot["device_traces"][0]
        if entry["action"] in ("alloc", "free_requested", "free_completed")
    ]
    segments = sum(entry["action"] in ("segment_alloc", "segment_map") for entry in snapshot["device_traces"][0])
    return (
        enabled,
        torch._C._cuda_isHistoryEnabled(),
        trace,
        segments > 0,
        any(frame["filename"].endswith("history.py") for frame in frames or ()),
        sorted(snapshot),
        sorted(snapshot["allocator_settings"]),
    )


@covers("cuda._dump_snapshot")
def dump_snapshot() -> Any:
    from torch.cuda import memory

    memory._record_memory_history(max_entries=1000, stacks="python")
    kept = empty(3 * MIB)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.pickle")
        memory._dump_snapshot(str(path))
        content = path.read_bytes()
    snapshot = pickle.loads(content)
    return content[:2] == b"\x80\x04", sorted(snapshot), len(snapshot["segments"]) > 0, len(kept)


@covers(
    "cuda._set_memory_metadata",
    "cuda._get_memory_metadata",
    "cuda._memory_metadata_supported",
    "virtual.supportsUserMetadata",
    "virtual.setUserMetadata",
    "virtual.getUserMetadata",
    plain="is ignored, and torch warns of that",
)
def metadata() -> Any:
    from torch.cuda import memory

    memory._set_memory_metadata("request 7")
    got = memory._get_memory_metadata()
    memory._set_memory_metadata("")
    return memory._memory_metadata_supported(), got, memory._get_memory_metadata()


@covers("cuda._annotate_tensor", "virtual.annotateMemory")
def annotations_of_blocks() -> Any:
    from torch.cuda import memory

    memory._record_memory_history(max_entries=1000, stacks="python")
    memory._set_memory_metadata("request 7")
    kept = empty(3 * MIB)
    memory._set_memory_metadata("")
    memory._annotate_tensor(kept, "the cache")
    trace = memory._snapshot()["device_traces"][0]
    told = [
        (entry["action"], entry.get("user_metadata", "")) for entry in trace if entry["action"] in ("alloc", "annotate")
    ]
    return told
