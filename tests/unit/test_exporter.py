"""What `pyalloc exporter` says of the pages of a host: good, bad, hostile and gone."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import pytest
from exported_pages import GIB, alive, one_of, page, page_states, series, text

from pyalloc.metrics.capacity import capacity
from pyalloc.metrics.host import Host, program_name
from pyalloc.user_folder import user_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    alive.clear()
    return user_folder(os.geteuid())


def test_what_a_page_becomes() -> None:
    builder = page(program="/usr/bin/python3 serve.py --api-key secret", oom_limit=2)
    builder.write()
    found = series()
    labels = frozenset({"device": "0", "pid": "4711", "program": "serve.py"}.items())
    assert found["pyalloc_device_margin_bytes", labels] == 3 * GIB
    assert found["pyalloc_device_num_ooms_total", labels] == 7
    assert one_of(found, "pyalloc_process_oom_limit_total", pid="4711") == 2
    assert one_of(found, "pyalloc_pool_used_bytes", pool="general", pid="4711") == 3 << 29
    assert one_of(found, "pyalloc_pool_available_bytes", pool="general") == 3 * GIB
    assert one_of(found, "pyalloc_device_fragmentation_ratio", kind="external") == pytest.approx(0.75)
    assert one_of(found, "pyalloc_build_info", pid="4711", version="0.1.0") == 1
    assert one_of(found, "pyalloc_device_info", uuid="GPU-0", name="GPU of a test") == 1
    assert page_states(found) == {"read": 1, "left_behind": 0, "busy": 0, "unreadable": 0}
    assert "secret" not in text()


def test_no_process_at_all() -> None:
    found = series()
    assert {name for name, _ in found} == {"pyalloc_exporter_build_info", "pyalloc_exporter_pages"}
    assert not any(page_states(found).values())


def test_processes_of_two_containers_with_one_number() -> None:
    here, there = page(7), page(7, 4026531111)
    here.write()
    there.write()
    found = series()
    namespaces = {dict(labels).get("pid_namespace") for name, labels in found if name == "pyalloc_build_info"}
    assert namespaces == {None, "4026531111"}


def test_what_is_not_known_is_left_out() -> None:
    builder = page()
    builder.devices[0]["margin"] = -(1 << 63)
    builder.write()
    found = series()
    names = {name for name, _ in found}
    assert "pyalloc_device_margin_bytes" not in names
    assert "pyalloc_pool_available_bytes" not in names
    assert "pyalloc_device_used_bytes" in names
    (process,) = capacity(Host().look().processes)["processes"]
    assert process["devices"][0]["free_bytes"] is None
    assert process["devices"][0]["total_bytes"] is None


def test_bad_pages_among_a_good_one(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    page().write()
    other_version = page(1)
    other_version.write(other_version.content(version=9))
    torn = page(2)
    torn.write(torn.content(sequence=3))
    shorter = page(3)
    shorter.write(shorter.content()[:-100])
    (folder / "4026531836-4-99").write_bytes(b"not a page")
    (folder / "4026531836-5-99").mkdir()
    (folder / "4026531836-6-99").symlink_to("/etc/passwd")
    os.mkfifo(folder / "4026531836-7-99")
    damaged = page(8)
    damaged.write(damaged.content().replace(b'"tables"', b'"tablet"'))
    copied = page(9)
    copied.write(page().content())  # says that it is process 4711
    dead = page(10)
    dead.write()
    dead.die()
    (folder / "notes.txt").write_text("no page's name")
    host = Host()
    with caplog.at_level(logging.WARNING, logger="pyalloc"):
        found = series(host)
        assert page_states(found) == {"read": 1, "left_behind": 1, "busy": 1, "unreadable": 8}
        assert {dict(labels).get("pid") for _, labels in found} == {None, "4711"}
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 8
        assert all(str(folder) in line and "\n" not in line for line in said)
        assert series(host) == found
        assert len(caplog.records) == 8, "said once"
    assert len(list(folder.iterdir())) == 12, "nothing is deleted"


def test_a_process_killed_between_two_looks_at_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = page()
    builder.write(builder.content(sequence=3))
    monkeypatch.setattr("time.sleep", lambda _: builder.die())
    assert page_states(series()) == {"read": 0, "left_behind": 1, "busy": 0, "unreadable": 0}


def test_what_a_hostile_page_says_of_itself() -> None:
    builder = page(program='a"\\} 1\npyalloc_fake 2.py', version='"\n#')
    builder.pools += [dict(builder.pools[0]), {**builder.pools[0], "name": 'kv"} 1\n'}]
    builder.devices[0] |= {"info": 5, "info_total": 6, "x" * 200: 1}
    builder.described |= {"info": ("gauge", "blocks"), "info_total": ("counter", "blocks"), "idle": ("gauge", 'b"}\n')}
    builder.write()
    found = series()
    assert "pyalloc_fake" not in {name for name, _ in found}
    assert {dict(labels).get("program") for _, labels in found} == {None, "2.py"}
    used = [dict(labels)["pool"] for name, labels in found if name == "pyalloc_pool_used_bytes"]
    assert used == ["general", 'kv"} 1\n']


def test_more_devices_than_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page_builder.LARGEST", {"device": 100, "tag": 4, "event": 8, "pool": 16})
    builder = page()
    builder.devices = [{**builder.devices[0], "device": number} for number in range(65)]
    builder.write()
    assert page_states(series()) == {"read": 0, "left_behind": 0, "busy": 0, "unreadable": 1}


def test_more_figures_than_there_can_be() -> None:
    builder = page()
    builder.devices[0] |= {f"figure_{number}": number for number in range(1000)}
    builder.write()
    assert page_states(series()) == {"read": 0, "left_behind": 0, "busy": 0, "unreadable": 1}


def test_two_programs_that_describe_a_figure_differently() -> None:
    older, newer = page(1), page(2)
    newer.described |= {"margin": ("counter", "bytes")}
    older.write()
    newer.write()
    found = series()
    assert one_of(found, "pyalloc_device_margin_bytes", pid="1") == 3 * GIB
    assert not [labels for name, labels in found if name.startswith("pyalloc_device_margin") and ("pid", "2") in labels]
    assert one_of(found, "pyalloc_device_used_bytes", pid="2") == 3 << 29


def test_a_process_that_ends_between_scrapes() -> None:
    first, second = page(1), page(2)
    first.write()
    second.write()
    host = Host()
    assert page_states(series(host))["read"] == 2
    first.end()
    second.die()
    assert page_states(series(host)) == {"read": 0, "left_behind": 1, "busy": 0, "unreadable": 0}


def test_a_folder_that_is_somebody_else_s(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes folders of others")
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    assert page_states(series())["unreadable"] == 1


def test_root_sees_everybody(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root reads pages of others")
    page().write()
    theirs = folder.with_name("pyalloc-12345")
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    (theirs / "4026531836-4711-99").write_bytes(page(12).content())
    with (theirs / "4026531836-4711-99").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = series()
    users = {dict(labels).get("uid") for name, labels in found if name == "pyalloc_build_info"}
    assert users == {None, "12345"}


@pytest.mark.parametrize(
    ("command_line", "name"),
    [
        ("python train.py --token=abc", "train.py"),
        ("/opt/venv/bin/python3 -u /srv/app/serve.py", "serve.py"),
        ("python -m vllm.entrypoints.api --model x", "vllm.entrypoints.api"),
        ("python -m pyalloc.simgpu --memory 8GiB -m pyalloc run train.py", "train.py"),
        ("/usr/local/bin/llm-server --port 80", "llm-server"),
        ("python -c 1+1", "python"),
        ("python -m", "python"),
        ("", ""),
        ("x" * 100, "x" * 64),
    ],
)
def test_the_name_of_a_program(command_line: str, name: str) -> None:
    assert program_name(command_line) == name


def test_capacity() -> None:
    builder = page()
    builder.pools = [
        {**builder.pools[0], "name": "general", "used": 4 * GIB},
        {**builder.pools[0], "name": "kv", "used": 2 * GIB, "limit": 3 * GIB},
        {**builder.pools[0], "name": "full", "used": 4 * GIB, "limit": 3 * GIB},
        {**builder.pools[0], "name": "lora", "used": GIB, "reserve": GIB, "allocated": GIB // 4},
    ]
    builder.write()
    (process,) = capacity(Host().look().processes)["processes"]
    assert (process["pid"], process["program"]) == (4711, "serve.py")
    (device,) = process["devices"]
    assert (device["free_bytes"], device["total_bytes"]) == (3 * GIB, 3 * GIB + (3 << 29))
    assert {one["pool"]: (one["free_bytes"], one["total_bytes"]) for one in device["pools"]} == {
        "general": (3 * GIB, 7 * GIB),
        "kv": (GIB, 3 * GIB),
        "full": (0, 4 * GIB),
        "lora": (3 * GIB + GIB * 3 // 4, 4 * GIB),
    }
    assert all(one["free_blocks"] is one["total_blocks"] is None for one in [device, *device["pools"]])
