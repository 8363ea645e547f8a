"""torch.cuda.MemPool and use_mem_pool. Where sameness matters, the program runs on torch's own allocator as well."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from conftest import NATIVE, PYALLOC, Run
from private_pool_program import PRELUDE

both = pytest.mark.parametrize("allocator", [NATIVE, PYALLOC], ids=["native", "pyalloc"])


@both
def test_allocations_of_a_scope_go_to_the_innermost_pool(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
assert outer.id != inner.id and (outer.use_count(), inner.use_count()) == (1, 1)
side = torch.cuda.Stream()
with torch.cuda.use_mem_pool(outer):
    assert outer.use_count() == 2
    a = new(3)
    with torch.cuda.use_mem_pool(inner):
        b, small = new(3), torch.empty(10, device="cuda")
        with torch.cuda.stream(side):
            c = new(3)
    d = new(3)
    raises(RuntimeError, "already recording to mempool_id",
           lambda: torch._C._cuda_beginAllocateCurrentThreadToPool(0, outer.id))
    while outer.use_count() > 2:  # native counts the use that it then refused
        torch._C._cuda_releasePool(0, outer.id)
e = new(3)
raises(RuntimeError, "not currently recording to mempool_id", lambda: torch._C._cuda_endAllocateToPool(0, outer.id))
assert (outer.use_count(), inner.use_count()) == (1, 1)
assert pools_of(a, b, small, c, d, e) == [outer.id, inner.id, inner.id, inner.id, outer.id, (0, 0)]
assert {tuple(s["segment_pool_id"]) for s in inner.snapshot()} == {inner.id}
assert sum(block["requested_size"] for s in inner.snapshot() for block in s["blocks"]) >= 6 * MIB + 40
assert torch.cuda.memory_allocated() == 15 * MIB + 512
with torch.cuda.use_mem_pool(outer):
    where = a.data_ptr()
    del a
    assert new(3).data_ptr() == where
with torch.cuda.use_mem_pool(torch.cuda.MemPool(no_split=True)):
    new(3)
""",
        env=allocator,
    )


