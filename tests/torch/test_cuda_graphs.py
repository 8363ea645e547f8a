"""CUDA graphs: capture, replay, reset, shared pools, and captures that fail. The programs that only use torch run on
its own allocator as well. Whether a tensor has the right values is seen on copies: kernels do nothing on the simulated
GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from conftest import NATIVE, PYALLOC, Run
from private_pool_program import PRELUDE

both = pytest.mark.parametrize("allocator", [NATIVE, PYALLOC], ids=["native", "pyalloc"])


@both
def test_a_graph_replays_what_was_captured(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
source = torch.arange(100_000.0).cuda()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    copy = source.clone()
    again = copy.clone()
    where = copy.data_ptr()
    del copy
    result = again.clone()
assert result.cpu().sum() == 0, "capture must not run the work"
# What was freed in the capture is written at every replay: nobody else may have it.
others = [torch.zeros(100_000, device="cuda") for _ in range(50)]
assert where not in [other.data_ptr() for other in others]
for start in (0.0, 5.0):
    source.copy_(torch.arange(100_000.0) + start)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result.cpu(), torch.arange(100_000.0) + start)
assert all(other.cpu().sum() == 0 for other in others)
pool = graph.pool()
assert reserved(pool) >= 2 * 400_000
torch.cuda.empty_cache()
assert reserved(pool) >= 2 * 400_000
graph.reset()
del result, again
torch.cuda.empty_cache()
assert reserved(pool) == 0
""",
        env=allocator,
    )


@both
def test_graphs_share_a_pool(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
sources = [torch.full((3 * MIB,), float(i), device="cuda") for i in range(3)]
handle = torch.cuda.graph_pool_handle()
graphs, results, sizes = [], [], []
for source in sources:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=handle):
        temporary = source.clone()
        results.append(temporary.clone()[:1000].clone())
        del temporary
    assert graph.pool() == handle
    graphs.append(graph)
    sizes.append(reserved(handle))
assert sizes[2] <= sizes[0] + 2 * 2 * MIB, sizes  # temporaries lie where the first graph's did
for graph, result, source in zip(graphs, results, sources):
    source.copy_(torch.full((3 * MIB,), 7.0))
    graph.replay()
    assert torch.equal(result.cpu(), torch.full((1000,), 7.0))
graphs.pop(0).reset()
torch.cuda.empty_cache()
assert reserved(handle) == sizes[2]
graphs[1].replay()
del graphs, graph, results, result
gc.collect()
torch.cuda.empty_cache()
assert reserved(handle) == 0
""",
        env=allocator,
    )


@both
def test_a_graph_is_captured_into_a_mempool(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    eager = new(10)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id):
    captured = new(20)
    if hasattr(graph, "_retain_pool"):
        with torch.cuda.use_mem_pool(inner):
            apart = new(4)
        assert inner.use_count() >= 2
assert pool.use_count() == 2 and reserved(pool.id) >= 30 * MIB
with torch.cuda.use_mem_pool(pool):
    again = new(5)
graph.replay()
del captured, eager, again
torch.cuda.empty_cache()
assert reserved(pool.id) >= 30 * MIB
graph.reset()
assert pool.use_count() == 1
gone = pool.id
del pool, inner, graph
apart = None
gc.collect()
torch.cuda.empty_cache()
assert reserved(gone) == 0
""",
        env=allocator,
    )


@both
def test_graphed_callables_train(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
head = torch.nn.Linear(64, 8).cuda()
sample = torch.randn(16, 64, device="cuda", requires_grad=True)
model, head = torch.cuda.make_graphed_callables(
    (model, head), ((sample,), (torch.randn(16, 64, device="cuda", requires_grad=True),)))
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
allocated = []
for _ in range(6):
    optimizer.zero_grad(set_to_none=True)
    loss = head(model(torch.randn(16, 64, device="cuda"))).square().mean()
    loss.backward()
    optimizer.step()
    del loss
    allocated.append(torch.cuda.memory_allocated())
assert len(set(allocated[2:])) == 1, allocated
""",
        env=allocator,
    )


@both
def test_a_capture_forks_and_joins(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
source = torch.arange(3.0 * MIB).cuda()
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    base = source.clone()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        left = base.clone()
        base.record_stream(side)
        temporary = left.clone()
        left2 = temporary.clone()
        del temporary
    del base  # used on the side stream: it waits for the capture's end
    right = source.clone()
    torch.cuda.current_stream().wait_stream(side)
    left.record_stream(torch.cuda.current_stream())
    total = left.clone()
assert len({t.data_ptr() for t in (left, left2, right, total)}) == 4
graph.replay()
torch.cuda.synchronize()
for t in (left, left2, right, total):
    assert torch.equal(t.cpu(), torch.arange(3.0 * MIB))
""",
        memory="8GiB",
        env=allocator,
    )


