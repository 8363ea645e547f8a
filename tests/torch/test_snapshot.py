"""Snapshots of torch programs: they agree with every other figure, whatever way pyalloc is registered, and go through
the command line to torch's viewers.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from bridge_program import program
from conftest import Run
from support import ON_DEVICE

import pyalloc
from pyalloc.user_folder import user_folder

# Live blocks of several pools, sizes and tags, holes, and a freed block that waits for another stream.
FILL = """
import gc, os, sys
import torch

def fill():
    kept = []
    for pool in ("weights", "kv", "general"):
        with pyalloc.pool(pool):
            for number in range(40):
                with pyalloc.tag(f"request-{number % 5}"):
                    kept.append(torch.empty(1000 + 300_000 * (number % 9), dtype=torch.uint8, device="cuda"))
    untagged = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    del kept[::3]
    return kept, untagged

def check(taken):
    (device,) = taken.devices
    assert device.exact
    live = [block for block in device.blocks if block.state == "live"]
    assert len(live) == sum(pool.blocks for pool in device.ledger.pools)
    assert sum(block.requested for block in live) == device.ledger.requested
    assert sum(block.bytes for block in live) == device.ledger.allocated
    assert sum(segment.bytes for segment in device.segments) == device.ledger.reserved
    bills = {bill.tag: bill for bill in taken.bills}
    for tag, bill in bills.items():
        assert sum(block.requested for block in live if block.tag == tag) == bill.bytes > 0
    assert len(bills) == 5
    by_pool = {name: {block.address for segment in device.segments if segment.pool == name
                      for block in device.blocks_of(segment) if block.state == "live"} for name in ("weights", "kv")}
    assert all(len(addresses) > 20 for addresses in by_pool.values())
    return device
"""


def test_with_the_bridge_it_is_what_torch_sees(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            FILL
            + """
kept, untagged = fill()
stream = torch.cuda.Stream()
waiting = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
waiting.record_stream(stream)
if pyalloc.simgpu.active():
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1000)
del waiting
taken = pyalloc.snapshot()
device = check(taken)
assert taken.registration == "bridge" and taken.pid == os.getpid() and taken.program == "program.py"
assert taken.versions["torch"] == torch.__version__ and taken.options["bridge"] == "require"
assert untagged.data_ptr() in {block.address for block in device.blocks if block.tag is None and block.state == "live"}
theirs = torch.cuda.memory_snapshot()
assert [(one["address"], one["total_size"], one["allocated_size"], one["requested_size"]) for one in theirs] == [
    (one.address, one.bytes, one.allocated, one.requested) for one in device.segments]
states = {"active_allocated": "live", "active_pending_free": "pending", "inactive": "free"}
assert [(one["address"], one["size"], one["requested_size"], states[one["state"]]) for segment in theirs
        for one in segment["blocks"]] == [(one.address, one.bytes, one.requested, one.state) for one in device.blocks]
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == device.ledger.allocated
assert "pending" in {block.state for block in device.blocks} or not pyalloc.simgpu.active()
from pyalloc.snapshots.reading import loads
assert loads(taken.dumps()) == taken
"""
        ).replace("import torch\n", "import torch, pyalloc.simgpu\n", 1),
        streams="deferred",
        env={"PYALLOC_CONF": "maintenance:off"},  # its thread would find the block free between the two snapshots
    )


@pytest.mark.parametrize("how", ["off", "by hand"])
def test_without_the_bridge(how: str, run_on_simgpu: Run) -> None:
    enable = (
        "assert pyalloc.enable(bridge='off', lora_reserve=0)"
        if how == "off"
        else "torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator("
        "pyalloc.library_path(), 'pyalloc_malloc', 'pyalloc_free'))"
    )
    run_on_simgpu(
        f"import torch, pyalloc\n{enable}\n{FILL}\nkept, untagged = fill()\n"
        "taken = pyalloc.snapshot()\ncheck(taken)\n"
        f"assert taken.registration == {'plain' if how == 'off' else 'none'!r}\n",
        env={"PYALLOC_CONF": "lora_reserve:0"},
    )


@pytest.mark.skipif(ON_DEVICE, reason="needs two devices")
def test_every_device_in_use_is_there(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            assert pyalloc.snapshot().devices == ()
            x = torch.empty(3 << 20, device="cuda:2")
            (device,) = pyalloc.snapshot().devices
            assert device.ledger.device == 2
            y = torch.empty(5 << 20, device="cuda:0")
            assert [(one.ledger.device, one.ledger.requested) for one in pyalloc.snapshot().devices] == [
                (0, 20 << 20), (2, 12 << 20)]
            """
        ),
        devices=3,
    )


