"""Dumped snapshots: every rule of torch's viewer, torch's own tools, and what pyalloc adds."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import viewer
from bridge_program import program
from conftest import Run

WORK = """
import sys
target = sys.argv[1]

def make(bytes_, device=0):
    return torch.empty(bytes_, dtype=torch.uint8, device=f"cuda:{device}")

before = make(7 << 20)
M._record_memory_history()
sizes = (100, 4096, 200 << 10, 1 << 20, 3 << 20, 100 << 20)
with pyalloc.pool("weights"):
    weights = [make(size) for size in sizes]
with pyalloc.pool("kv"):
    kv = [make(size) for size in sizes]
general = [make(size) for size in sizes * 3]
with torch.cuda.stream(torch.cuda.Stream()):
    general += [make(size) for size in sizes]
del general[::2]
try:
    make(1 << 50)
except torch.OutOfMemoryError:
    pass
torch.cuda.empty_cache()
weights.append(make(30 << 20, 1))
M._snapshot()
M._dump_snapshot(target)
"""


def test_every_rule_of_the_viewer(run_on_simgpu: Run, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    run_on_simgpu(
        program(
            WORK,
            """
            # The segments are the reserved memory, and each block is where torch has it.
            taken = M._snapshot()
            for device in (0, 1):
                segments = [segment for segment in taken["segments"] if segment["device"] == device]
                stats = torch.cuda.memory_stats(device)
                assert sum(segment["total_size"] for segment in segments) == stats["reserved_bytes.all.current"]
                assert sum(segment["active_size"] for segment in segments) == stats["active_bytes.all.current"]
                assert len(segments) == stats["segment.all.current"]
            assert taken["segments"] == torch.cuda.memory_snapshot()
            live = {block["address"]: block for segment in taken["segments"] for block in segment["blocks"]
                    if block["state"] == "active_allocated"}
            assert set(live) == {x.data_ptr() for x in (before, *weights, *kv, *general)}
            assert live[before.data_ptr()]["frames"] == [] and live[kv[0].data_ptr()]["frames"]
            """,
        ),
        devices=2,
        args=[str(path)],
    )
    snapshot = viewer.load(path)
    trace = snapshot["device_traces"][0]
    told = {entry["action"] for entry in trace}
    assert told == {"alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "oom", "snapshot"}
    (oom,) = [entry for entry in trace if entry["action"] == "oom"]
    assert oom["size"] == 1 << 50
    assert 0 < oom["device_free"] < 8 << 30
    assert "addr" not in oom
    assert {entry["action"] for entry in snapshot["device_traces"][1]} == {"segment_map", "alloc", "snapshot"}
    first = viewer.go_back([one for one in snapshot["segments"] if one["device"] == 0], trace)
    assert first["blocks"] == 1
    assert first["mapped"] >= 7 << 20
    # Pools have names, and torch's ids stay free for torch's own pools.
    by_pool: dict[str, set[int]] = {}
    for entry in trace:
        if entry["action"] == "alloc":
            by_pool.setdefault(entry["user_metadata"], set()).add(entry["size"])
            assert entry["pool_id"] == (0, 0)
    assert set(by_pool) == {"weights", "kv", ""}
    assert by_pool["kv"] == by_pool["weights"]
    assert all(segment["segment_pool_id"] == (0, 0) for segment in snapshot["segments"])
    assert all(segment["is_expandable"] for segment in snapshot["segments"])
    assert any(frame["name"] == "make" for frame in oom["frames"])


def test_torch_s_tools_read_it(run_on_simgpu: Run, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    run_on_simgpu(program(WORK), devices=2, args=[str(path)])

    def tool(*arguments: str) -> str:
        command = [sys.executable, "-m", "torch.cuda._memory_viz", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    stats = tool("stats", str(path))
    assert "total_reserved" in stats
    assert "total_allocated" in stats
    told = tool("trace", str(path))
    assert "Device 0" in told
    assert "Device 1" in told
    assert "raise OutOfMemoryError" in told
    for kind in ("trace_plot", "segment_plot"):
        tool(kind, str(path), "-o", f"{kind}.html")
        assert "MemoryViz.js" in (tmp_path / f"{kind}.html").read_text()


@pytest.mark.complaint(53)
def test_the_viewer_rejects_newer_pickle_protocols(run_on_simgpu: Run, tmp_path: Path) -> None:
    """Python 3.14 writes protocol 5 unless told otherwise, which the viewer cannot read; so does pickle here."""
    path = tmp_path / "snapshot.pickle"
    run_on_simgpu(
        textwrap.dedent("""
        import pickle
        as_it_is = pickle.dump
        def dump(value, file, protocol=5, **options):
            as_it_is(value, file, protocol=protocol, **options)
        pickle.dump, pickle.DEFAULT_PROTOCOL = dump, 5
        """)
        + program(WORK),
        devices=2,
        args=[str(path)],
    )
    viewer.load(path)


@pytest.mark.complaint(54)
def test_integers_the_viewer_s_numbers_cannot_hold(run_on_simgpu: Run, tmp_path: Path) -> None:
    """No address, stream or size reaches 2**53, nor does what was asked for in vain."""
    path = tmp_path / "snapshot.pickle"
    run_on_simgpu(
        program(
            """
            import sys
            M._record_memory_history()
            kept = []
            for stream in (torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1),
                           torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)):
                with torch.cuda.stream(stream):
                    kept += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1, 5 << 20)]
            try:
                torch.empty((1 << 63) - 1, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
            M._dump_snapshot(sys.argv[1])
            """
        ),
        args=[str(path)],
    )
    viewer.load(path)


def test_snapshots_without_caching(run_on_simgpu: Run, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    run_on_simgpu(
        program(
            """
            import sys
            M._record_memory_history()
            x = torch.empty(1000, dtype=torch.uint8, device="cuda")
            y = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
            segments = torch.cuda.memory_snapshot()
            assert sorted(segment["total_size"] for segment in segments) == [1000, 5 << 20]
            assert sum(segment["total_size"] for segment in segments) == torch.cuda.memory_reserved()
            del x
            M._dump_snapshot(sys.argv[1])
            """
        ),
        env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        args=[str(path)],
    )
    viewer.load(path)
