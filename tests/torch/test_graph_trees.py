"""Graph trees: checkpoints of a pool's blocks, and the trees of torch._inductor driven with functions that run eagerly.
The same programs run on torch's own allocator.
"""

from __future__ import annotations

from collections.abc import Mapping

import private_pool_program
import pytest
from conftest import NATIVE, PYALLOC, Run

both = pytest.mark.parametrize("allocator", [NATIVE, PYALLOC], ids=["native", "pyalloc"])

PRELUDE = (
    private_pool_program.PRELUDE
    + """
from torch._C import (_cuda_beginAllocateCurrentThreadToPool as begin, _cuda_endAllocateToPool as end,
                      _cuda_releasePool as release, _cuda_getCheckpointState as checkpoint,
                      _cuda_checkPoolLiveAllocations as only_live, _cuda_setCheckpointPoolState as restore)
from torch._inductor.cudagraph_trees import get_block_addrs
"""
)


@both
def test_blocks_come_back_at_their_addresses(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
handle = torch.cuda.graph_pool_handle()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=handle):
    first = [new(size) for size in (0.001, 0.3, 5, 30)]
    dead = [new(size) for size in (0.001, 7)]
    del dead
addresses = [x.data_ptr() for x in first]
assert sorted(get_block_addrs(handle)) == sorted(addresses)
assert only_live(0, handle, set(addresses)) and not only_live(0, handle, set(addresses[1:]))
assert not only_live(0, handle, {*addresses[1:], 12345})
state = checkpoint(0, handle)
# Another branch: the first results die, others are made, where they lay among other places.
sizes = [x.nbytes for x in first]
del first
second_graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(second_graph, pool=handle):
    second = [new(size) for size in (0.3, 20, 0.002)]
stale = [x.untyped_storage()._cdata for x in second]
storages = [torch._C._construct_storage_from_data_pointer(at, torch.device("cuda:0"), size)
            for at, size in zip(addresses, sizes)]
restore(0, state, stale, [s._cdata for s in storages])
assert sorted(get_block_addrs(handle)) == sorted(addresses)
assert only_live(0, handle, set(addresses))
del second  # their blocks are gone already, and their deleters were taken away
assert only_live(0, handle, set(addresses))
del storages  # they own the blocks now
gc.collect()
assert get_block_addrs(handle) == []
graph.reset(), second_graph.reset()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() <= 2 * MIB
""",
        env=allocator,
    )


def test_a_state_of_another_pool_is_refused(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
handle = torch.cuda.graph_pool_handle()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=handle):
    x = new(3)
state = checkpoint(0, handle)
del x
graph.reset()
torch.cuda.empty_cache()
raises(RuntimeError, "Could not find pool of id", lambda: restore(0, state, [], []))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=handle):
    x = new(3)
raises(RuntimeError, "was given up since the checkpoint", lambda: restore(0, state, [], []))
raises(RuntimeError, "Could not find pool of id", lambda: checkpoint(0, (99, 0)))
""",
        env=PYALLOC,
    )


@both
def test_a_compiled_function_with_the_cudagraphs_backend(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
first = torch.compile(model, backend="cudagraphs")
second = torch.compile(lambda x: (x * 2).relu().sum(dim=-1), backend="cudagraphs")
reserved = []
with torch.no_grad():
    for step in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        y = second(first(torch.randn(32, 256, device="cuda")))
        if step % 2:
            second(torch.randn(8, 256, device="cuda"))
        kept = y.clone()
        del y
        reserved.append(torch.cuda.memory_reserved())
assert kept.shape == (32,) and reserved[3] == reserved[-1], reserved
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    optimizer.zero_grad()
    first(torch.randn(32, 256, device="cuda")).square().mean().backward()
    optimizer.step()
torch._dynamo.reset()
gc.collect()
torch.cuda.empty_cache()
""",
        env=allocator,
    )


# Two branches behind one function, taken in turn: the manager goes back to checkpoints to record each of them.
@both
def test_the_trees_of_inductor_branch(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import torch._inductor.config as config
from pyalloc import simgpu
from torch._inductor import cudagraph_trees as trees
assert config.triton.slow_path_cudagraph_asserts
config.triton.fast_path_cudagraph_asserts = True

def cudagraphify(function, inputs, outputs, inference=True):
    return trees.cudagraphify_impl(function, inputs, (), device_index=0, is_backward=False, is_inference=inference,
                                   stack_traces=[None] * outputs)

def trunk(args):
    (x,) = args
    args.clear()
    a = x.clone()
    return [a.clone(), a.clone()]

def left(args):
    x, = args
    args.clear()
    y = x.clone()
    return [y.clone(), y.clone().view(-1)[:100].clone()]

def right(args):
    x, = args
    args.clear()
    return [x.clone().clone().clone()]

example = torch.arange(300_000.0).cuda()
trunk_graphed = cudagraphify(trunk, [example], 2)
left_graphed = cudagraphify(left, [example], 2)
right_graphed = cudagraphify(right, [example], 1)
inputs = torch.arange(300_000.0).cuda()

def check(result, step):
    live = [x.data_ptr() for x in (one, two, result)]
    segments = trees.get_cudagraph_segments(pool_of_trees())
    assert len(set(live)) == 3
    assert all(any(s["address"] <= at < s["address"] + s["total_size"] for s in segments) for at in live)
    if not simgpu.active():  # torch copies a graph's inputs with a kernel
        assert torch.equal(result.cpu(), torch.arange(300_000.0) + step)

def pool_of_trees():
    return trees.get_manager(0, create_if_none_exists=False).cuda_graphs_thread_pool

for step in range(12):
    torch.compiler.cudagraph_mark_step_begin()
    inputs.copy_(torch.arange(300_000.0) + step)
    one, two = trunk_graphed([inputs])
    if step % 3 == 0:
        results = left_graphed([one])
        check(results[0], step)
    elif step % 3 == 1:
        (three,) = right_graphed([one])
        check(three, step)
        del three
    else:
        again = right_graphed([left_graphed([one])[0]])
        check(again[0], step)
        del again
    results = None
    del one, two
manager = trees.get_manager(0, create_if_none_exists=False)
assert manager.debug_checkpointing_counter > 0
nodes = [node for roots in manager.roots.values() for node in roots]
assert nodes
del manager, nodes, trunk_graphed, left_graphed, right_graphed
trees.reset_cudagraph_trees()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() <= 24 * MIB, torch.cuda.memory_reserved()
""",
        env=allocator,
    )


@pytest.mark.gpu
@pytest.mark.complaint(4)
def test_two_functions_compiled_to_reduce_overhead(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
first = torch.compile(lambda x: (x * 2 + 1).relu(), mode="reduce-overhead")
second = torch.compile(lambda x: x.sum(dim=-1) * 3, mode="reduce-overhead")
x = torch.arange(64 * 64.0, device="cuda").view(64, 64)
for _ in range(3):
    torch.compiler.cudagraph_mark_step_begin()
    y = second(first(x))
    assert torch.allclose(y, ((x * 2 + 1).relu().sum(dim=-1) * 3))
""",
        env=PYALLOC,
    )
