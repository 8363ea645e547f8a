"""pyalloc.sleep and wake: memory goes and comes back, tensors keep their addresses."""

from __future__ import annotations

import pytest
from bridge_program import PRELUDE, program
from conftest import Run

# Kernels of the simulated GPU compute nothing: contents come by copies from the host.
HELPERS = """
def filled(pool, size, seed):
    host = torch.randint(0, 255, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    with pyalloc.pool(pool):
        return host.cuda(), host

def used():
    free, total = torch.cuda.mem_get_info()
    return total - free
"""


def test_tensors_sleep_and_wake(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            HELPERS
            + """
x, host = filled("weights", 100 << 20, 1)
with pyalloc.pool("kv"):
    kv = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
other, other_host = filled("general", 3 << 20, 2)
address, view = x.data_ptr(), x[1000:2000]
held = torch.cuda.memory_reserved()
allocated = torch.cuda.memory_allocated()
seen = []
released = pyalloc.sleep(offload={"weights"}, progress=lambda device, done, total: seen.append((device, done, total)))
assert released == 300 << 20, released
assert seen[-1] == (0, 100 << 20, 100 << 20) and len(seen) == 2, seen       # in chunks of 64 MiB
assert torch.cuda.memory_reserved() == held - released and torch.cuda.memory_allocated() == allocated
assert torch.equal(other.cpu(), other_host)
figures = {one.name: one for one in pyalloc.pools()}
assert (figures["weights"].asleep, figures["weights"].offloaded) == (100 << 20, 100 << 20)
assert (figures["kv"].asleep, figures["kv"].offloaded, figures["kv"].reserved) == (200 << 20, 0, 0)
account = pyalloc.ledger()
assert account.asleep == 300 << 20 and account.offloaded == 100 << 20
assert account.reserved + account.shelf + account.outside + account.free == account.total
assert "asleep 300.00 MiB, in host memory 100.00 MiB" in str(account)
assert all(0 <= value <= 1 for value in account.fragmentation().values()), account.fragmentation()
torch.cuda.memory_summary(), torch.cuda.memory_snapshot()
assert pyalloc.sleep(["kv"]) == 0                                           # sleeps already
with pyalloc.pool("kv"):
    raises(RuntimeError, "the pool 'kv' sleeps on device 0; pyalloc.wake() brings it back",
           lambda: torch.empty(100, device="cuda"))
big = torch.empty(7500 << 20, dtype=torch.uint8, device="cuda")             # others have the memory
del big
pyalloc.wake(["weights"])
assert x.data_ptr() == address and torch.equal(x.cpu(), host) and torch.equal(view.cpu(), host[1000:2000])
pyalloc.wake()
pyalloc.wake()
assert {one.name: one.asleep for one in pyalloc.pools()}["kv"] == 0
kv.copy_(kv)
with pyalloc.pool("kv"):
    torch.empty(100, device="cuda")
"""
        )
    )


def test_frees_and_errors_while_asleep(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            HELPERS
            + """
x, host = filled("weights", 40 << 20, 1)
y, _ = filled("weights", 40 << 20, 2)
pyalloc.sleep(["weights"], offload=["weights"])
del y                                                     # vllm: freed twice when freed asleep
pyalloc.wake()
assert torch.equal(x.cpu(), host) and torch.cuda.memory_allocated() == 40 << 20
raises(pyalloc.InvalidArgumentError, "no pool is named 'vk'", lambda: pyalloc.sleep(["vk"]))
raises(pyalloc.InvalidArgumentError, "offload names kv, not among the pools",
       lambda: pyalloc.sleep(["weights"], offload=["kv"]))
raises(pyalloc.InvalidArgumentError, "expected several names", lambda: pyalloc.sleep("kv"))
raises(pyalloc.InvalidArgumentError, "pools 3; expected several names, as in ['kv']", lambda: pyalloc.sleep(3))
raises(pyalloc.InvalidArgumentError, "pools 3; expected several names, as in ['kv']", lambda: pyalloc.wake(3))
raises(pyalloc.InvalidArgumentError, "pools 'kv'; expected several names, as in ['kv']", lambda: pyalloc.wake("kv"))
raises(pyalloc.InvalidArgumentError, "expected fn(device, done, total)", lambda: pyalloc.sleep(["kv"], progress=3))
raises(pyalloc.InvalidArgumentError, "no pool is named 'vk'", lambda: pyalloc.wake(["vk"]))
def fails(device, done, total):
    raise ValueError("from progress")
raises(ValueError, "from progress", lambda: pyalloc.sleep(["weights"], offload=["weights"], progress=fails))
assert pyalloc.ledger().asleep == 40 << 20                # it slept all the same
pyalloc.wake()
assert torch.equal(x.cpu(), host)
"""
        )
    )