@both
@pytest.mark.complaint(10)
def test_a_pool_that_dies_before_its_tensors(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    held = [new(30), torch.arange(1000).cuda(), new(0.5)]
del pool
torch.cuda.empty_cache()
assert torch.equal(held[1].cpu(), torch.arange(1000))
assert torch.cuda.memory_allocated() == 30 * MIB + 8192 + MIB // 2
held.clear()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0 and torch.cuda.memory_snapshot() == []
""",
        env=allocator,
    )


@pytest.mark.complaint(8)
def test_a_pool_is_served_by_virtual_memory(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    small = torch.empty((60, 1024), dtype=torch.uint8, device="cuda")
    large = torch.empty((60, 1024 * 1024), dtype=torch.uint8, device="cuda")
segments = pool.snapshot()
assert sum(s["allocated_size"] for s in segments) == 60 * 1024 + 60 * MIB and all(s["is_expandable"] for s in segments)
assert torch.cuda.memory_reserved() == sum(s["total_size"] for s in segments) <= 64 * MIB
""",
        env={**PYALLOC, "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )


@pytest.mark.complaint(11)
def test_a_pool_reuses_its_own_memory_for_a_larger_tensor(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
total = torch.cuda.mem_get_info()[1]
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = new(total * 0.6 / MIB)
    del x
    y = new(total * 0.7 / MIB)
    assert pools_of(y) == [pool.id]
    del y
    parts = [new(total * 0.3 / MIB), new(2), new(total * 0.3 / MIB)]
    del parts[0], parts[1]
    z = new(total * 0.7 / MIB)
assert torch.cuda.memory_stats()["num_ooms"] == 0
""",
        env=PYALLOC,
    )


@both
@pytest.mark.complaint(13)
def test_another_threads_tensors_stay_out_of_the_pool(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool, of_other = torch.cuda.MemPool(), torch.cuda.MemPool()
tensors = {}

def plain():
    tensors["plain"] = new(3)

def with_its_own():
    with torch.cuda.use_mem_pool(of_other):
        tensors["own"] = new(3)

with torch.cuda.use_mem_pool(pool):
    for target in (plain, with_its_own):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    tensors["main"] = new(3)
    x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    (x * 2).sum().backward()  # autograd's own thread
assert pools_of(tensors["plain"], tensors["own"], tensors["main"]) == [(0, 0), of_other.id, pool.id]
""",
        env=allocator,
    )


@both
@pytest.mark.complaint(15)
def test_reserved_bytes_by_pool(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
def key(pool, what="current"):
    return f"reserved_bytes_by_private_pools.{pool[0]}_{pool[1]}.all.{what}"

def stats():
    return torch.cuda.memory_stats()

if hasattr(torch.cuda.memory, "_annotate_tensor"):  # torch 2.14 has the figures
    pools = [torch.cuda.MemPool() for _ in range(3)]
    held = []
    for index, pool in enumerate(pools):
        with torch.cuda.use_mem_pool(pool):
            held.append(new(40 * (index + 1)))
    for index, pool in enumerate(pools):
        assert stats()[key(pool.id)] == 40 * (index + 1) * MIB == sum(s["total_size"] for s in pool.snapshot())
    assert stats()["reserved_bytes.all.current"] == 240 * MIB
    gone = pools[1].id
    del pools, pool, held
    torch.cuda.empty_cache()
    assert (stats()[key(gone)], stats()[key(gone, "peak")]) == (0, 80 * MIB)
    torch.cuda.reset_peak_memory_stats()
    assert stats().get(key(gone, "peak"), 0) == 0
""",
        env=allocator,
    )


@both
def test_a_pool_with_use_on_oom_serves_others_last(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
mean, lender = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(mean):
    a = new(400)
with torch.cuda.use_mem_pool(lender):
    b = new(400)
where = b.data_ptr()
raises(torch.OutOfMemoryError, "CUDA out of memory", lambda: new(400))
del a, b
c = new(300)
assert c.data_ptr() == where
raises(torch.OutOfMemoryError, "CUDA out of memory", lambda: new(350))
del c
c = new(300)
del c, lender
c = new(300)
""",
        memory="1GiB",
        env=allocator,
    )


def test_what_is_free_in_a_live_pool_is_for_nobody_else(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = new(600)
del x
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 600 * MIB
raises(torch.OutOfMemoryError, "CUDA graphs)     0 bytes allocated,  600.00 MiB reserved", lambda: new(600))
with torch.cuda.use_mem_pool(pool):
    new(600)
del pool
assert torch.cuda.memory_reserved() == 0  # a MemPool's end empties it
new(900)
""",
        memory="1GiB",
        env=PYALLOC,
    )


def test_thousands_of_pools(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
for index in range(3000):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x, y = new(3), torch.empty(100, device="cuda")
    if index % 2:
        del pool
    del x, y
    if index % 500 == 0:
        torch.cuda.empty_cache()
pool = None
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == 0
assert len(torch.cuda.memory_stats()) < 10000  # those that are gone are forgotten some time
""",
        env=PYALLOC,
    )


def test_pools_of_several_devices(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    here, there = new(3), torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
with torch.cuda.use_mem_pool(pool, device=1):
    routed = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
    outside = new(3)
assert pools_of(here, there, routed, outside) == [pool.id, (0, 0), pool.id, (0, 0)]
""",
        devices=2,
        env=PYALLOC,
    )


def test_a_pool_alive_at_exit_or_in_a_forked_child(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import os
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = new(3)
child = os.fork()
if child == 0:
    del pool, x
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
        env=PYALLOC,
    )


@both
def test_bad_calls_are_refused(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
new(1)
raises(RuntimeError, "Could not find pool of id", lambda: torch._C._cuda_checkPoolLiveAllocations(0, (7, 7), set()))
raises(RuntimeError, "", lambda: torch._C._cuda_releasePool(0, (7, 7)))
raises(RuntimeError, "not currently recording", lambda: torch._C._cuda_endAllocateToPool(0, (7, 7)))
raises(RuntimeError, "", lambda: torch._C._cuda_getCheckpointState(0, (7, 7)))
assert torch.cuda.memory_snapshot((7, 7)) == []
assert new(1).data_ptr() != 0
""",
        env=allocator,
    )
