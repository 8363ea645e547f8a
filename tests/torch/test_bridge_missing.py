"""What happens where something is missing: no driver, no library, no compiler, a damaged cache; and what doctor and
`pyalloc run` say and do.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from conftest import Run
from support import gpu_present, need

SHOW = """
print(torch.cuda.get_allocator_backend(), pyalloc.is_enabled())
"""


@pytest.fixture
def need_hook() -> None:
    """Skips where pyalloc is only importable: torch finds its hook through the installed package's entry point."""
    hooks = {hook.name for hook in entry_points(group="torch.backends")}
    need("pyalloc" in hooks, "pyalloc is not installed, only importable: its torch.backends hook is missing")


def environment_without_driver(variables: Mapping[str, str]) -> dict[str, str]:
    need(not gpu_present(), "needs a machine without a CUDA driver")
    return {
        name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "PYALLOC_SIMGPU")
    } | variables


def run_without_driver(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment_without_driver(variables),
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_driver_torch_stays_as_it_is(tmp_path: Path) -> None:
    done = run_without_driver("import pyalloc, torch; print(pyalloc.enable())" + SHOW, tmp_path)
    assert done.stdout == "False\nnative False\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert "native CUDA allocator stays" in line
    assert "libcuda.so.1" in line


@pytest.mark.usefixtures("need_hook")
def test_without_a_driver_the_hook_says_so_too(tmp_path: Path) -> None:
    done = run_without_driver("import torch, pyalloc" + SHOW, tmp_path, PYALLOC_CONF="enable:True")
    assert done.stdout == "native False\n", done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("need_hook")
def test_the_environment_can_require_the_bridge(tmp_path: Path) -> None:
    done = run_without_driver("import torch", tmp_path, PYALLOC_CONF="enable:True,bridge:require")
    assert done.returncode != 0
    assert "bridge:require was asked for" in done.stderr
    done = run_without_driver(
        "import pyalloc; pyalloc.enable()", tmp_path, PYALLOC_CONF="bridge:require", PYALLOC_LIBRARY="/nowhere/lib.so"
    )
    assert done.returncode != 0
    assert "BridgeError" in done.stderr
    assert "/nowhere/lib.so" in done.stderr


def test_without_a_library(tmp_path: Path) -> None:
    program = "import pyalloc, torch; print(pyalloc.enable())" + SHOW
    done = run_without_driver(program, tmp_path, PYALLOC_LIBRARY="/nowhere/lib.so")
    assert done.stdout == "False\nnative False\n"
    assert "/nowhere/lib.so" in done.stderr


@pytest.mark.usefixtures("need_hook")
def test_the_hook_costs_import_torch_less_than_five_milliseconds(tmp_path: Path) -> None:
    # Processor time, after what torch has imported by then: `import torch` itself takes seconds and varies by more.
    program = """
import sys, time, typing, importlib.metadata
before = set(sys.modules)
start = time.process_time()
from pyalloc._autoload import autoload
autoload()
print(time.process_time() - start)
assert {name for name in set(sys.modules) - before if name.startswith("pyalloc")} == {"pyalloc", "pyalloc._autoload"}
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYALLOC_CONF"}
    costs = []
    for _ in range(20):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        costs.append(float(done.stdout))
    assert statistics.median(costs) < 0.005


def test_a_bridge_that_cannot_be_compiled(run_on_simgpu: Run, tmp_path: Path) -> None:
    program = """
        import pyalloc
        print(pyalloc.enable())
        import torch
        x = torch.empty(1 << 20, device="cuda")
        print(torch.cuda.memory_allocated(), torch.cuda.get_allocator_backend())
        """
    environment = {"CXX": "/bin/false", "PYALLOC_CACHE": str(tmp_path / "cache")}
    done = run_on_simgpu(program, env=environment)
    assert done.stdout == "True\n4194304 pluggable\n"
    assert "pyalloc runs without its torch bridge" in done.stderr
    assert "null pointer instead of torch.OutOfMemoryError" in done.stderr
    required = run_on_simgpu(program, env={**environment, "PYALLOC_CONF": "bridge:require"}, fails=True)
    assert "BridgeError: compiling the torch bridge failed" in required.stderr


def test_the_bridge_is_compiled_into_an_empty_cache_and_used_again(run_on_simgpu: Run, tmp_path: Path) -> None:
    # The temporary directory as well: a bridge kept there, for want of a home that can be written, would be used.
    environment = {"PYALLOC_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    program = "import pyalloc; assert pyalloc.enable(bridge='require')"
    first = run_on_simgpu(program, env=environment)
    assert "compiling the torch bridge for torch" in first.stderr
    assert run_on_simgpu(program, env=environment).stderr == ""
    (library,) = (tmp_path / "cache").glob("*/libpyalloc_bridge.so")
    library.write_bytes(library.read_bytes()[:1000])
    assert "compiling the torch bridge for torch" in run_on_simgpu(program, env=environment).stderr


def test_a_bridge_for_another_torch_is_refused(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import dataclasses, pyalloc
        from pyalloc import bridge_build
        bridge = bridge_build.ensure_bridge()
        try:
            bridge_build.load_bridge(dataclasses.replace(bridge, key="of another torch"))
        except pyalloc.BridgeError as error:
            assert "compiled for another torch" in str(error)
        else:
            raise AssertionError("loaded")
        """
    )