def test_progress_counts_all_pools_together(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            HELPERS
            + """
import contextlib, io
kept = [filled("weights", 100 << 20, 1), filled("kv", 2 << 20, 2)]
for size in (10, 10, 20):
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        kept.append(filled("general", size << 20, 3))
for call in (lambda hear: pyalloc.sleep(["weights", "kv", "private"], offload=["weights", "kv", "private"],
                                        progress=hear),
             lambda hear: pyalloc.wake(progress=hear)):
    seen = []
    call(lambda *heard: seen.append(heard))
    done = [one for _, one, _ in seen]
    assert done == sorted(set(done)) and len(done) >= 5, seen
    assert done[-1] == 142 << 20 and {total for _, _, total in seen} == {142 << 20}, seen
assert all(torch.equal(x.cpu(), host) for x, host in kept)
errors = io.StringIO()
with contextlib.redirect_stderr(errors):
    pyalloc.sleep(["kv"], offload=["kv"], progress=True)
assert errors.getvalue() == "\\rpyalloc: sleep: device 0: 2.00 of 2.00 MiB copied\\n", repr(errors.getvalue())
pyalloc.wake()
"""
        )
    )


@pytest.mark.complaint(37, 38)
@pytest.mark.complaint(38)
def test_sleep_waits_for_kernels(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + HELPERS
        + """
x, host = filled("weights", 32 << 20, 1)
side = torch.cuda.Stream()
for _ in range(20):
    with torch.cuda.stream(side), pyalloc.pool("weights"):
        y = torch.randn(2048, 7168, device="cuda")
        y.mul_(2)
        del y
    x.copy_(x)
pyalloc.sleep(["weights"], offload=["weights"])
pyalloc.wake()
assert torch.equal(x.cpu(), host)
""",
        streams="deferred",
        oracle=True,
    )


@pytest.mark.complaint(40)
def test_a_wake_that_fails_can_be_tried_again(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            HELPERS
            + """
x, host = filled("weights", 512 << 20, 1)
with pyalloc.pool("kv"):
    kv = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
pyalloc.sleep(offload=["weights"])
taken = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
before = used()
for _ in range(3):
    raises(torch.OutOfMemoryError, "CUDA out of memory", pyalloc.wake)
    assert used() == before and pyalloc.ledger().asleep == 1536 << 20
    raises(RuntimeError, "sleeps on device 0", lambda: filled("kv", 100, 1))
pyalloc.wake(["weights"])                                 # for one of them there is room
assert torch.equal(x.cpu(), host) and pyalloc.ledger().asleep == 1 << 30
dropped = []

@pyalloc.on_oom
def drop(size, device):
    global taken
    dropped.append(size)
    taken = None

pyalloc.wake()
assert dropped == [1 << 30] and pyalloc.ledger().asleep == 0
assert torch.equal(x.cpu(), host)
"""
        ),
        memory="2GiB",
    )