def test_100000_blocks_in_one_go_while_others_allocate(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import threading
            kept = [torch.empty(512 * (1 + number % 64), dtype=torch.uint8, device="cuda") for number in range(100_000)]
            taken = pyalloc.snapshot()
            assert len(taken.devices[0].blocks) > 100_000 and taken.devices[0].exact
            del kept[::2]
            stop = threading.Event()

            def churn():
                while not stop.is_set():
                    torch.empty(700_000, dtype=torch.uint8, device="cuda")

            thread = threading.Thread(target=churn)
            thread.start()
            for _ in range(5):
                (device,) = pyalloc.snapshot().devices
                live = [block for block in device.blocks if block.state == "live"]
                assert 50_000 <= len(live) <= 50_001
                assert sum(block.bytes for block in live) == sum(one.allocated for one in device.segments)
            stop.set()
            thread.join()
            """
        ),
        memory="16GiB",
    )


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_a_running_process_is_asked_and_torch_s_viewer_reads_it(
    bridge: str, run_on_simgpu: Run, tmp_path: Path
) -> None:
    """The child is asked by its parent, both in one program, as the tests' simulation is the program's own."""
    done = run_on_simgpu(
        f"""
        import os, subprocess, sys
        import pyalloc
        assert pyalloc.enable(bridge={bridge!r}, control_socket=True, lora_reserve=0)
        import torch
        with pyalloc.pool("kv"), pyalloc.tag("request-7"):
            kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(10)]
        del kept[3]
        ask = [sys.executable, "-m", "pyalloc", "snapshot", str(os.getpid()), "-o", sys.argv[1]]
        print(subprocess.run(ask, capture_output=True, text=True))
        """,
        args=[str(tmp_path / "now.json")],
        env={"PYALLOC_CONF": ""},
    )
    assert "returncode=0" in done.stdout, done.stdout + done.stderr
    taken = pyalloc.load_snapshot(tmp_path / "now.json")
    assert [block.tag for block in taken.devices[0].blocks if block.state == "live"] == ["request-7"] * 9
    assert not list(user_folder(os.geteuid()).glob(f"*-{taken.pid}-*.sock"))
    command = [sys.executable, "-m", "pyalloc", "snapshot", "--convert", "now.json", "-o", "now.pickle"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for view in ("stats", "trace"):
        viewer = [sys.executable, "-m", "torch.cuda._memory_viz", view, "now.pickle"]
        shown = subprocess.run(viewer, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout
    data = pickle.loads((tmp_path / "now.pickle").read_bytes())
    assert sum(one["allocated_size"] for one in data["segments"]) == 9 << 20


def test_off_by_default_nothing_listens(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import os, sys, threading
            from pyalloc.user_folder import user_folder
            x = torch.empty(1, device="cuda")
            assert "pyalloc-control" not in {one.name for one in threading.enumerate()}
            assert "pyalloc.snapshots.control_socket" not in sys.modules
            assert not list(user_folder(os.geteuid()).glob(f"*-{os.getpid()}-*.sock"))
            """
        )
    )


def test_a_socket_that_cannot_be_opened_is_one_warning(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(bridge="require", control_socket="on")
        import torch
        torch.empty(1, device="cuda")
        """,
        env={"PYALLOC_SHARED_FOLDER": "/nonexistent"},
    )
    assert "pyalloc's control socket is not open" in done.stderr


@pytest.mark.skipif(ON_DEVICE, reason="the figures are those of the simulated GPU")
def test_a_leak_in_a_program_that_serves_is_found(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            import logging
            watch = pyalloc.watch_leaks(interval=None, windows=6, steps=4)
            prefixes, kept = [], []

            def handle(request):
                with pyalloc.pool("kv"), pyalloc.tag(f"request-{request}"):
                    cache = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
                activations = torch.empty((1 + request % 7) << 22, device="cuda")
                prefixes.append(cache[1])
                del prefixes[:-20]  # a cache that levels off
                return cache[0]

            for request in range(200):
                handle(request)
                watch.step()
            assert watch.leaks == [], watch.leaks
            for request in range(200, 240):
                kept.append(handle(request))  # the mistake
                watch.step()
            leak = watch.leaks[0]  # in the first of seven windows of 4 requests one was kept
            assert (leak.pool, leak.cause, leak.blocks) == ("kv", "tensors", 21), leak
            assert leak.changes[0].kind.tag == "request-*" and leak.changes[0].size == 1 << 20
            """
        )
    )
    assert "pool kv grew by 21.00 MiB in 21 blocks in 6 windows" in done.stderr


