"""torch.cuda.memory._record_memory_history in all its forms: the same program tells the same story on torch's native
allocator and on pyalloc.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import NATIVE, PYALLOC, Run

# What a program sees of its history, but for addresses, times, lines and the segments, which are each allocator's own.
PRELUDE = """
import json
import torch
from torch.cuda import memory as M

KEYS = ("action", "size", "user_metadata", "compile_context", "pool_id")

def functions(frames):
    return [frame["name"] for frame in frames if frame["filename"] == __file__]

def story(snapshot):
    told = []
    for trace in snapshot["device_traces"]:
        for entry in trace:
            if not entry["action"].startswith("segment_"):
                told.append({key: entry[key] for key in KEYS if key in entry}
                            | {"keys": sorted(entry), "frames": functions(entry.get("frames", []))})
    return told

def live(snapshot):
    return sorted((block["requested_size"], block["state"], functions(block["frames"]))
                  for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] != "inactive")

def make(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device="cuda")

def work():
    a = make(1000)
    b = make(3 << 20)
    del a
    return b, make(50 << 20)

said = []
"""

FORMS = """
    torch.cuda.init()
    for enabled in ("all", "state"):
        for context in (None, "state", "alloc", "all"):
            for stacks in ("python", "all"):
                M._record_memory_history(enabled, context=context, stacks=stacks)
                kept = work()
                taken = M._snapshot()
                cpp = any(frame["filename"].endswith((".cpp", ".h")) or "::" in frame["name"]
                          for trace in taken["device_traces"] for entry in trace for frame in entry.get("frames", []))
                form = [enabled, context, stacks, torch._C._cuda_isHistoryEnabled()]
                said.append([form, story(taken), live(taken), cpp])
                del kept
                M._record_memory_history(None)
                said.append([torch._C._cuda_isHistoryEnabled(), story(M._snapshot())])
"""

RING = """
    M._record_memory_history(max_entries=5)
    work()
    said.append(story(M._snapshot()))
    M._record_memory_history(max_entries=5)  # what is there stays
    said.append(story(M._snapshot()))
    M._record_memory_history(clear_history=True)
    make(200)
    said.append(story(M._snapshot()))
    said.append([len(story(M._snapshot())), len(story(M._snapshot()))])   # each snapshot is told to the next
"""

SKIPPED = """
    for skip in (["free_requested"], ["alloc", "free_completed"], ["snapshot"], ["oom"], []):
        M._record_memory_history(skip_actions=skip, clear_history=True)
        work()
        try:
            make(1 << 50)
        except torch.OutOfMemoryError:
            pass
        M._snapshot()
        said.append([skip, story(M._snapshot())])
    try:
        M._record_memory_history(skip_actions=["unheard_of"])
    except RuntimeError as error:
        said.append("unheard_of" in str(error))
"""

OLD_FORMS = """
    for arguments in ([True], [True, True, 5], [True, True, 5, True], [True, False], [False]):
        M._record_memory_history(*arguments)
        kept = work()
        taken = M._snapshot()
        said.append([arguments, torch._C._cuda_isHistoryEnabled(), story(taken), live(taken)])
        del kept
        M._record_memory_history(None)  # native dies where the ring shrinks
    for wrong in ({"enabled": "some"}, {"context": "some"}, {"stacks": "some"}):
        try:
            M._record_memory_history(**wrong)
        except Exception as error:
            said.append([type(error).__name__, str(error).splitlines()[0]])
"""

METADATA = """
    said.append([M._memory_metadata_supported() if hasattr(M, "_memory_metadata_supported") else None])
    if hasattr(M, "_set_memory_metadata"):
        import threading
        M._record_memory_history(context="alloc")
        M._set_memory_metadata("step 1")
        said.append(M._get_memory_metadata())
        kept = work()
        def other():
            said.append(M._get_memory_metadata())
            work()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        M._set_memory_metadata("")
        del kept
        said.append([M._get_memory_metadata(), story(M._snapshot())])
    if hasattr(M, "_annotate_tensor"):
        M._record_memory_history(clear_history=True, context="alloc")
        x = make(4000)
        M._annotate_tensor(x, "packed")
        M._annotate_tensor(x[100:200], "a view of it")
        said.append(story(M._snapshot()))
        M._record_memory_history(None)
        M._annotate_tensor(x, "nobody listens")
        said.append(story(M._snapshot()))
"""

TRACEBACK = """
    if hasattr(M, "_allocation_traceback"):
        x = make(4096)
        said.append(M._allocation_traceback(x.data_ptr()))
        M._record_memory_history(context="state")
        y = make(4096)
        said.append([functions(M._allocation_traceback(y.data_ptr())), M._allocation_traceback(x.data_ptr()),
                     M._allocation_traceback(12345)])
        pointer = y.data_ptr()
        del y
        said.append(M._allocation_traceback(pointer))
"""

STAGES = """
    from torch.profiler import record_function
    M._record_memory_history(global_record_annotations=True)
    with record_function("## forward ##"):
        work()
    taken = M._snapshot()
    said.append([{key: one[key] for key in ("device", "stage", "name")} for one in taken["external_annotations"]])
    times = [one["time_us"] for one in taken["external_annotations"]]
    entries = [one["time_us"] for one in taken["device_traces"][0]]
    said.append([times == sorted(times), all(times[0] <= time <= times[-1] for time in entries)])
    M._record_memory_history(None)
    said.append(M._snapshot()["external_annotations"])
"""

COMPILED = """
    M._record_memory_history(compile_context=True)
    @torch.compile(backend="aot_eager")
    def step(x):
        return x.add(1).mul(2)
    step(make(1000).float())
    said.append(sorted({entry["compile_context"] for entry in story(M._snapshot())}))
"""

STREAMS = """
    M._record_memory_history(context=None)
    side = torch.cuda.Stream()
    x = make(5 << 20)
    x.record_stream(side)
    del x
    torch.cuda.synchronize()
    y = make(5 << 20)
    said.append(story(M._snapshot()))
"""

POOLS = """
    M._record_memory_history(context="alloc")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = work()
    other = make(2000)
    taken = M._snapshot()
    said.append([story(taken), live(taken)])
    said.append(sorted({tuple(segment["segment_pool_id"]) for segment in taken["segments"]}))
    said.append(sorted({tuple(entry["pool_id"]) for entry in taken["device_traces"][0]}))
"""

GRAPHS = """
    M._record_memory_history(context=None)
    x = make(1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = work()
    graph.replay()
    del inside
    graph.reset()
    said.append(story(M._snapshot()))
"""

PROGRAMS = {
    "private pools": POOLS,
    "graphs": GRAPHS,
    "forms": FORMS,
    "ring": RING,
    "skipped actions": SKIPPED,
    "old forms": OLD_FORMS,
    "metadata": METADATA,
    "traceback": TRACEBACK,
    "stages": STAGES,
    "compiled": COMPILED,
    "streams": STREAMS,
}


def told(run: Run, text: str, allocator: Mapping[str, str]) -> Any:
    import textwrap

    program = PRELUDE + textwrap.dedent(text) + "\nprint(json.dumps(said))\n"
    lines = run(program, env=allocator).stdout.splitlines()
    return json.loads(lines[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_story_as_native(run_on_simgpu: Run, name: str) -> None:
    ours = told(run_on_simgpu, PROGRAMS[name], PYALLOC)
    native = told(run_on_simgpu, PROGRAMS[name], NATIVE)
    assert ours
    for one, other in zip(ours, native, strict=True):
        assert one == other
