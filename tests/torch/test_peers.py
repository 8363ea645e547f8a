"""Copies between devices, with and without access to each other's memory, and the splits that DataParallel makes."""

from __future__ import annotations

import pytest
from bridge_program import program
from conftest import Run

# What pyalloc holds where the copies begin: pools, lanes, the reserve, memory that moved.
COPIES = """
import pyalloc.simgpu
simulation = pyalloc.simgpu.simulation()
simulation.set_peers(PEERS)

def check_copies(source, target, sizes=(1, 1000, 300_000, 3_000_000)):
    for size in sizes:
        data = torch.arange(size, dtype=torch.int32)
        there = data.to(source).to(target)
        assert torch.equal(there.cpu(), data), (source, target, size)
        back = torch.empty_like(data, device=source).copy_(there, non_blocking=True)
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        assert torch.equal(back.cpu(), data), (source, target, size)
"""


def copies(text: str, peers: bool) -> str:
    return program(COPIES.replace("PEERS", str(peers)) + text + "\nassert simulation.violations() == []\n")


@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_copies_either_way_first(run_on_simgpu: Run, peers: bool, order: tuple[int, int]) -> None:
    """Memory that stood before access was given, and memory of every kind that came after it."""
    run_on_simgpu(
        copies(
            f"""
one, other = "cuda:{order[0]}", "cuda:{order[1]}"
before = {{device: torch.arange(100_000).to(device) for device in (one, other)}}
assert torch.cuda.can_device_access_peer(one, other) is {peers}
check_copies(one, other)
check_copies(other, one)
assert torch.equal(before[one].to(other).cpu(), torch.arange(100_000))
assert torch.equal(before[other].to(one).cpu(), torch.arange(100_000))

for name in ("weights", "kv", "workspace", "lora"):  # pools first used after
    with pyalloc.pool(name):
        check_copies(one, other)
        check_copies(other, one)
side = torch.cuda.Stream(device=one)
with torch.cuda.device(one), torch.cuda.stream(side):  # a lane made after
    check_copies(one, other)
torch.cuda.empty_cache()
check_copies(one, other)
""",
            peers,
        ),
        devices=2,
    )


@pytest.mark.parametrize("peers", [True, False])
def test_memory_that_moves_stays_within_reach(run_on_simgpu: Run, peers: bool) -> None:
    """A small device, so that each size's memory is made of what the one before it left."""
    run_on_simgpu(
        copies(
            """
check_copies("cuda:0", "cuda:1", [1000])
for turn in range(4):
    held = [torch.empty(5 << 20, dtype=torch.uint8, device=f"cuda:{turn % 2}") for _ in range(16)]
    del held[::2]
    check_copies("cuda:0", "cuda:1", [4_000_000])
    check_copies("cuda:1", "cuda:0", [4_000_000])
    del held
assert sum(pyalloc.device_stats(device)["stolen_granules"] for device in (0, 1)) > 0
""",
            peers,
        ),
        memory="128MiB",
        devices=2,
    )


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("peers", [True, False])
def test_the_splits_and_copies_of_data_parallel(run_on_simgpu: Run, devices: int, peers: bool) -> None:
    """scatter, parallel_apply over a copy of the model a device, gather. (replicate itself needs NCCL.)"""
    run_on_simgpu(
        copies(
            """
import copy
from torch.nn.parallel import gather, parallel_apply, scatter

count = torch.cuda.device_count()
devices = list(range(count))
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).cuda(0)
weights = [parameter.detach().cpu() for parameter in model.parameters()]
for step in range(3):
    data = torch.rand(count * 33, 256)
    parts = scatter(data.cuda(0), devices)
    assert [part.get_device() for part in parts] == devices
    assert torch.equal(torch.cat([part.cpu() for part in parts]), data)
    models = [model, *(copy.deepcopy(model).to(f"cuda:{device}") for device in devices[1:])]
    for one in models:
        for parameter, wanted in zip(one.parameters(), weights, strict=True):
            assert torch.equal(parameter.detach().cpu(), wanted)
    outputs = parallel_apply(models, [(part,) for part in parts], devices=devices)
    assert [output.get_device() for output in outputs] == devices
    together = gather(parts, 0)
    assert torch.equal(together.cpu(), data)
    last = gather([part.clone() for part in parts], devices[-1])
    assert last.get_device() == devices[-1] and torch.equal(last.cpu(), data)
    gather(outputs, 0).sum().backward()
for device in devices:
    torch.cuda.synchronize(device)
""",
            peers,
        ),
        devices=devices,
    )


def test_a_peer_whose_heap_opens_later(run_on_simgpu: Run) -> None:
    """Access is asked for before either device has memory of ours, and to a device that never gets any."""
    run_on_simgpu(
        copies(
            """
torch.cuda.init()
empty = torch.empty(0, device="cuda:2")
target = torch.empty(1000, device="cuda:1")      # only device 1 has a heap
target.copy_(torch.arange(1000.0))
moved = target.to("cuda:0")                      # the heap of device 0 opens now
assert torch.equal(moved.cpu(), torch.arange(1000.0))
check_copies("cuda:0", "cuda:2")
check_copies("cuda:2", "cuda:1")
""",
            True,
        ),
        devices=3,
    )


def test_a_peer_that_cannot_be_given_access_now(run_on_simgpu: Run) -> None:
    """cuMemSetAccess fails while access is given: an error, and the next copy gives it whole."""
    run_on_simgpu(
        copies(
            """
data = torch.arange(100_000)
x, y = data.to("cuda:0"), data.to("cuda:1")
for nth in (1, 2, 3):
    simulation.fail("cuMemSetAccess", nth=nth)
    try:
        x.to("cuda:1"), y.to("cuda:0")
    except RuntimeError as error:
        assert "cuMemSetAccess" in str(error) or "out of memory" in str(error), error
    simulation.clear_faults()
check_copies("cuda:0", "cuda:1")
check_copies("cuda:1", "cuda:0")
assert torch.equal(x.to("cuda:1").cpu(), data) and torch.equal(y.to("cuda:0").cpu(), data)
""",
            True,
        ),
        devices=2,
    )