@both
def test_a_capture_that_fails_half_way(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
x = torch.ones(1000).cuda()
torch.cuda.synchronize()
torch.cuda.empty_cache()
before = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
home = torch.cuda.current_stream()

def failing(how):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.empty(20 * MIB, device="cuda")
        how(y)

def wrong(y):
    raise ValueError("the program's own")

def forbidden(y):
    torch.cuda.synchronize()

for how, kind in ((wrong, ValueError), (forbidden, Exception), (wrong, ValueError)):
    raises(kind, "", lambda: failing(how))
    torch.cuda.set_stream(home)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before[0], torch.cuda.memory_allocated()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x.clone()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(y.cpu(), torch.ones(1000))
z = torch.empty(20 * MIB, device="cuda")
""",
        env=allocator,
    )


def test_memory_runs_out_in_a_capture(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import pyalloc
from pyalloc import simgpu
torch.zeros(1, device="cuda")
graph, home = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
held = []
with torch.cuda.graph(graph):
    held.append(new(300))
    raises(torch.OutOfMemoryError, "CUDA out of memory", lambda: new(900))
    held.append(new(300))
graph.replay()
torch.cuda.synchronize()
assert pyalloc.device_stats(0)["num_ooms"] == 1 and simgpu.simulation().violations() == []
""",
        memory="1GiB",
        env=PYALLOC,
    )


@pytest.mark.complaint(27)
def test_a_large_allocation_in_a_capture_unmaps_nothing(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import pyalloc
from pyalloc import simgpu
gpu = simgpu.simulation()
parts = [new(30) for _ in range(30)]
del parts[::2]
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    graph.capture_begin()
    before = gpu.calls("cuMemUnmap")
    big = new(400)  # only with what is idle between the parts
    torch.cuda.empty_cache()
    assert torch.cuda.is_current_stream_capturing() and gpu.calls("cuMemUnmap") == before
    graph.capture_end()
graph.replay()
torch.cuda.synchronize()
assert gpu.violations() == []
""",
        memory="1GiB",
        env=PYALLOC,
    )


@pytest.mark.parametrize("mode", ["global", "thread_local"])
def test_other_threads_work_during_a_capture(run_on_simgpu: Run, mode: str) -> None:
    run_on_simgpu(
        PRELUDE
        + f"mode = {mode!r}"
        + """
import time
from pyalloc import simgpu
stop = threading.Event()
errors = []

def work():
    try:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not stop.is_set():
                held = [new(size) for size in (0.001, 0.5, 3, 40)]
                held[2].record_stream(torch.cuda.default_stream())
                del held
    except Exception as error:
        errors.append(error)

threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
for round in range(10):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        x = new(30)
        y = new(0.1)
        del x
        time.sleep(0.06)  # a round of the maintenance thread
        z = new(10)
    graph.replay()
    assert {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()
            if s["address"] <= z.data_ptr() < s["address"] + s["total_size"]} == {graph.pool()}
stop.set()
[thread.join() for thread in threads]
assert errors == [], errors
assert simgpu.simulation().violations() == []
""",
        memory="4GiB",
        env=PYALLOC,
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_graphs_and_eager_work_on_deferred_streams(run_on_simgpu: Run, seed: int) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import random
from pyalloc import simgpu
draw = random.Random(5)
streams = [torch.cuda.Stream() for _ in range(3)]
graphs = []
source = torch.arange(float(MIB)).cuda()
for step in range(60):
    with torch.cuda.stream(draw.choice(streams)):
        eager = [new(draw.choice((0.01, 1, 3, 20))) for _ in range(4)]
        eager[0].record_stream(draw.choice(streams))
    if step % 6 == 0:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            a = source.clone()
            b = a.clone()
            del a
        graphs.append((graph, b))
    if graphs:
        with torch.cuda.stream(draw.choice(streams)):
            draw.choice(graphs)[0].replay()
    if len(graphs) > 4:
        graph, b = graphs.pop(0)
        del b
        graph.reset()  # its last replay may still be in the queue
    del eager
torch.cuda.synchronize()
for graph, b in graphs:
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(b.cpu(), torch.arange(float(MIB)))
assert simgpu.simulation().violations() == [], simgpu.simulation().violations()[:3]
""",
        memory="1GiB",
        streams="deferred",
        seed=seed,
        oracle=True,
        env=PYALLOC,
    )