def test_torch_s_history_gives_stacks_and_events(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from pyalloc.snapshots.model import own_frame
            before = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
            assert pyalloc.snapshot().devices[0].events.bytes == ()
            torch.cuda.memory._record_memory_history()

            def grow(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            kept = [grow(3 << 20), grow(1000)]
            del kept[0]
            taken = pyalloc.snapshot()
            (device,) = taken.devices
            assert device.events.bytes == (3 << 20, 1000, -(3 << 20))
            assert list(device.events.unix_us) == sorted(device.events.unix_us)
            assert abs(device.events.unix_us[-1] / 1000 - taken.unix_ms) < 10_000
            by_address = {block.address: block for block in device.blocks if block.state == "live"}
            assert by_address[before.data_ptr()].site == ()
            site = by_address[kept[0].data_ptr()].site
            assert own_frame(site).name == "grow" and own_frame(site).filename.endswith("program.py"), site
            assert "<module>" in {frame.name for frame in site}
            assert pyalloc.snapshot(sites=False).devices[0].blocks.sites == ()
            torch.cuda.memory._record_memory_history(None)
            assert pyalloc.snapshot().devices[0].events.bytes == ()
            """
        )
    )


def test_private_pools_are_there_under_torch_s_names_for_them(run_on_simgpu: Run, tmp_path: Path) -> None:
    run_on_simgpu(
        program(
            """
            import pickle, sys
            from pyalloc.snapshots.torch_pickle import torch_pickle
            pool = torch.cuda.MemPool()
            outside = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            with torch.cuda.use_mem_pool(pool), pyalloc.tag("in a pool"):
                inside = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
            taken = pyalloc.snapshot()
            (device,) = taken.devices
            assert device.exact
            (segment,) = [one for one in device.segments if one.pool == "private"]
            assert (segment.key_first, segment.key_second) == tuple(pool.id)
            (block,) = [one for one in device.blocks_of(segment) if one.state == "live"]
            assert (block.requested, block.address, block.tag) == (5 << 20, inside.data_ptr(), "in a pool")
            found = {tuple(one["segment_pool_id"]) for one in pickle.loads(torch_pickle(taken))["segments"]}
            assert found == {(0, 0), tuple(pool.id)}
            kinds = {change.kind.pool: change.bytes for change in pyalloc.diff(taken, pyalloc.snapshot()).pools}
            assert kinds == {}
            from pyalloc.snapshots.reading import loads
            assert loads(taken.dumps()) == taken
            """
        )
    )


@pytest.mark.skipif(ON_DEVICE, reason="makes the simulated driver fail")
def test_a_snapshot_that_cannot_be_had_is_an_error_and_the_next_one_is_there(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import os
            import pyalloc.simgpu
            x = torch.empty(3 << 20, device="cuda")
            simulation = pyalloc.simgpu.simulation()
            simulation.fail("cuMemGetInfo_v2", error=999)
            raises(pyalloc.DriverError, "cuMemGetInfo", pyalloc.snapshot)
            assert pyalloc.snapshot().devices[0].ledger.requested == 12 << 20
            child = os.fork()
            if child == 0:
                raises(pyalloc.StateError, "fork", pyalloc.snapshot)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """
        ),
        env={"PYALLOC_CONF": "maintenance:off,stats_page:off"},  # whose thread asks the driver as well
    )


@pytest.mark.parametrize("mode", ["allocator", "pools"])
def test_its_options_say_that_pyalloc_is_enabled(run_on_simgpu: Run, mode: str) -> None:
    run_on_simgpu(
        f"""
        import pyalloc
        from pyalloc.doctor import examine
        assert pyalloc.snapshot().options["enable"] == "off"
        assert pyalloc.enable(mode="{mode}", slack=0.5)
        taken = pyalloc.snapshot().options
        assert (taken["enable"], taken["mode"], taken["slack"]) == ("on", "{mode}", "0.5"), taken
        rows = {{row["key"]: (row["value"], row["origin"]) for row in examine()["options"]}}
        assert rows["enable"] == ("on", "argument") and rows["decay"] == ("10000", "default"), rows
        """
    )
