"""Each rung of the ladder as a torch program meets it: what it takes to reach it, that it is counted, and no other.
Torch's registered callbacks need C++: test_bridge_virtuals.py.
"""

from __future__ import annotations

import pytest
from bridge_program import program
from conftest import Run
from support import ON_DEVICE

pytestmark = pytest.mark.skipif(ON_DEVICE, reason="needs a device of its own size, and work that waits until asked for")

HELPERS = """
import pyalloc.simgpu
MIB = 1 << 20
simulation = pyalloc.simgpu.simulation()
simulation.set_work_time(1e9)            # virtual microseconds: what is enqueued is done when it is waited for
main, side = torch.cuda.Stream(), torch.cuda.Stream()

def empty(size, stream=main):
    with torch.cuda.stream(stream):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

def work(stream, tensor):
    simulation.launch(stream.cuda_stream, writes=[(tensor.data_ptr(), 4096)], value=1)

RUNGS = ("pending", "slabs", "callbacks", "reclaimers", "events", "context", "lenders")
def counted(**expected):
    stats = pyalloc.device_stats(0)
    found = {rung: stats["rung_" + rung] for rung in RUNGS if stats["rung_" + rung]}
    waits = {"retries": stats["num_alloc_retries"], "syncs": stats["num_sync_all_streams"]}
    assert found == expected, found
    assert stats["num_ooms"] == 0
    assert waits["retries"] == expected.get("events", 0) + expected.get("context", 0), waits
    assert waits["syncs"] == expected.get("context", 0), waits
    return stats
"""


def ladder_program(text: str, reserve: str = "0") -> str:
    whole = program(HELPERS + "\n" + text)
    # Without the thread that looks after what has ended by itself, now and then before the rung does.
    return whole.replace("lora_reserve=0", f"lora_reserve='{reserve}', maintenance=False", 1)


def test_idle_memory_of_other_pools_and_streams_is_no_rung(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
with pyalloc.pool("kv"):
    cache = empty(700 * MIB, side)
work(side, cache)
del cache                                # the work on `side` has not happened
weights = empty(900 * MIB)               # another pool, another stream: ordered by the GPU, not by the host
stats = counted()
assert stats["stolen_granules"] > 0 and stats["stream_waits"] > 0 and stats["event_waits"] == 0, stats
"""
        ),
        memory="1GiB",
        streams="timed",
        oracle=True,
    )


def test_frees_that_were_complete(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
x = empty(700 * MIB)
x.record_stream(side)
work(side, x)
del x
simulation.advance(1e12)
pyalloc.lora_prepare(600 * MIB)
counted(pending=1)
""",
            reserve="2MiB",
        ),
        memory="1GiB",
        streams="timed",
    )


def test_empty_slabs(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
small = empty(100)
del small                                # its slab is kept
whole = empty(64 * MIB)
counted(slabs=1)
"""
        ),
        memory="64MiB",
    )


def test_functions_of_on_oom(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
cache = [empty(300 * MIB), empty(300 * MIB)]
pyalloc.on_oom(lambda size, device: cache.pop().nbytes if cache else 0)
x = empty(600 * MIB)
assert len(cache) == 1
counted(reclaimers=1)
"""
        ),
        memory="1GiB",
    )


def test_waiting_for_events(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
x = empty(700 * MIB)
x.record_stream(side)
work(side, x)
del x
y = empty(700 * MIB)                     # nothing is ordered after the work on `side` but by waiting for it
stats = counted(events=1)
assert stats["event_waits"] > 0
"""
        ),
        memory="1GiB",
        streams="timed",
    )


def test_waiting_for_the_device(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
keep = empty(1)
handle = ctypes.c_void_p()
assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
x = empty(700 * MIB, torch.cuda.ExternalStream(handle.value))
work(torch.cuda.ExternalStream(handle.value), x)
assert driver.cuStreamDestroy_v2(handle) == 0
del x                                    # freed on a stream that is gone: no event can tell when its work is done
y = empty(700 * MIB)
counted(context=1)
"""
        ),
        memory="1GiB",
        streams="timed",
    )


def test_the_error_says_what_each_rung_gave(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
small = empty(100)
cache = [empty(64 * MIB)]
x = empty(200 * MIB)
x.record_stream(side)
work(side, x)
del x, small

@pyalloc.on_oom
def drop(size, device):
    return cache.pop().nbytes

raises(torch.OutOfMemoryError, "Tried, and got: empty slabs 2.00 MiB, on_oom functions 64.00 MiB, waiting for "
       "events 200.00 MiB; nothing from frees that were complete, torch's callbacks, waiting for the device, private "
       "pools with use_on_oom.",
       lambda: empty(2000 * MIB))
(last,) = pyalloc.oom_report()["last"]
assert last["freed"] == {"pending": 0, "slabs": 2 * MIB, "callbacks": 0, "reclaimers": 64 * MIB, "events": 200 * MIB,
                         "context": 0, "lenders": 0}, last
assert last["reason"] == "capacity" and list(last["freed"]) == list(RUNGS)
y = empty(1000 * MIB)                    # what was freed on the way is there for the next
"""
        ),
        memory="1GiB",
        streams="timed",
    )


def test_what_is_set_aside_is_told_from_what_is_missing(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        ladder_program(
            """
held = empty(700 * MIB)
raises(torch.OutOfMemoryError, "Reason: pinned, ", lambda: empty(300 * MIB))
raises(torch.OutOfMemoryError, "256.00 MiB are set aside for LoRA adapters", lambda: empty(100 * MIB))
raises(torch.OutOfMemoryError, "Reason: capacity, ", lambda: empty(400 * MIB))
assert pyalloc.oom_report()["counts"] == {"capacity": 1, "limit": 0, "fragmentation": 0, "pinned": 2}
""",
            reserve="256MiB",
        ),
        memory="1GiB",
    )
