"""History under record_stream, on several streams, devices and threads: each story can be gone back, entry by entry."""

from __future__ import annotations

from pathlib import Path

import viewer
from bridge_program import program
from conftest import Run

PRELUDE = """
import gc, random, sys, threading
target = sys.argv[1]

def make(bytes_, device=0):
    return torch.empty(bytes_, dtype=torch.uint8, device=f"cuda:{device}")

def actions(device=0):
    return [entry["action"] for entry in M._snapshot()["device_traces"][device]
            if not entry["action"].startswith("segment_") and entry["action"] != "snapshot"]
"""


def test_a_free_is_completed_when_the_other_stream_is_done(run_on_simgpu: Run, tmp_path: Path) -> None:
    """Blocks of record_stream are requested to be freed, shown as waiting, and completed later, before any reuse."""
    run_on_simgpu(
        program(
            PRELUDE,
            """
            side = torch.cuda.Stream()
            source = make(64 << 20)
            M._record_memory_history()
            for size in (1000, 100 << 10, 5 << 20):  # a slot, a lane's extent, an extent
                M._record_memory_history(clear_history=True)
                x = make(size)
                with torch.cuda.stream(side):
                    source[:size].copy_(x)           # the simulated stream has work to do
                x.record_stream(side)
                address = x.data_ptr()
                del x
                blocks = [block for segment in M.memory_snapshot() for block in segment["blocks"]]
                states = {block["address"]: block["state"] for block in blocks}
                assert states[address] == "active_pending_free", states[address]
                assert actions() == ["alloc", "free_requested"], actions()
                torch.cuda.synchronize()
                torch.cuda.empty_cache()             # looks at what waits
                y = make(size)                       # may take its place
                told = actions()
                assert told.count("free_completed") == 1, told
                if y.data_ptr() == address:
                    assert told == ["alloc", "free_requested", "free_completed", "alloc"], told
                del y
            M._dump_snapshot(target)
            """,
        ),
        streams="deferred",
        env={"PYALLOC_CONF": "maintenance:off"},
        args=[str(tmp_path / "snapshot.pickle")],
    )
    viewer.load(tmp_path / "snapshot.pickle")


def test_a_snapshot_while_a_block_is_being_handed_out(run_on_simgpu: Run, tmp_path: Path) -> None:
    """Taken by an observer of mappings, so while the block stands in the heap and its thread has not told of it yet."""
    run_on_simgpu(
        program(
            PRELUDE,
            """
            from pyalloc._abi import MAPPING_OBSERVER
            from pyalloc._native import library
            taken = []
            def on_mapping(context, event):
                taken.append(len(taken))
                M._dump_snapshot(f"{target}.{len(taken)}")
            observer = MAPPING_OBSERVER(on_mapping)
            library().add_mapping_observer(observer, 1)  # before the history's own
            M._record_memory_history(stacks="python")
            kept = [make(100), make(5 << 20)]  # a slot, an extent
            with torch.cuda.stream(torch.cuda.Stream()):
                kept.append(make(300 << 10))   # another lane's extent
            assert len(taken) == 3, taken
            assert actions() == ["alloc"] * 3, actions()  # once each, the snapshot's told ones too
            del kept
            assert actions() == ["alloc"] * 3 + ["free_requested", "free_completed"] * 3, actions()
            library().remove_mapping_observer(observer)
            M._dump_snapshot(f"{target}.4")
            """,
        ),
        args=[str(tmp_path / "snapshot")],
    )
    for number in range(1, 5):
        viewer.load(tmp_path / f"snapshot.{number}")


def test_threads_streams_and_short_memory(run_on_simgpu: Run, tmp_path: Path) -> None:
    """Memory is moved, given back and reused across streams by four threads, while one of them takes snapshots."""
    run_on_simgpu(
        program(
            PRELUDE,
            """
            first = make(1), make(1, 1)
            failures = []
            def work(seed):
                try:
                    chance = random.Random(seed)
                    device = seed % 2
                    with torch.cuda.stream(torch.cuda.Stream(device)):
                        kept = []
                        for step in range(300):
                            try:
                                kept.append(make(int(2 ** chance.uniform(9, 27)), device))
                            except torch.OutOfMemoryError:
                                del kept[: len(kept) // 2 + 1]
                                continue
                            if chance.random() < 0.3:
                                kept[-1].record_stream(torch.cuda.default_stream(device))
                            while len(kept) > 10:
                                del kept[chance.randrange(len(kept))]
                            if chance.random() < 0.01:
                                torch.cuda.empty_cache()
                            if seed == 0 and step % 60 == 59:
                                M._dump_snapshot(f"{target}.{step}")
                except BaseException as error:
                    failures.append(error)
            M._record_memory_history(stacks="python")
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures
            gc.collect()
            torch.cuda.synchronize()
            M._dump_snapshot(f"{target}.last")
            M._record_memory_history(max_entries=100)
            work(1)
            assert not failures, failures
            M._dump_snapshot(f"{target}.short")
            """,
        ),
        memory="1GiB",
        devices=2,
        streams="deferred",
        args=[str(tmp_path / "snapshot")],
    )
    dumped = sorted(tmp_path.glob("snapshot.*"))
    assert len(dumped) == 7
    for path in dumped:
        viewer.load(path)
    whole = viewer.load(tmp_path / "snapshot.last")
    for device, trace in enumerate(whole["device_traces"]):
        told = {entry["action"] for entry in trace}
        assert {"alloc", "free_requested", "free_completed", "segment_map", "segment_unmap"} <= told
        segments = [one for one in whole["segments"] if one["device"] == device]
        assert viewer.go_back(segments, trace)["blocks"] == 1  # the one made before the history began
        assert all(one["stream"] == 0 for one in segments if one["segment_type"] == "large")


def test_a_process_that_forks_while_history_is_recorded(run_on_simgpu: Run) -> None:
    """A child may not use CUDA, but it frees what it inherited; another thread may have held every lock meanwhile."""
    run_on_simgpu(
        program(
            """
            import os, threading
            M._record_memory_history()
            held = [torch.empty(1000, device="cuda") for _ in range(50)]
            stop = threading.Event()
            def churn():
                while not stop.is_set():
                    torch.empty(5000, device="cuda")
            threads = [threading.Thread(target=churn) for _ in range(2)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    held.clear()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            stop.set()
            for thread in threads:
                thread.join()
            """
        ),
        timeout=120,
    )
