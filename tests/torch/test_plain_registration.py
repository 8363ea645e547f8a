"""Without the bridge: bridge:off, and the pair of C functions registered by hand, run the same programs."""

from __future__ import annotations

import pytest
from conftest import Run

REGISTER = {
    "bridge": "import pyalloc; assert pyalloc.enable(bridge='require', lora_reserve=0)",
    "off": "import pyalloc; assert pyalloc.enable(bridge='off', lora_reserve=0)",
    "by hand": """
import pyalloc, torch
torch.cuda.memory.change_current_allocator(
    torch.cuda.memory.CUDAPluggableAllocator(pyalloc.library_path(), "pyalloc_malloc", "pyalloc_free"))
""",
}
BACKEND = {"bridge": "pyalloc", "off": "pluggable", "by hand": "pluggable"}

PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
side = torch.cuda.Stream()
for _ in range(5):
    x = torch.randn(64, 512).pin_memory().cuda(non_blocking=True)
    with torch.cuda.stream(side):
        y = torch.empty(1 << 20, device="cuda")
        y.zero_()
    y.record_stream(torch.cuda.current_stream())
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
data = torch.arange(1000).cuda()
held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1, 512, 1 << 20, 9 << 20)]
torch.cuda.synchronize()
assert torch.equal(data.clone().cpu(), torch.arange(1000))
del held, y
torch.cuda.empty_cache()
assert torch.cuda.mem_get_info()[0] > 0
print(torch.cuda.get_allocator_backend())
"""

STATISTICS = """
import torch
x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() == torch.accelerator.memory_allocated() == 3 << 20
del x
assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 3 << 20
stats = torch.cuda.memory_stats()
assert torch.accelerator.memory_stats().items() <= stats.items()
assert stats["allocated_bytes.all.freed"] == 3 << 20
assert stats["requested_bytes.all.current"] == 0 and stats["max_split_size"] == -1
torch.cuda.reset_peak_memory_stats()
torch.accelerator.reset_accumulated_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
torch.accelerator.empty_cache()
assert torch.cuda.memory_reserved() == 0
"""


@pytest.mark.parametrize("way", REGISTER)
def test_the_same_program(run_on_simgpu: Run, way: str) -> None:
    assert run_on_simgpu(REGISTER[way] + PROGRAM).stdout == f"{BACKEND[way]}\n"


@pytest.mark.parametrize("way", ["bridge", "off"])
def test_the_same_statistics(run_on_simgpu: Run, way: str) -> None:
    run_on_simgpu(REGISTER[way] + STATISTICS)


@pytest.mark.parametrize("way", ["off", "by hand"])
def test_copies_between_devices(run_on_simgpu: Run, way: str) -> None:
    run_on_simgpu(
        REGISTER[way]
        + """
import torch
source = torch.arange(1 << 20)
first = source.to("cuda:0")
second = first.to("cuda:1")
third = second.to("cuda:0")
for device in (0, 1):
    torch.cuda.synchronize(device)
assert torch.equal(second.cpu(), source) and torch.equal(third.cpu(), source)
""",
        devices=2,
    )


def test_what_is_lost_is_said_once(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(REGISTER["off"] + PROGRAM)
    (line,) = [line for line in done.stderr.splitlines() if "without its torch bridge" in line]
    assert "bridge:off" in line
    assert "null pointer instead of torch.OutOfMemoryError" in line


def test_running_out_of_memory_is_told_with_the_core_s_message(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        REGISTER["off"]
        + """
import torch
x = torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
assert x.data_ptr() == 0
del x
assert torch.empty(1 << 20, device="cuda").data_ptr() != 0
"""
    )
    assert "ried to allocate" in done.stderr


def test_the_fraction_is_enforced(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        REGISTER["off"]
        + """
import torch
torch.cuda.set_per_process_memory_fraction((2 << 30) / torch.cuda.mem_get_info()[1])
assert torch.empty(1 << 30, dtype=torch.uint8, device="cuda").data_ptr() != 0
assert torch.empty(3 << 30, dtype=torch.uint8, device="cuda").data_ptr() == 0
"""
    )
