"""Metrics of torch programs: served from before pyalloc is enabled, in agreement with torch, with or without bridge."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Run

PROGRAM = """
import os, urllib.request
import pyalloc
server = pyalloc.metrics.serve(0)
import torch

def metrics():
    text = urllib.request.urlopen(server.url, timeout=60).read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}

before = metrics()
assert not any("device=" in name for name in before), before
assert pyalloc.enable(bridge=os.environ["BRIDGE"])
assert not any("device=" in name for name in metrics()), "asking makes no context"
assert not torch.cuda.is_initialized()
with pyalloc.pool("kv"):
    kept = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(9)]
del kept[::2]
found = metrics()
assert found['pyalloc_device_allocated_bytes{device="0"}'] == torch.cuda.memory_allocated()
assert found['pyalloc_device_reserved_bytes{device="0"}'] == torch.cuda.memory_reserved()
assert found['pyalloc_pool_requested_bytes{device="0",pool="kv"}'] == 4 * (3 << 20)
assert found['pyalloc_pool_ever_requested_bytes_total{device="0",pool="kv"}'] == 9 * (3 << 20)
(model,) = [name for name in found if name.startswith("pyalloc_device_info")]
with pyalloc.stats_page.StatsPage(page_of_this_process()) as page:
    (device,) = page.read().devices
assert f'name="{device.values["name"]}"' in model and f'uuid="{device.values["uuid"]}"' in model, model

# A forked child has no CUDA, and serves nothing; a collector of its own must not bring it down.
import sys
from prometheus_client import CollectorRegistry, generate_latest
child = os.fork()
if child == 0:
    registry = CollectorRegistry()
    registry.register(pyalloc.metrics.collector())
    os._exit(0 if b"pyalloc_build_info" in generate_latest(registry) else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert metrics()['pyalloc_device_allocated_bytes{device="0"}'] == torch.cuda.memory_allocated()
server.close()
"""

PAGE = """
import pyalloc.stats_page
from pyalloc._native import library

def page_of_this_process():
    library()._check(library()._dll.pyalloc_publish_stats_page())
    (path,) = [one for one in pyalloc.stats_page.page_files() if one.name.split("-")[1] == str(os.getpid())]
    return path
"""


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_what_a_program_serves(run_on_simgpu: Run, bridge: str, tmp_path: Path) -> None:
    # A folder of its own: a process that was killed may have had this one's number, and left its page.
    run_on_simgpu("import os\n" + PAGE + PROGRAM, env={"BRIDGE": bridge, "PYALLOC_SHARED_FOLDER": str(tmp_path)})
