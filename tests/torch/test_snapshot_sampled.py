"""Sampled stacks: who holds the memory, by the stacks of a few blocks."""

from __future__ import annotations

from bridge_program import program
from conftest import Run

SAMPLING = """
import pyalloc
assert pyalloc.enable(bridge="require", lora_reserve=0, sample_stacks="1MiB")
import torch
from torch.cuda import memory as M

def make(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device="cuda")
"""


def test_large_blocks_are_always_known_with_their_stacks(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        SAMPLING
        + """
def load_weights():
    with pyalloc.pool("weights"):
        return make(300 << 20)

def grow_cache():
    with pyalloc.pool("kv"):
        return make(100 << 20)

weights, cache = load_weights(), grow_cache()
found = pyalloc.sampled_blocks()
assert [(block.pool, block.bytes, block.address) for block in found] == [
    ("weights", 300 << 20, weights.data_ptr()), ("kv", 100 << 20, cache.data_ptr())], found
names = [frame["name"] for frame in found[0].frames]
assert names[:2] == ["make", "load_weights"], names
assert found[0].device == 0 and found[0].stream == 0 and found[0].weight == 300 << 20
assert found[0].frames[0]["filename"] == __file__ and found[0].frames[0]["line"] > 0
# The same in torch's own snapshot, although no history is recorded.
assert not torch._C._cuda_isHistoryEnabled()
frames = {block["address"]: block["frames"] for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]}
assert frames[weights.data_ptr()] == found[0].frames
if hasattr(M, "_allocation_traceback"):
    assert M._allocation_traceback(cache.data_ptr()) == found[1].frames
del cache
assert [block.pool for block in pyalloc.sampled_blocks()] == ["weights"]
M._record_memory_history()  # C++ stacks too
cache = grow_cache()
(block,) = [block for block in pyalloc.sampled_blocks() if block.pool == "kv"]
assert [frame["name"] for frame in block.frames][:2] == ["make", "grow_cache"], block.frames
"""
    )


def test_weights_of_samples_are_the_live_bytes(run_on_simgpu: Run) -> None:
    """Of many small blocks few are kept; what they stand for is what is live, for each stack."""
    run_on_simgpu(
        SAMPLING
        + """
def small(count):
    return [make(4096) for _ in range(count)]

def middle(count):
    return [make(100_000) for _ in range(count)]

kept = small(20_000), middle(2_000)
for _ in range(20_000):
    make(50_000)  # dies at once: it is in nobody's sum
by_stack = {}
for block in pyalloc.sampled_blocks():
    (name,) = {frame["name"] for frame in block.frames} & {"small", "middle"}
    by_stack[name] = by_stack.get(name, 0) + block.weight
    assert block.weight >= block.bytes
live = {"small": 20_000 * 4096, "middle": 2_000 * 100_000}
# About 78 and 191 samples: three standard deviations are 34 and 22 %.
assert len(pyalloc.sampled_blocks()) < 500
for name, bytes_ in live.items():
    assert abs(by_stack[name] - bytes_) < 0.5 * bytes_, (name, by_stack[name], bytes_)
kept = None
assert pyalloc.sampled_blocks() == []
"""
    )


def test_threads_sample_and_free_each_other_s_blocks(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        SAMPLING
        + """
import queue, threading
blocks, failures = queue.Queue(64), []
def producer():
    for step in range(3000):
        blocks.put(make(1000 * (step % 700)))
    blocks.put(None)
def consumer():
    try:
        while (block := blocks.get()) is not None:
            if block.numel() % 50_000 == 0:
                pyalloc.sampled_blocks()
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work) for work in (producer, producer, consumer, consumer)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
assert pyalloc.sampled_blocks() == [] and torch.cuda.memory_allocated() == 0
"""
    )


def test_without_sampling_it_says_what_is_missing(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            raises(pyalloc.StateError, "sample_stacks", pyalloc.sampled_blocks)
            """
        )
    )
    done = run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(bridge="off", sample_stacks="64MiB")
        import torch
        torch.empty(1, device="cuda")
        """
    )
    assert "sample_stacks:67108864 has no effect without the torch bridge" in done.stderr
