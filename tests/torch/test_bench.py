"""The benchmarks on a tiny trace, as a user runs them: every key is there, and the figures are those of the trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, need

from pyalloc.errors import PyallocError
from pyalloc.simgpu import Settings, environment

pytestmark = pytest.mark.slow

MIB = 1 << 20
KEYS = {
    "ops",
    "live_peak_bytes",
    "reserved_peak_bytes",
    "ns_per_op",
    "driver_calls",
    "events",
    "waits",
    "device_syncs",
    "retries",
    "modelled_driver_us",
    "modelled_worst_us",
    "failed_at",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 MiB on stream 0, freed after stream 1 used it; then 10 MiB and 1 KiB in turn, up to five live."""
    rows = ["seq,op,id,bytes,stream,pool,time_us,tag"]

    def add(op: str, key: int, size: int, stream: int) -> None:
        rows.append(f"{len(rows) - 1},{op},{key},{size},{stream},default,{6 * len(rows)},")

    add("alloc", 0, 20 * MIB, 0)
    add("record", 0, 0, 1)
    add("free", 0, 0, 0)
    add("wait", 1, 0, 0)
    for i in range(1, 121):
        add("alloc", i, 10 * MIB if i % 2 else 1024, 0)
        if i > 4:
            add("free", i - 4, 0, 0)
    path = tmp_path_factory.mktemp("bench") / "tiny.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def bench(name: str, *arguments: str, fails: bool = False) -> dict[str, Any]:
    """Runs one benchmark with --json; the object on its last line, or {"error": ...} of one that should fail."""
    need(find_spec("torch"), "torch is not installed")
    try:
        environment(Settings(memory=1 << 30))
    except PyallocError as error:
        need(False, str(error))
    command = [sys.executable, str(ROOT / "tools" / "bench" / name), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=dict(os.environ))
    assert (done.returncode != 0) == fails, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    if fails:
        return {"error": done.stderr}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def test_replay_on_every_allocator(trace: Path) -> None:
    report = bench("replay.py", str(trace), "--validate", "20")
    results = {one["allocator"]: one for one in report["results"]}
    assert set(results) == {"pyalloc", "native", "expandable"}
    assert report["machine"]["cores"] >= 1
    assert {row["entry_point"] for row in report["costs"]} >= {"cuMemCreate", "cuMemAlloc"}
    for one in results.values():
        assert one.keys() >= KEYS
        assert one["failed_at"] is None
        assert one["violations"] == 0
        assert one["ops"] == 4 + 120 + 116
        assert one["live_peak_bytes"] == 30 * MIB + 2 * 1024
        assert one["reserved_peak_bytes"] >= one["live_peak_bytes"]
        assert one["ns_per_op"] > 0
        assert one["modelled_driver_us"] >= one["modelled_worst_us"] > 0
    assert results["pyalloc"]["validations"] >= 10
    native, expandable, ours = (results[name]["driver_calls"] for name in ("native", "expandable", "pyalloc"))
    assert set(native) == {"cuMemAlloc"}
    assert "cuMemAlloc" not in expandable
    assert "cuMemAlloc" not in ours
    for calls in (expandable, ours):
        assert calls["cuMemCreate"] > 0
        assert calls["cuMemMap"] >= calls["cuMemCreate"]
    # what native asked for is what the table charges for it, and nothing else
    mallocs = native["cuMemAlloc"]
    mib = results["native"]["reserved_peak_bytes"] / MIB
    (cost,) = (row for row in report["costs"] if row["entry_point"] == "cuMemAlloc")
    charged = cost["per_call"] * mallocs + cost["per_mib"] * mib
    assert results["native"]["modelled_driver_us"] == pytest.approx(charged, abs=0.1)


def test_a_device_too_small_is_a_result(trace: Path) -> None:
    result = bench("replay.py", str(trace), "--allocator", "pyalloc", "--capacity", "0.9x")
    assert result["failed_at"] is not None
    assert result["ops"] == result["failed_at"]
    assert "out of memory" in result["message"]
    assert result["reserved_peak_bytes"] <= result["capacity"]


def test_a_replay_repeats_exactly(trace: Path) -> None:
    first, second = (bench("replay.py", str(trace), "--allocator", "pyalloc", "--no-timing") for _ in range(2))
    for key in KEYS - {"ns_per_op"}:
        assert first[key] == second[key], key


def test_smallest_capacity(trace: Path) -> None:
    report = bench("min_capacity.py", str(trace), "--allocator", "pyalloc")
    (one,) = report["results"]
    assert one["live_peak_bytes"] <= one["smallest_bytes"] <= one["live_peak_bytes"] + 12 * MIB
    assert one["failed_bytes"] < one["smallest_bytes"]


