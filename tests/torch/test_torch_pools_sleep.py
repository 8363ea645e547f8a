"""sleep and wake with enable(mode="pools"): torch's tensors in pools of pyalloc's keep their addresses and contents."""

from __future__ import annotations

import pytest
from conftest import Run
from pools_program import program
from support import ON_DEVICE

HELPERS = """
def filled(pool, size, seed, device="cuda"):
    host = torch.randint(0, 255, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    with pyalloc.pool(pool):
        return host.to(device), host

def used():
    free, total = torch.cuda.mem_get_info()
    return total - free

def enter(pool):
    with pyalloc.pool(pool):
        return empty(1000)
"""


def sleeping(text: str) -> str:
    return program("") + HELPERS + text


def test_tensors_sleep_and_wake(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        sleeping(
            """
large, large_host = filled("weights", 100 * MIB, 1)
small, small_host = filled("weights", 1000, 2)
cache, _ = filled("kv", 200 * MIB, 3)
other, other_host = filled("lora", 30 * MIB, 4)
outside = empty(40 * MIB)
address, view, before = large.data_ptr(), large[1000:2000], used()
for _ in range(3):
    assert pyalloc.sleep(offload={"weights"}) == 302 * MIB
    assert used() == before - 302 * MIB
    figures = {one.name: (one.asleep, one.offloaded) for one in pyalloc.pools()}
    assert figures["weights"] == (102 * MIB, 102 * MIB) and figures["kv"] == (200 * MIB, 0), figures
    assert pyalloc.sleep(["kv"]) == 0                       # sleeps already
    assert torch.equal(other.cpu(), other_host)
    big = empty(7500 * MIB)                                 # torch has the memory
    del big
    torch.cuda.empty_cache()
    pyalloc.wake(["weights"])
    assert large.data_ptr() == address and torch.equal(large.cpu(), large_host)
    assert torch.equal(view.cpu(), large_host[1000:2000]) and torch.equal(small.cpu(), small_host)
    pyalloc.wake()
    cache.copy_(cache)
    assert used() == before
assert pyalloc.sleep(["private"]) == 0                      # those are torch's here
pyalloc.sleep(["kv"])
del cache
pyalloc.empty_cache()
assert {one.name: one.asleep for one in pyalloc.pools()}["kv"] == 0
pyalloc.wake()
enter("kv")
"""
        )
    )


def test_scopes_of_a_pool_that_sleeps_are_refused(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        sleeping(
            """
import threading
x, host = filled("kv", 1000, 1)
filled("kv", 1000, 2)                                       # torch keeps room in their segment
with pyalloc.pool("kv"):
    raises(pyalloc.StateError, "a scope of the pool 'kv' is open; leave it before the pool sleeps", pyalloc.sleep)
    with pyalloc.pool("weights"):
        raises(pyalloc.StateError, "a scope of the pool 'kv' is open", lambda: pyalloc.sleep(["kv"]))
    assert pyalloc.sleep(["weights"]) == 0
    raises(pyalloc.StateError, "the pool 'weights' sleeps; pyalloc.wake() brings it back", lambda: enter("weights"))
    pyalloc.wake()
pyalloc.sleep(["kv"], offload=["kv"])
for _ in range(2):
    raises(pyalloc.StateError, "the pool 'kv' sleeps; pyalloc.wake() brings it back", lambda: enter("kv"))
enter("weights")
pyalloc.wake(["weights"])
raises(pyalloc.StateError, "the pool 'kv' sleeps", lambda: enter("kv"))
pyalloc.wake()
enter("kv")
assert torch.equal(x.cpu(), host)

# A scope that its thread never left is no hindrance.
thread = threading.Thread(target=lambda: pyalloc.pool("kv").__enter__())
thread.start()
thread.join()
assert pyalloc.sleep(["kv"]) > 0
pyalloc.wake()
"""
        )
    )


@pytest.mark.skipif(ON_DEVICE, reason="makes the simulated driver fail")
def test_a_sleep_that_fails_keeps_nobody_out_of_what_is_awake(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        sleeping(
            """
from pyalloc import simgpu
driver = simgpu.simulation()
first, first_host = filled("weights", 10 * MIB, 1)
second, second_host = filled("weights", 10 * MIB, 2, "cuda:1")
driver.fail("cuMemcpyDtoHAsync_v2")
raises(RuntimeError, "cuMemcpyDtoHAsync", lambda: pyalloc.sleep(["weights"], offload=["weights"]))
enter("weights")
driver.fail("cuMemUnmap", nth=2)                            # the first device sleeps by then
driver.fail("cuMemCreate", times=0)
raises(RuntimeError, "sleeps already", lambda: pyalloc.sleep(["weights"], offload=["weights"]))
driver.clear_faults()
raises(pyalloc.StateError, "the pool 'weights' sleeps", lambda: enter("weights"))
pyalloc.wake()
enter("weights")
assert torch.equal(first.cpu(), first_host) and torch.equal(second.cpu(), second_host)
"""
        ),
        devices=2,
    )
