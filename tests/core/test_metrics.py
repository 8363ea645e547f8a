"""Metrics of a real core on the simulated GPU, without torch: the program's own endpoint and the exporter agree with
the core, and Prometheus's own tools find nothing wrong with the text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_server import Server
from support import need, offered

import pyalloc
from pyalloc import _native, simgpu

# Seconds that a Prometheus server scrapes under load; PYALLOC_SCRAPE_S=60 and pytest -s show a minute's figures.
SCRAPE_S = int(os.environ.get("PYALLOC_SCRAPE_S", "8"))

LOAD = """
import random, sys, time
from core_abi import MIB, Core
import pyalloc
core, live, choose = Core("memory:8GiB", ""), [], random.Random(int(sys.argv[1]))
while True:
    for _ in range(500):
        if len(live) > 300:
            core.free(live.pop(choose.randrange(len(live))))
        with pyalloc.pool(choose.choice(("kv", "weights", "general", "workspace"))):
            block = core.allocate(choose.choice((512, 100_000, 3 * MIB, 40 * MIB)))
        if block:
            live.append(block)
    time.sleep(0.001)
"""

PROGRAM = """
import ctypes, json, os, sys, urllib.error, urllib.request
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
    return urllib.request.urlopen(server.url.replace("/metrics", path), timeout=60).read().decode()

before = pyalloc.metrics.serve(0)
names = {name for name, _ in parsed(get(before, "/metrics"))}
assert names == {"pyalloc_build_info"} | {f"pyalloc_process_oom_{why}_total" for why in
                                         ("capacity", "limit", "fragmentation", "pinned")}, names
assert json.loads(get(before, "/health/capacity"))["processes"][0]["devices"] == []

core = Core("memory:1GiB", "lora_reserve:4MiB,maintenance:off")
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

# A driver that does not answer: no devices, one line, and the next scrape is whole.
from pyalloc import simgpu
import logging
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("pyalloc").addHandler(handler)
with pyalloc.metrics.serve(0) as server:
    for _ in range(2):
        assert core.gpu.simgpu_fail(b"cuMemGetInfo_v2", ctypes.c_int64(1), ctypes.c_int64(1), 999) == 0
        without = parsed(get(server, "/metrics"))
        assert not [key for key in without if "device" in key[0]]
        assert without["pyalloc_process_oom_capacity_total", frozenset()] == 1
    assert len(said) == 1 and said[0].startswith("metrics have no devices: "), said
    assert core.gpu.simgpu_fail(b"cuMemGetInfo_v2", ctypes.c_int64(1), ctypes.c_int64(1), 999) == 0
    try:
        get(server, "/health/capacity")
    except urllib.error.HTTPError as error:
        assert error.code == 503 and error.read().decode().startswith("cuMemGetInfo"), error
    else:
        raise AssertionError("a capacity that is not known")
    assert parsed(get(server, "/metrics")).keys() == own.keys()

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


def environment_of(folder: Path) -> dict[str, str]:
    """Of a program of this file, whose pages are to lie in the folder."""
    try:
        _native.library_path()
        simgpu.library_directory()
    except pyalloc.LibraryError as error:
        need(False, str(error))
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYALLOC_SHARED_FOLDER": str(folder)}


@pytest.fixture(scope="module")
def exposition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the exporter says of PROGRAM, which has checked it."""
    folder = tmp_path_factory.mktemp("metrics")
    environment = environment_of(folder)
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder / "metrics.txt")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / "metrics.txt"


def test_a_program_and_the_exporter_agree_with_the_core(exposition: Path) -> None:
    assert 'pool="kv"' in exposition.read_text()


def test_promtool_finds_nothing_to_complain_of(exposition: Path) -> None:
    offered(shutil.which("promtool"), "checking metrics needs promtool (Debian: prometheus)")
    with exposition.open() as text:
        done = subprocess.run(["promtool", "check", "metrics"], stdin=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_prometheus_scrapes_the_exporter_under_load(tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    (tmp_path / "load.py").write_text(LOAD)
    exporter = subprocess.Popen(
        [sys.executable, "-m", "pyalloc", "exporter", "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True
    )
    programs = [subprocess.Popen([sys.executable, str(tmp_path / "load.py"), str(n)], env=environment) for n in (1, 2)]
    try:
        assert exporter.stderr is not None
        port = int(exporter.stderr.readline().split(":")[-1].split("/")[0])
        begin = time.monotonic()
        with Server(tmp_path, port) as server:
            server.wait_for('pyalloc_exporter_pages{state="read"} == 2')
            time.sleep(SCRAPE_S / 2)
            programs[0].kill()  # between two scrapes, or in one
            time.sleep(SCRAPE_S / 2)
            allocations = f'rate(pyalloc_device_allocated_allocation_blocks_total{{pid="{programs[1].pid}"}}[WINDOW])'
            # On a busy machine they come later.
            server.wait_for('pyalloc_exporter_pages{state="left_behind"} == 1')
            server.wait_for(f"count_over_time(up[10m]) >= {SCRAPE_S / 4}")
            server.wait_for(allocations.replace("WINDOW", "10m") + " > 0")
            window = f"{int(time.monotonic() - begin) + 1}s"

            def figure(query: str) -> float:
                (series,) = server.query(query.replace("WINDOW", window))
                return float(series["value"][1])

            scrapes, answered = figure("count_over_time(up[WINDOW])"), figure("sum_over_time(up[WINDOW])")
            mean, most = (figure(f"{of}_over_time(scrape_duration_seconds[WINDOW])") for of in ("avg", "max"))
            samples = figure("max_over_time(scrape_samples_scraped[WINDOW])")
            rate = figure(allocations)
            print(
                f"{window}: {scrapes:.0f} scrapes, {scrapes - answered:.0f} failed, of up to {samples:.0f} samples, "
                f"{1e3 * mean:.1f} ms each, at most {1e3 * most:.1f}; {rate:,.0f} allocations a second in a program"
            )
            assert answered == scrapes
            assert rate > 0
            assert figure('pyalloc_exporter_pages{state="unreadable"}') == 0
            (target,) = server.ask("targets")["activeTargets"]
            assert target["lastError"] == ""
        assert "Traceback" not in server.log.read_text()
        exporter.terminate()
        assert exporter.wait(timeout=60) == 0
        assert exporter.stderr.read() == ""
    finally:
        for process in (exporter, *programs):
            process.kill()
            process.wait()