def test_a_torch_replaced_on_disk_is_not_compiled_against(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc, torch
        from pyalloc import bridge_build
        bridge_build.target()
        torch.version.git_version = "0123456789"     # as of the torch that was there when this program imported it
        try:
            pyalloc.enable(bridge="require")
        except pyalloc.BridgeError as error:
            assert "has been replaced since torch" in str(error), error
        else:
            raise AssertionError("enabled")
        assert torch.cuda.get_allocator_backend() == "native"
        """
    )


def test_doctor(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
        import json, sys
        import pyalloc.simgpu
        from pyalloc import doctor
        report = doctor.examine()
        assert report["ready"], report
        assert report["torch"]["allocator"] == "native"
        assert report["driver"]["simulated"] is pyalloc.simgpu.active() and report["driver"]["missing"] == []
        assert [device["vmm"] for device in report["devices"]] == [True, True]
        assert report["devices"][0]["memory"] == 8 << 30 or not pyalloc.simgpu.active()
        assert report["bridge"]["state"] in ("cached", "compiled")
        assert report["virtuals_not_covered"] == []
        options = {row["key"]: row for row in report["options"]}
        assert (options["slack"]["value"], options["slack"]["origin"]) == ("0.5", "environment")
        json.dumps(report)
        sys.exit(doctor.main(as_json=False))
        """,
        devices=2,
        env={"PYALLOC_CONF": "slack:0.5"},
    )
    assert "PROBLEM" not in done.stdout
    assert "pyalloc can run here with its bridge" in done.stdout


def test_doctor_without_a_driver(tmp_path: Path) -> None:
    done = run_without_driver("import sys; from pyalloc import doctor; sys.exit(doctor.main(as_json=False))", tmp_path)
    assert done.returncode == 1
    assert "PROBLEM" in done.stdout
    assert "libcuda.so.1" in done.stdout


def test_run_passes_the_choice_to_children(run_on_simgpu: Run, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        """
import multiprocessing, os, sys, torch, pyalloc

def child(queue):
    x = torch.empty(1 << 20, device="cuda")
    queue.put((torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated()))

if __name__ == "__main__":
    assert sys.argv[1:] == ["--flag"] and pyalloc.is_enabled() and "slack:0.5" in os.environ["PYALLOC_CONF"]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=120), torch.cuda.get_allocator_backend())
    process.join()
"""
    )
    hooks = {hook.name for hook in entry_points(group="torch.backends")}
    program = "import sys; from pyalloc.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = run_on_simgpu(program, args=["run", "--conf", "slack:0.5,bridge:require", str(script), "--flag"])
    need("pyalloc" in hooks, "pyalloc is not installed, only importable: its torch.backends hook is missing")
    assert done.stdout == "('pyalloc', 4194304) pyalloc\n"