@pytest.mark.complaint(45)
def test_two_engines_take_turns(run_on_simgpu: Run) -> None:
    """As vLLM does: five cycles of sleep and wake, and the same bytes in use after each wake."""
    run_on_simgpu(
        program(
            HELPERS
            + """
class Engine:
    def __init__(self, name, seed):
        self.pools = [pyalloc.create_pool(f"{name}_{what}", like=what) for what in ("weights", "kv")]
        sizes = (90 << 20, 3 << 20, 7000, 513 << 10) * 3
        self.parameters = [filled(self.pools[0], size, seed + size) for size in sizes]
        with pyalloc.pool(self.pools[1]):
            self.kv = [torch.empty(2 << 20, dtype=torch.uint8, device="cuda") for _ in range(300)]

    def sleep(self):
        return pyalloc.sleep(self.pools, offload=self.pools[:1])

    def wake(self):
        pyalloc.wake(self.pools)

    def serve(self):
        steps = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 30, 200)]
        for tensor, host in self.parameters:
            assert torch.equal(tensor.cpu(), host)
        with pyalloc.pool(self.pools[1]):
            extra = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")

first, second = Engine("one", 1), None
first.sleep()
second = Engine("two", 2)
second.sleep()
asleep, awake = used(), {}
for cycle in range(5):
    for engine in (first, second):
        engine.wake()
        awake.setdefault(engine, used())
        assert used() == awake[engine], (cycle, used(), awake[engine])
        engine.serve()
        released = engine.sleep()
        torch.cuda.empty_cache()
        assert used() == asleep, (cycle, used(), asleep)
assert pyalloc.device_stats(0)["num_ooms"] == 0
first.wake(), second.wake()
"""
        ),
        memory="2GiB",
    )


@pytest.mark.complaint(44)
def test_registrations_hear_of_sleep(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            HELPERS
            + """
pool = pyalloc.create_pool("network", contiguous=True)
x, host = filled(pool, 40 << 20, 1)
registered = {x.data_ptr(): 40 << 20}

@pyalloc.on_unmap
def deregister(device, address, size):
    for start in [start for start in registered if address <= start < address + size]:
        assert registered.pop(start) == size
        assert torch.equal(x.cpu(), host)      # still there

pyalloc.sleep([pool], offload=[pool])
assert not registered
pyalloc.wake()
assert torch.equal(x.cpu(), host)
"""
        )
    )


@pytest.mark.complaint(45, 46)
def test_graphs_sleep_with_their_memory(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            HELPERS
            + """
x, host = filled("general", 6 << 20, 1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    between = x.clone()
    out = between.clone()
    raises(pyalloc.StateError, "a CUDA graph is being captured", lambda: pyalloc.sleep(["private"]))
    del between                                       # the graph uses its memory all the same
graph.replay()
torch.cuda.synchronize()
state = torch.randint(0, 255, (6 << 20,), dtype=torch.uint8)
out.copy_(state)                                      # what the graph's memory holds between replays
before = used()
assert pyalloc.sleep(["private"], offload=["private"]) >= 12 << 20
assert used() <= before - (12 << 20)
pyalloc.wake()
assert used() == before and torch.equal(out.cpu(), state)
graph.replay()
assert torch.equal(out.cpu(), host)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    y = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
y.copy_(state[: 5 << 20])
pyalloc.sleep(["private", "general"], offload=["private", "general"])
raises(RuntimeError, "sleeps on device 0", lambda: torch.empty(10, device="cuda"))
del y, pool, out, graph
pyalloc.wake()
assert torch.equal(x.cpu(), host)
torch.cuda.empty_cache()
assert used() == before - (12 << 20), (used(), before)
"""
        )
    )


def test_sleep_without_pyalloc_says_so(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
import pyalloc
try:
    pyalloc.sleep()
except pyalloc.StateError as error:
    assert "call pyalloc.enable() first" in str(error)
else:
    raise AssertionError
pyalloc.wake()
"""
    )


def test_what_sleeps_before_torch_uses_cuda_wakes(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            pyalloc.lora_prepare("100MiB")
            assert not torch.cuda.is_initialized()
            pyalloc.sleep()
            pyalloc.wake()
            with pyalloc.pool("kv"):
                torch.empty(100, device="cuda")
            """
        ).replace(", lora_reserve=0", "")
    )
