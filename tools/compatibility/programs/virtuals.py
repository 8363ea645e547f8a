"""What only C++ calls: calls.cpp does."""

from __future__ import annotations

from ..program import TORCHS_SEGMENTS, of_cpp

of_cpp("raw_blocks", "raw_alloc", "raw_alloc_with_stream", "raw_delete")
of_cpp(
    "data_pointers",
    "allocate",
    "raw_deleter",
    "is_simple_data_ptr",
    plain="works; c10::GetAllocator still gives torch's own allocator",
)
of_cpp("clone", "copy_data")
of_cpp("initialized", "init", "initialized")
of_cpp("base_allocation", "getBaseAllocation")
of_cpp("cache_info", "cacheInfo")
of_cpp("record_stream", "recordStream")
of_cpp("expandable_sizes", "getExpandableSegmentSizes")
of_cpp("pool_life", "createOrIncrefPool", "getPoolUseCount", "setUseOnOOM", "checkPoolLiveAllocations")
of_cpp("no_split", "setNoSplit")
of_cpp("checkpoint", "getCheckpointState", "setCheckpointPoolState")
of_cpp("share_handle", "shareIpcHandle")
of_cpp("compile_context", "pushCompileContext", "popCompileContext")
of_cpp("annotation", "recordAnnotation")
of_cpp("trace_tracker", "attachAllocatorTraceTracker", pools=TORCHS_SEGMENTS)
of_cpp("out_of_memory_observer", "attachOutOfMemoryObserver")
of_cpp("rejection_observer", "attachOomRejectionObserver")
of_cpp("at_address", "allocateWithAddress")
