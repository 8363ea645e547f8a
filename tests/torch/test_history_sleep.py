"""History of a pool that sleeps: its blocks are told as freed when their memory goes and as allocated when it is back,
so that every snapshot can be gone back from, whenever the history began.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import viewer
from bridge_program import program
from conftest import Run
from cpp_calls import compile_calls

WORK = """
import sys
target, begins = sys.argv[1:3]

def make(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device="cuda")

begun = False
def at(moment):
    global begun
    if begun:
        M._dump_snapshot(f"{target}.{moment}")
    elif moment == begins:
        M._record_memory_history(stacks="python")
        begun = True

def told():
    return [entry["action"] for entry in M._snapshot()["device_traces"][0]
            if entry["action"] in ("alloc", "free_completed")]

sizes = (100, 300 << 10, 5 << 20, 30 << 20)
make(1)
at("start")
with pyalloc.pool("weights"):
    kept = [make(size) for size in sizes * 2]
at("allocated")
addresses = {one.data_ptr() for one in kept[4:]}
pyalloc.sleep(["weights"], offload=["weights"])
at("asleep")
del kept[:4]
at("freed")
pyalloc.wake(["weights"])
at("awake")
if begins == "start":
    assert told() == ["alloc"] * 8 + ["free_completed"] * 8 + ["alloc"] * 4, told()
with pyalloc.pool("weights"):
    kept += [make(size) for size in sizes]
at("more")
live = {block["address"]: block for segment in M.memory_snapshot() for block in segment["blocks"]
        if block["state"] == "active_allocated"}
assert addresses < set(live)
assert begins != "start" or all(live[one]["frames"] for one in addresses)
del kept
torch.cuda.empty_cache()
at("end")
"""


@pytest.mark.parametrize(("begins", "snapshots"), [("start", 6), ("allocated", 5), ("asleep", 4), ("freed", 3)])
def test_a_pool_that_sleeps(begins: str, snapshots: int, run_on_simgpu: Run, tmp_path: Path) -> None:
    run_on_simgpu(program(WORK), args=[str(tmp_path / "snapshot"), begins])
    dumped = sorted(tmp_path.glob("snapshot.*"))
    assert len(dumped) == snapshots
    for path in dumped:
        viewer.load(path)


def test_a_registration_hook_and_a_pool_that_sleeps(run_on_simgpu: Run, tmp_path: Path) -> None:
    """No block without memory is left registered, and none is told twice."""
    run_on_simgpu(
        program(
            """
            import ctypes, sys
            calls = ctypes.CDLL(sys.argv[1])
            calls.live.restype = ctypes.c_size_t
            calls.first_trouble.restype = ctypes.c_char_p
            def sound(live):
                M.memory_snapshot()
                assert calls.first_trouble() == b"", calls.first_trouble()
                assert calls.live() == live, calls.live()
            torch.empty(1, device="cuda")
            calls.attach()
            calls.register_present()
            with pyalloc.pool("weights"):
                kept = [torch.empty(bytes_, dtype=torch.uint8, device="cuda") for bytes_ in (100, 300 << 10, 5 << 20)]
            sound(3)
            pyalloc.sleep(["weights"])
            sound(0)
            kept.pop()
            sound(0)
            pyalloc.wake(["weights"])
            sound(2)
            del kept
            sound(0)
            """
        ),
        args=[str(compile_calls("history_calls", tmp_path))],
    )
