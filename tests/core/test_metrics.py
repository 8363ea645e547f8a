"""Metrics of a real core on the simulated GPU, without torch: the program's own endpoint and the exporter agree with
the core, and Prometheus's own tools find nothing wrong with the text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import need

import pyalloc
from pyalloc import _native, simgpu

PROGRAM = """
import json, os, sys, urllib.request
from core_abi import MIB, Core
import pyalloc
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyalloc.metrics.collectors import HostCollector
from pyalloc.metrics.host import Host

def parsed(text):
    found, extra = {}, ("pid", "pid_namespace", "uid", "program")
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name not in extra)
            found[sample.name, labels] = sample.value
    return found

def get(server, path):
    return urllib.request.urlopen(server.url.replace("/metrics", path), timeout=30).read().decode()

before = pyalloc.metrics.serve(0)
names = {name for name, _ in parsed(get(before, "/metrics"))}
assert names == {"pyalloc_build_info"} | {f"pyalloc_process_oom_{why}_total" for why in
                                         ("capacity", "limit", "fragmentation", "pinned")}, names
assert json.loads(get(before, "/health/capacity"))["processes"][0]["devices"] == []

core = Core("memory:1GiB", "lora_reserve:4MiB")
blocks = []
for number in range(120):
    with pyalloc.pool(("kv", "weights", "general", "lora")[number % 4]), pyalloc.tag(f"request-{number}"):
        blocks.append(core.allocate(512 + number * 40_000))
for block in blocks[::3]:
    core.free(block)
assert core.allocate(2 << 30) is None
pyalloc.create_pool("kv", limit="256MiB")
assert core.dll.pyalloc_publish_stats_page() == 0

own = parsed(get(before, "/metrics"))
before.close()
REGISTRY.register(pyalloc.metrics.collector())
of_registry = parsed(generate_latest(REGISTRY).decode())
assert own.keys() <= of_registry.keys() and any(name.startswith("python_") for name, _ in of_registry)
try:
    REGISTRY.register(pyalloc.metrics.collector())
except ValueError as error:
    assert "pyalloc_device_margin_bytes" in str(error)
else:
    raise AssertionError("registered twice")

ledger, stats = pyalloc.ledger(0), pyalloc.device_stats(0)
on_device = frozenset({("device", "0")})
for name in ("total", "free", "used", "idle", "margin", "requested", "set_aside", "largest_free"):
    assert own[f"pyalloc_device_{name}_bytes", on_device] == getattr(ledger, name), name
assert own["pyalloc_device_peak_reserved_bytes", on_device] == stats["reserved_bytes"]["all"]["peak"]
assert own["pyalloc_device_allocated_allocation_blocks_total", on_device] == 120
assert own["pyalloc_device_freed_allocation_blocks_total", on_device] == 40
assert own["pyalloc_device_num_ooms_total", on_device] == 1
assert own["pyalloc_process_oom_capacity_total", frozenset()] == 1
assert (stats["idle_bytes"], stats["shelf_bytes"]) == (ledger.idle, ledger.shelf), "two fields, one name"
for name in ("requested", "allocated", "reserved"):
    assert stats[f"{name}_bytes"]["all"]["current"] == getattr(ledger, name), name
for kind, share in ledger.fragmentation().items():
    assert own["pyalloc_device_fragmentation_ratio", on_device | {("kind", kind)}] == share
for pool in pyalloc.pools(0):
    labels = on_device | {("pool", pool.name)}
    assert own["pyalloc_pool_blocks", labels] == pool.blocks
    assert own["pyalloc_pool_limit_bytes", labels] == (pool.limit or 0)
    assert own["pyalloc_pool_ever_requested_bytes_total", labels] == pool.requested_total
assert not any("request-" in str(key) for key in own), "tags have no place here"

# The exporter says the same of this process, and what only a page has.
registry = CollectorRegistry()
registry.register(HostCollector(Host()))
text = generate_latest(registry).decode()
exported = parsed(text)
moving = {"pyalloc_device_metadata_bytes"}  # the core's own books
for key, value in own.items():
    assert key[0] in moving or exported[key] == value, (key, value, exported[key])
only_there = {name for name, _ in exported} - {name for name, _ in own}
assert "pyalloc_process_published_seconds" in only_there and "pyalloc_device_info" in only_there
open(sys.argv[1], "w").write(text)
core.close()
"""


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the exporter says of PROGRAM, which has checked it."""
    try:
        _native.library_path()
        simgpu.library_directory()
    except pyalloc.LibraryError as error:
        need(False, str(error))
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYALLOC_SHARED_FOLDER": str(folder),
    }
    command = [sys.executable, str(folder / "program.py"), str(folder / "metrics.txt")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / "metrics.txt"


def test_a_program_and_the_exporter_agree_with_the_core(exposition: Path) -> None:
    assert 'pool="kv"' in exposition.read_text()


def test_promtool_finds_nothing_to_complain_of(exposition: Path) -> None:
    need(shutil.which("promtool"), "checking metrics needs promtool (Debian: prometheus)")
    with exposition.open() as text:
        done = subprocess.run(["promtool", "check", "metrics"], stdin=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
