"""Memory that record_stream keeps: found again in time, and no reason to run out or to grow."""

from __future__ import annotations

import pytest
from conftest import PYALLOC, Run

PRELUDE = """
import torch
from pyalloc import simgpu
import pyalloc
gpu = simgpu.simulation()
MIB = 1 << 20

def new(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")

new(1)
side = torch.cuda.Stream()
"""


@pytest.mark.complaint(23)
def test_a_pending_free_that_fits_is_waited_for(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
pool = torch.cuda.MemPool()
for scope in (torch.cuda.device(0), torch.cuda.use_mem_pool(pool)):
    gpu.set_stream_mode("timed")
    gpu.set_work_time(1000)
    with scope:
        x = new(700)
        with torch.cuda.stream(side):
            x.zero_()
        x.record_stream(side)
        del x
        y = new(700)
        assert pyalloc.device_stats(0)["num_ooms"] == 0
        del y
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
""",
        memory="1GiB",
        env=PYALLOC,
    )


@pytest.mark.complaint(26)
def test_recorded_tensors_do_not_let_the_peak_grow(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
gpu.set_stream_mode("timed")
gpu.set_work_time(100)
for step in range(300):
    x = new(20)
    with torch.cuda.stream(side):
        x.zero_()
    x.record_stream(side)
    del x
    gpu.advance(60)  # the side stream is slower than the steps, and falls behind
stats = torch.cuda.memory_stats()
assert stats["num_ooms"] == 0 and stats["reserved_bytes.all.peak"] <= 1024 * MIB
torch.cuda.synchronize()
assert pyalloc.device_stats(0)["pending_frees"] <= 300
new(20)
assert pyalloc.device_stats(0)["pending_frees"] == 0

# A side stream that keeps up: what is done is found again at the next allocation.
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
for step in range(100):
    x = new(20)
    with torch.cuda.stream(side):
        x.zero_()
    x.record_stream(side)
    del x
    gpu.advance(150)
assert torch.cuda.max_memory_reserved() <= 60 * MIB, torch.cuda.max_memory_reserved()
""",
        memory="1GiB",
        env=PYALLOC,
    )
