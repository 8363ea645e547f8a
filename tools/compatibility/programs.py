"""What the table of compatibility is made of: small programs, each for some functions of torch. The answer of one is
the same under every allocator that does what torch's own does.

An answer is made of figures that do not depend on how an allocator lays out its memory. Where a way is known to answer
otherwise, `notes` says so in the words of the table; a note that is not needed is an error, as a missing one is.
"""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
WAYS = ("native", "bridge", "plain", "pools")


@dataclass(frozen=True)
class Program:
    """`names`: "cuda.NAME" and "accelerator.NAME" of torch.cuda.memory and torch.accelerator.memory, "virtual.NAME" of
    torch's allocator class. notes: by way, what differs there.
    """

    names: tuple[str, ...]
    run: Callable[[], Any]
    notes: dict[str, str] = field(default_factory=dict)


PROGRAMS: list[Program] = []


def covers(*names: str, **notes: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(run: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS.append(Program(names, run, notes))
        return run

    return add


# --- helpers; torch is imported by run.py before a program runs ---


def empty(size: int, device: str = "cuda") -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device=device)


def raised(call: Callable[[], Any]) -> str:
    """The class of what is raised; "nothing"."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def at_least(names: Any) -> dict[str, list[str]]:
    """An answer that another way's may exceed."""
    return {"at_least": sorted(names)}


calls: Any = None  # the library of calls.cpp, loaded by run.py
way = ""  # under which the programs run; set by run.py


def call(name: str) -> str:
    error = ctypes.c_char_p()
    answer = calls.call(name.encode(), ctypes.byref(error))
    if answer is None:
        raise RuntimeError((error.value or b"").decode())
    return str(answer.decode())


def of_cpp(function: str, *names: str, **notes: str) -> None:
    """Virtuals that calls.cpp calls."""
    PROGRAMS.append(Program(tuple(f"virtual.{name}" for name in names), lambda: call(function), notes))


TORCHS_SEGMENTS = "torch keeps the segments of a pool; pyalloc.empty_cache() gives them back"

# --- blocks ---


@covers("cuda.caching_allocator_alloc", "cuda.caching_allocator_delete")
def raw_blocks() -> Any:
    import torch
    from torch.cuda import memory

    first = memory.caching_allocator_alloc(3 * MIB)
    second = memory.caching_allocator_alloc(3 * MIB, stream=torch.cuda.Stream())
    held = torch.cuda.memory_allocated()
    memory.caching_allocator_delete(first)
    memory.caching_allocator_delete(second)
    foreign = raised(lambda: memory.caching_allocator_delete(12345))
    return first != second, held, torch.cuda.memory_allocated(), foreign


@covers(
    "cuda.caching_allocator_enable",
    "cuda.caching_allocator_disabled",
    "virtual.enable",
    "virtual.isEnabled",
    plain="has no effect",
)
def caching_switched_off() -> Any:
    import torch
    from torch.cuda import memory

    kept = empty(1)
    free = torch.cuda.mem_get_info()[0]
    with memory.caching_allocator_disabled():
        block = empty(30 * MIB)
        during = free - torch.cuda.mem_get_info()[0]
        del block
        after = free - torch.cuda.mem_get_info()[0]
    cached = empty(30 * MIB)
    memory.caching_allocator_enable(True)
    return during >= 30 * MIB, after <= 0, cached.numel() + kept.numel()


@covers(
    "cuda.set_per_process_memory_fraction",
    "virtual.setMemoryFraction",
    plain="what is beyond the limit is a tensor with a null pointer, as whatever cannot be had",
)
def memory_fraction() -> Any:
    import torch
    from torch.cuda import memory

    total = torch.cuda.mem_get_info()[1]
    memory.set_per_process_memory_fraction(0.25)
    refused = raised(lambda: empty(total // 2))
    return refused, empty(total // 8).data_ptr() != 0, raised(lambda: memory.set_per_process_memory_fraction(2.0))


@covers("cuda.get_per_process_memory_fraction", "virtual.getMemoryFraction")
def memory_fraction_read() -> Any:
    from torch.cuda import memory

    default = memory.get_per_process_memory_fraction()
    memory.set_per_process_memory_fraction(0.25)
    return default, memory.get_per_process_memory_fraction()


@covers("cuda.empty_cache", "virtual.emptyCache", pools=TORCHS_SEGMENTS)
def empty_cache() -> Any:
    import torch

    block = empty(64 * MIB)
    free = torch.cuda.mem_get_info()[0]
    del block
    had = torch.cuda.memory_reserved() >= 64 * MIB
    torch.cuda.empty_cache()
    return had, torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0] - free >= 64 * MIB


# --- statistics ---

FIGURES = (
    "allocation.all.current",
    "allocation.all.allocated",
    "allocation.all.freed",
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "requested_bytes.all.current",
    "active.all.current",
    "active_bytes.all.current",
    "allocation.small_pool.current",
    "allocation.large_pool.current",
    "num_ooms",
    "num_alloc_retries",
    "max_split_size",
)


def three_blocks() -> tuple[Any, Any]:
    """Two that stay and a larger one that is gone."""
    kept = empty(3 * MIB), empty(1000)
    empty(9 * MIB)
    return kept


@covers("cuda.memory_stats", "virtual.getDeviceStats")
def memory_stats() -> Any:
    import torch

    before = torch.cuda.memory_stats()  # zeros
    kept = three_blocks()
    stats = torch.cuda.memory_stats()
    sane = stats["reserved_bytes.all.current"] >= stats["active_bytes.all.current"] and len(kept) == 2
    return [before.get(name) for name in FIGURES], [stats[name] for name in FIGURES], sane, at_least(stats)


@covers("cuda.memory_stats_as_nested_dict")
def nested_stats() -> Any:
    import torch

    kept = three_blocks()
    stats = torch.cuda.memory_stats_as_nested_dict()
    return stats["allocated_bytes"]["all"], at_least(stats), len(kept)


@covers("cuda.memory_allocated", "cuda.max_memory_allocated")
def allocated() -> Any:
    import torch

    kept = three_blocks()
    return torch.cuda.memory_allocated(), torch.cuda.memory_allocated(0), torch.cuda.max_memory_allocated(), len(kept)


@covers("cuda.memory_reserved", "cuda.max_memory_reserved", "cuda.memory_cached", "cuda.max_memory_cached")
def reserved() -> Any:
    import torch
    from torch.cuda import memory

    kept = three_blocks()
    now, most = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        same = memory.memory_cached() == now and memory.max_memory_cached() == most
    return now >= torch.cuda.memory_allocated(), most >= torch.cuda.max_memory_allocated() - 512, same, len(kept)


@covers(
    "cuda.reset_peak_memory_stats",
    "cuda.reset_max_memory_allocated",
    "cuda.reset_max_memory_cached",
    "virtual.resetPeakStats",
)
def reset_peaks() -> Any:
    import torch
    from torch.cuda import memory

    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for reset in (
            memory.reset_peak_memory_stats,
            memory.reset_max_memory_allocated,
            memory.reset_max_memory_cached,
        ):
            kept = three_blocks()
            reset()
            answers.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
            answers.append(torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved())
            del kept
    return answers


@covers("cuda.reset_accumulated_memory_stats", "virtual.resetAccumulatedStats")
def reset_totals() -> Any:
    import torch

    kept = three_blocks()
    torch.cuda.reset_accumulated_memory_stats()
    del kept
    stats = torch.cuda.memory_stats()
    return [stats[f"allocated_bytes.all.{part}"] for part in ("current", "peak", "allocated", "freed")]


@covers(
    "cuda.host_memory_stats",
    "cuda.host_memory_stats_as_nested_dict",
    "cuda.reset_accumulated_host_memory_stats",
    "cuda.reset_peak_host_memory_stats",
    "accelerator.empty_host_cache",
)
def pinned_memory() -> Any:
    import torch
    from torch.cuda import memory

    pinned = torch.empty(3 * MIB, dtype=torch.uint8).pin_memory()
    stats = memory.host_memory_stats()
    memory.reset_accumulated_host_memory_stats()
    memory.reset_peak_host_memory_stats()
    after = memory.host_memory_stats()
    del pinned
    torch.accelerator.memory.empty_host_cache()
    names = ("allocation.current", "allocated_bytes.current", "allocated_bytes.peak", "allocated_bytes.allocated")
    return [[one.get(name) for name in names] for one in (stats, after)], sorted(
        memory.host_memory_stats_as_nested_dict()
    )


@covers("cuda.memory_summary")
def memory_summary() -> Any:
    import torch

    kept = three_blocks()
    text = torch.cuda.memory_summary()
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|") and line.count("|") > 3], (
        len(kept)
    )


@covers("cuda.list_gpu_processes")
def list_gpu_processes() -> Any:
    import torch

    kept = empty(MIB)
    return torch.cuda.list_gpu_processes().splitlines()[0], len(kept)


@covers("cuda.mem_get_info", "accelerator.get_memory_info", "virtual.getMemoryInfo")
def mem_get_info() -> Any:
    import torch

    kept = empty(1)
    free, total = torch.cuda.mem_get_info()
    block = empty(64 * MIB)
    fewer = free - torch.cuda.mem_get_info()[0]
    same = torch.accelerator.memory.get_memory_info() == torch.cuda.mem_get_info()
    return total, fewer, same, len(kept) + len(block)


@covers("cuda.memory_snapshot", "virtual.snapshot")
def memory_snapshot() -> Any:
    import torch

    kept = three_blocks()
    segments = torch.cuda.memory_snapshot()
    whole = all(sum(block["size"] for block in one["blocks"]) == one["total_size"] for one in segments)
    states = []
    for tensor in kept:
        (found,) = [
            block
            for one in segments
            for block in one["blocks"]
            if block["address"] <= tensor.data_ptr() < block["address"] + block["size"]
        ]
        states.append((found["state"], found["requested_size"], found["address"] == tensor.data_ptr()))
    light = torch.cuda.memory_snapshot(include_traces=False)
    sums = [sum(one[key] for one in segments) for key in ("allocated_size", "active_size", "requested_size")]
    return (
        sorted(segments[0]),
        at_least(segments[0]["blocks"][0]),
        whole,
        states,
        sums,
        sum(one["total_size"] for one in segments) == torch.cuda.memory_reserved(),
        len(light) == len(segments),
        torch.cuda.memory_snapshot((0, 987654)),
    )


# --- torch.accelerator ---


@covers("accelerator.memory_stats", "accelerator.memory_allocated", "accelerator.max_memory_allocated")
def accelerator_stats() -> Any:
    import torch

    kept = three_blocks()
    memory = torch.accelerator.memory
    stats = memory.memory_stats()
    return [stats[name] for name in FIGURES], memory.memory_allocated(), memory.max_memory_allocated(), len(kept)


@covers(
    "accelerator.memory_reserved",
    "accelerator.max_memory_reserved",
    "accelerator.reset_peak_memory_stats",
    "accelerator.reset_accumulated_memory_stats",
)
def accelerator_resets() -> Any:
    import torch

    kept = three_blocks()
    memory = torch.accelerator.memory
    same = memory.memory_reserved() == torch.cuda.memory_reserved()
    same_peak = memory.max_memory_reserved() == torch.cuda.max_memory_reserved()
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    return same, same_peak, memory.max_memory_allocated(), memory.memory_stats()["allocation.all.allocated"], len(kept)


@covers("accelerator.empty_cache", pools=TORCHS_SEGMENTS)
def accelerator_empty_cache() -> Any:
    import torch

    empty(64 * MIB)
    torch.accelerator.memory.empty_cache()
    return torch.cuda.memory_reserved()


# --- allocators ---


@covers("cuda.get_allocator_backend", "virtual.name", bridge='answers "pyalloc"', plain='answers "pluggable"')
def backend() -> Any:
    import torch

    return torch.cuda.get_allocator_backend(), call("name")


@covers("cuda.CUDAPluggableAllocator")
def foreign_allocator_in_a_pool() -> Any:
    import torch
    from torch.cuda import memory

    theirs = memory.CUDAPluggableAllocator(calls._name, "foreign_malloc", "foreign_free")
    pool = torch.cuda.MemPool(theirs.allocator())
    with torch.cuda.use_mem_pool(pool):
        block = empty(30 * MIB)
    held = calls.foreign_count()
    outside = empty(30 * MIB)
    same = calls.foreign_count()
    inside = any(one["address"] <= block.data_ptr() < one["address"] + one["total_size"] for one in pool.snapshot())
    del block, pool
    torch.cuda.empty_cache()
    return held, same, inside, calls.foreign_count(), len(outside)


@covers("cuda.change_current_allocator")
def swap_after_initialisation() -> Any:
    from torch.cuda import memory

    theirs = memory.CUDAPluggableAllocator(calls._name, "foreign_malloc", "foreign_free")
    memory.change_current_allocator(theirs)


@covers(
    "cuda.MemPool",
    "cuda.use_mem_pool",
    "virtual.beginAllocateToPool",
    "virtual.endAllocateToPool",
    "virtual.releasePool",
)
def mem_pool() -> Any:
    import torch

    def holds(pool: Any, tensor: Any) -> bool:
        return any(one["address"] <= tensor.data_ptr() < one["address"] + one["total_size"] for one in pool.snapshot())

    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = empty(30 * MIB)
        with torch.cuda.use_mem_pool(other):
            second = empty(30 * MIB)
        count = pool.use_count()
        again = raised(torch.cuda.use_mem_pool(pool).__enter__)
    outside = empty(30 * MIB)
    where = [[holds(one, tensor) for one in (pool, other)] for tensor in (first, second, outside)]
    place = first.data_ptr()
    del first
    unused = empty(30 * MIB).data_ptr() != place
    with torch.cuda.use_mem_pool(pool):
        reused = empty(30 * MIB).data_ptr() == place
    identity = pool.id[0] == 0 and pool.id != other.id
    del pool, other
    torch.cuda.empty_cache()
    return where, count, again, unused, reused, identity, second.numel(), torch.cuda.memory_allocated()


# --- history ---


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
        (entry["action"], entry["size"], any("programs.py" in frame["filename"] for frame in entry["frames"]))
        for entry in snapshot["device_traces"][0]
        if entry["action"] in ("alloc", "free_requested", "free_completed")
    ]
    segments = sum(entry["action"] in ("segment_alloc", "segment_map") for entry in snapshot["device_traces"][0])
    return (
        enabled,
        torch._C._cuda_isHistoryEnabled(),
        trace,
        segments > 0,
        any("programs.py" in frame["filename"] for frame in frames or ()),
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


# --- graphs ---


@covers(
    "virtual.markCaptureBegin",
    "virtual.markCaptureEnd",
    plain="a graph is captured, but its memory is not kept for its replays",
)
def graph() -> Any:
    import torch

    static = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        during = empty(30 * MIB).zero_()
        places = [during.data_ptr()]
        del during
        result = static + 1
    places.append(result.data_ptr())
    del result
    # What the graph uses stays its own for as long as it can be replayed.
    theirs = [empty(size) for size in (30 * MIB, 4 * MIB) for _ in range(3)]
    kept = [all(abs(tensor.data_ptr() - place) >= 4 * MIB for tensor in theirs) for place in places]
    graph.replay()
    torch.cuda.synchronize()
    graph.reset()
    return kept, len(theirs)


@covers("virtual.beginAllocateToPool", "virtual.endAllocateToPool", "virtual.releasePool")
def graph_pool() -> Any:
    import torch

    static = torch.zeros(1 << 20, device="cuda")
    graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
    with torch.cuda.graph(graphs[0]):
        first = static + 1
    with torch.cuda.graph(graphs[1], pool=graphs[0].pool()):
        second = first + 1
    pool = tuple(graphs[0].pool())
    same = pool == tuple(graphs[1].pool())
    owned = sum(one["allocated_size"] for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] == pool)
    return same, owned, second.numel()


# --- devices and processes ---


@covers("virtual.enablePeerAccess", "virtual.memcpyAsync")
def copies_between_devices() -> Any:
    import torch

    source = torch.arange(1 << 20)
    first = source.to("cuda:0")
    second = first.to("cuda:1")
    back = second.to("cuda:0", non_blocking=True)
    torch.cuda.synchronize()
    return torch.equal(second.cpu(), source), torch.equal(back.cpu(), source), torch.cuda.memory_allocated(1)


@covers("virtual.shareIpcHandle", "virtual.getIpcDevPtr")
def shared_between_processes() -> Any:
    import torch

    torch.cuda.init()
    tensor = torch.arange(1 << 20).cuda()
    handle = pickle.dumps(tensor.untyped_storage()._share_cuda_())
    receiver = [sys.executable, str(Path(__file__).with_name("run.py")), "receive", way]
    done = subprocess.run(receiver, input=handle, capture_output=True, check=False)
    torch.cuda.synchronize()
    return done.stdout.decode(), done.returncode, tensor.numel()


# --- what only C++ calls ---

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