def test_what_the_stats_page_costs() -> None:
    report = bench("page_cost.py", "--scale", "0.2", "--starts", "1")
    both = {"pyalloc", "pyalloc stats_page=off"}
    assert all(set(found) == both for found in report["ns"].values())
    assert all(set(found) == {"pyalloc stats_page=off"} for found in report["ratios"].values())
    (page,) = report["pages"]  # the other process wrote none
    assert page["publishes"] > 1
    assert page["us_each"] > 0


def test_latency_of_every_allocator() -> None:
    report = bench("latency.py", "--scale", "0.01", "--starts", "1", "--case", "core", "--case", "threads")
    assert set(report["ns"]) >= {"pair_fresh", "random_100000", "pair_churned", "threads_1", "threads_2"}
    for case, found in report["ns"].items():
        assert set(found) == {"pyalloc", "native", "expandable"}
        for one in found.values():  # two threads of a busy machine may never have had two cores
            assert one["median"] > 0 if one["rounds"] else case == "threads_2"
    for case in ("pair_fresh", "random_100000", "threads_1"):
        ratio = report["ratios"][case]["native"]
        assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
        assert ratio["rounds"] == report["ns"][case]["native"]["rounds"] >= 5
    assert "threads_4" in report["ratios"] or report["machine"]["cores"] < 4
    assert report["metadata"]["bytes_per_block"] > 0
    assert report["exact_peaks"]["pyalloc"] == {"1": True, "2": True, "4": True}


def test_small_adapters_fit_the_reserve_of_a_full_device() -> None:
    report = bench("lora_loads.py", "--loads", "150")
    ours, native, _ = report["results"]
    assert (ours["allocator"], ours["loads"], ours["driver_calls"], ours["overflowed_blocks"]) == ("pyalloc", 150, 0, 0)
    assert ours["unloaded_first"] == 0
    assert (native["allocator"], native["loads"]) == ("native", 150)


def test_images_in_slabs_and_without(tmp_path: Path) -> None:
    requests = tmp_path / "requests.csv"
    lines = [f"{i / 10},{i % 90},{' '.join(['700', '4000', '0'][: 1 + i % 3])}" for i in range(300)]
    requests.write_text("arrival_s,output_tokens,image_tokens_each\n" + "\n".join(lines) + "\n")
    report = bench("image_tokens.py", str(requests))
    assert report["requests"] == 300
    for one in report["results"]:
        assert one["violations"] == one["refused"] == 0
        assert 0 <= one["granule_mean"] <= one["granule_most"] < 0.5
    assert report["one_size_slabs"] > 1
    without, default = report["results"][:2]
    assert without["used_over_live"] < default["used_over_live"]
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    empty = tmp_path / "empty.csv"
    empty.write_text("arrival_s,output_tokens,image_tokens_each\n")
    assert "no request with an image" in bench("image_tokens.py", str(empty), fails=True)["error"]
    assert "expected at least 1" in bench("lora_loads.py", "--loads", "0", fails=True)["error"]
    assert "expected CSV with columns arrival_s" in bench("image_tokens.py", str(wrong), fails=True)["error"]


def test_a_case_that_fails_is_named() -> None:
    """Its job ends with one line, and the next job is served."""
    need(find_spec("torch"), "torch is not installed")
    program = """
import os
from benchlib.errors import BenchError
from benchlib.workers import ALL, Workers
options = {"cases": ["pair_fresh"], "scale": 0.01, "rounds": 1, "seconds": 0, "width": 0.1}
with Workers() as workers:
    try:
        workers.run("turns", ALL, options | {"allocators": ["native"], "cases": ["no_such_case"]})
    except BenchError as error:
        print(error)
    print(workers.run("turns", ALL, options | {"allocators": ["native", "pyalloc"]})["samples"])
"""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "bench")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=variables, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, samples = done.stdout.splitlines()
    assert "native: case 'no_such_case' is unknown" in refused
    assert samples.startswith("{'pair_fresh': {'native': [")
    assert "'pyalloc': [" in samples


def test_errors_are_one_line(trace: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    assert "line 1: 'a,b' is no known header" in bench("replay.py", str(wrong), fails=True)["error"]
    refused = bench("replay.py", str(trace), "--allocator", "pyalloc", "--option", "slak=1", fails=True)["error"]
    assert "slak" in refused
    assert "Traceback" not in refused
    assert "no capacity" in bench("replay.py", str(trace), "--capacity", "lots", fails=True)["error"]
