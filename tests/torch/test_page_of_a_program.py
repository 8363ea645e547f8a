"""The stats page of a real program: what others read of it is what it says of itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from conftest import Run

from pyalloc.stats_page import StatsPage

PROGRAM = r"""
    import ctypes, json, subprocess, sys, torch, pyalloc
    pyalloc.enable(bridge="{bridge}")
    with pyalloc.pool("weights"):
        weights = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    with pyalloc.pool("kv"), pyalloc.tag("request-7"):
        cache = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
    del cache[::2]
    if "{bridge}" == "require":
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
    assert ctypes.CDLL(pyalloc.library_path()).pyalloc_publish_stats_page() == 0
    top = [sys.executable, "-m", "pyalloc.top.cli", "--once", "--json"]
    seen = json.loads(subprocess.run(top, check=True, stdout=subprocess.PIPE).stdout)
    fields = subprocess.run([*top[:3], "--fields"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "device.reserved\tgauge\tbytes\tmapped granules of all pools" in fields
    assert all(line.split("\t")[3] for line in fields.splitlines()), fields
    print(json.dumps({{"seen": seen, "ledger": pyalloc.ledger().as_dict()}}))
"""


def check(seen: dict[str, object], ledger: dict[str, object]) -> dict[str, object]:
    (process,) = seen["processes"]  # type: ignore[attr-defined, misc]
    (device,) = process["devices"]
    for name in set(device) & set(ledger) - {"device", "pools", "fragmentation"}:
        assert device[name] == ledger[name], name
    assert device["fragmentation"] == ledger["fragmentation"]
    assert len(device["pools"]) == len(ledger["pools"])  # type: ignore[arg-type]
    for of_page, of_ledger in zip(device["pools"], ledger["pools"], strict=True):  # type: ignore[call-overload]
        for name in set(of_page) & set(of_ledger) - {"limit"}:
            assert of_page[name] == of_ledger[name], (of_page["name"], name)
    assert device["name"]
    assert device["uuid"].startswith("GPU-")
    assert [(tag["name"], tag["bytes"]) for tag in process["tags"]] == [("request-7", 30 << 20)]
    return dict(process)


def test_others_read_what_the_program_says_of_itself(run_on_simgpu: Run, tmp_path: Path) -> None:
    done = run_on_simgpu(PROGRAM.format(bridge="require"), env={"PYALLOC_SHARED_FOLDER": str(tmp_path)})
    process = check(**json.loads(done.stdout.splitlines()[-1]))
    assert process["oom_capacity"] == 1
    assert "1024.00 GiB" in str(process["last_oom"])
    assert [event["kind"] for event in process["events"]] == ["oom"]  # type: ignore[attr-defined]
    assert list(tmp_path.glob("*/*-*-*")) == []  # it took its page along


def test_also_without_the_bridge(run_on_simgpu: Run, tmp_path: Path) -> None:
    done = run_on_simgpu(PROGRAM.format(bridge="off"), env={"PYALLOC_SHARED_FOLDER": str(tmp_path)})
    check(**json.loads(done.stdout.splitlines()[-1]))


def test_none_with_stats_page_off(run_on_simgpu: Run, tmp_path: Path) -> None:
    program = """
        import time, torch, pyalloc
        pyalloc.enable(stats_page=False)
        torch.empty(8, device="cuda")
        time.sleep(1)
    """
    run_on_simgpu(program, env={"PYALLOC_SHARED_FOLDER": str(tmp_path)})
    assert list(tmp_path.glob("pyalloc-*")) == []


def test_children_have_pages_of_their_own_or_none(run_on_simgpu: Run, tmp_path: Path) -> None:
    program = """
        import os, time, torch, pyalloc, pyalloc.stats_page as pages
        pyalloc.enable()
        child = os.fork()  # before CUDA is used
        if child:
            os.waitpid(child, 0)
        torch.empty(8, device="cuda")
        while not any(f"-{os.getpid()}-" in path.name for path in pages.page_files()):
            time.sleep(0.05)
        if not child:
            os._exit(0)
        later = os.fork()
        if later == 0:
            os._exit(0)
        os.waitpid(later, 0)
        own, = [path for path in pages.page_files() if f"-{os.getpid()}-" in path.name]
        with pages.StatsPage(own) as page:
            assert page.owner_alive
    """
    run_on_simgpu(program, env={"PYALLOC_SHARED_FOLDER": str(tmp_path)})


def test_a_killed_program_leaves_its_last_figures(tmp_path: Path) -> None:
    program = """
        import time, torch, pyalloc
        pyalloc.enable(bridge="off")
        block = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        print("ready", flush=True)
        time.sleep(120)
    """
    environment = {**os.environ, "PYALLOC_SHARED_FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "pyalloc.simgpu", "--memory", "1GiB", "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running_pages: list[Path] = []
        while not running_pages:
            running_pages = list(tmp_path.glob("pyalloc-*/*-*-*"))
        with StatsPage(running_pages[0]) as page:
            assert page.owner_alive
            os.kill(page.read().process["pid"], signal.SIGKILL)
            running.wait(60)
            assert not page.owner_alive
            assert page.left_behind
            assert page.read().devices[0].values["allocated"] >= 30 << 20
    top = [sys.executable, "-m", "pyalloc.top.cli"]
    shown = subprocess.run([*top, "--once"], env=environment, capture_output=True, text=True, check=True)
    assert " died " in shown.stdout
    subprocess.run([*top, "--prune"], env=environment, check=True)
    assert list(tmp_path.glob("pyalloc-*/*-*-*")) == []


def test_doctor_in_the_program_names_its_page(run_on_simgpu: Run, tmp_path: Path) -> None:
    done = run_on_simgpu(
        """
        import ctypes, os, torch, pyalloc
        from pyalloc import doctor
        pyalloc.enable()
        x = torch.empty(1, device="cuda")
        assert ctypes.CDLL(pyalloc.library_path()).pyalloc_publish_stats_page() == 0
        facts = doctor.examine()["stats_page"]
        assert os.path.dirname(facts["page"]) == facts["folder"] and os.listdir(facts["folder"]) == [
            os.path.basename(facts["page"])
        ]
        doctor.main(as_json=False)
        print(facts["page"])
        """,
        env={"PYALLOC_SHARED_FOLDER": str(tmp_path)},
    )
    lines = done.stdout.splitlines()
    assert f"{'':9}of this process: {lines[-1]}" in lines
