"""Reading stats pages: what they say, and what is no page, or no longer one."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from page_builder import DEVICE, HEADER, PageBuilder

from pyalloc.stats_page import PageBusyError, PageError, PageTornError, StatsPage, page_files, prune
from pyalloc.user_folder import user_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    return user_folder(os.geteuid())


def test_what_a_page_says() -> None:
    builder = PageBuilder()
    builder.devices[0]["allocation"] = list(range(12))
    builder.tags = [{"name": "request-1", "bytes": 5}]
    path = builder.write()
    assert page_files() == [path]
    with StatsPage(path) as page:
        assert page.owner_alive
        sample = page.read()
    assert sample.process["program"] == "python serve.py"
    (device,) = sample.devices
    assert device.values["total"] == 8 << 30
    assert device.values["allocation.all.current"] == 0
    assert device.values["allocation.large_pool.freed"] == 11
    assert [pool.name for pool in device.pools] == ["general"]
    assert device.pools[0].values["live_cells"][:4] == bytes([255, 128, 1, 0])
    assert sample.tags == ({"name": "request-1", "bytes": 5},)


def test_fragmentation_is_that_of_the_ledger() -> None:
    from pyalloc.device_account import Ledger

    with StatsPage(PageBuilder().write()) as page:
        (device,) = page.read().devices
    figures = {name: value for name, value in DEVICE.items() if name not in ("name", "uuid")}
    others = {"outside": 0, "reserve": 0, "margin": 0, "activation_peak": 0, "asleep": 0, "offloaded": 0}
    others |= {"outside_by": None, "outside_unknown": ""}
    assert device.fragmentation() == Ledger(**figures, **others, pools=()).fragmentation()  # type: ignore[arg-type]
    assert device.external_fragmentation == pytest.approx(0.75)


def test_what_is_not_known() -> None:
    builder = PageBuilder()
    builder.devices[0]["free"] = -(1 << 63)
    with StatsPage(builder.write()) as page:
        assert page.read().devices[0].values["free"] is None


def test_its_owner_dies_or_ends() -> None:
    builder = PageBuilder()
    with StatsPage(builder.write()) as page:
        builder.die()
        assert not page.owner_alive
        assert page.left_behind
        assert page.read().process["pid"] == 4711
    builder.write()
    with StatsPage(builder.path) as page:
        assert page.owner_alive
        builder.end()
        assert not page.owner_alive
        assert not page.left_behind


def test_a_page_that_is_being_written() -> None:
    builder = PageBuilder()
    with StatsPage(builder.write(builder.content(sequence=3))) as page, pytest.raises(PageBusyError, match="written"):
        page.read()


def test_a_page_whose_process_was_killed_while_it_wrote() -> None:
    builder = PageBuilder()
    with StatsPage(builder.write(builder.content(sequence=3))) as page:
        with pytest.raises(PageBusyError) as busy:
            page.read()
        assert not isinstance(busy.value, PageTornError)
        builder.die()
        with pytest.raises(PageTornError, match="killed while it wrote"):
            page.read()


def test_a_write_that_ends_with_its_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PageBuilder()
    with StatsPage(builder.write(builder.content(sequence=3))) as page:

        def sleep(_: float) -> None:
            builder.write(builder.content(sequence=4))
            builder.die()

        monkeypatch.setattr("time.sleep", sleep)
        assert page.read().process["pid"] == 4711


def test_a_torn_copy_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PageBuilder()
    path = builder.write()
    read, times = os.pread, 0

    def pread(file: int, size: int, at: int) -> bytes:
        nonlocal times
        times += 1
        result = read(file, size, at)
        if times == 2:  # between the sequence and its second reading, the owner writes
            builder.process["program"] = "another"
            builder.write(builder.content(sequence=4))
        return result

    with StatsPage(path) as page:
        monkeypatch.setattr(os, "pread", pread)
        assert page.read().process["program"] == "another"
    assert times == 6


def test_another_version_is_refused_in_one_line() -> None:
    builder = PageBuilder()
    builder.write(builder.content(version=2))
    with pytest.raises(PageError, match="version 2, this pyalloc reads version 1") as caught:
        StatsPage(builder.path)
    assert "\n" not in str(caught.value)


def test_figures_that_this_viewer_does_not_know() -> None:
    builder = PageBuilder()
    builder.devices[0]["invented_later"] = 7
    with StatsPage(builder.write()) as page:
        assert page.read().devices[0].values["invented_later"] == 7


@pytest.mark.parametrize(
    "content",
    [b"", b"PYALLOC\0", b"not a page at all, but long enough to hold a header of one............", bytes(100_000)],
)
def test_files_that_are_no_pages(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "1-2-3").write_bytes(content)
    with pytest.raises(PageError, match="no stats page"):
        StatsPage(folder / "1-2-3")


def test_links_folders_and_pipes_are_not_opened(folder: Path) -> None:
    builder = PageBuilder()
    builder.write()
    (folder / "1-1-1").symlink_to(builder.path)
    (folder / "1-1-2").mkdir()
    os.mkfifo(folder / "1-1-3")
    (folder / "README").write_text("no page's name")
    assert [path.name for path in page_files()] == ["1-1-1", "1-1-2", "1-1-3", builder.path.name]
    for name in ("1-1-1", "1-1-2", "1-1-3"):
        with pytest.raises(PageError):
            StatsPage(folder / name)


def test_a_file_cut_short() -> None:
    builder = PageBuilder()
    whole = builder.content()
    for length in (len(whole) - 1, len(whole) // 2, HEADER.size):
        builder.write(whole[:length])
        with pytest.raises(PageError, match="damaged"):
            StatsPage(builder.path)
    builder.write(whole)
    with StatsPage(builder.path) as page:
        builder.write(whole[:-8])
        with pytest.raises(PageError, match="shorter"):
            page.read()


def spoiled(builder: PageBuilder, change: str) -> bytes:
    """The page with its description changed, in the same length or another."""
    content = builder.content()
    head = list(HEADER.unpack_from(content))
    described = json.loads(content[head[5] : head[5] + head[6]])
    device = next(table for table in described["tables"] if table["name"] == "device")
    exec(change, {"described": described, "device": device})
    text = json.dumps(described).encode()
    body = content[head[7] :]
    head[6], head[7] = len(text), head[5] + len(text)
    head[3] = head[7] + len(body)
    return HEADER.pack(*head) + text + body


@pytest.mark.parametrize(
    "change",
    [
        "device['capacity'] = 1 << 20",
        "device['capacity'] = -1",
        "device['offset'] = 1 << 62",
        "device['stride'] = 'wide'",
        "device['fields'][0]['offset'] = device['stride']",
        "device['fields'][0]['bytes'] = 1",
        "device['fields'][0]['type'] = 'pointer'",
        "device['fields'][0]['type'] = 'text'",
        "device['fields'][0]['name'] = 'Device\\n'",
        "device['fields'][0]['name'] = None",
        "device['fields'] = []",
        "device['name'] = 'devices'",
        "device['fields'] = 7",
        "described['tables'] = {}",
        "del described['tables']",
    ],
)
def test_hostile_descriptions(change: str) -> None:
    builder = PageBuilder()
    builder.write(spoiled(builder, change))
    with pytest.raises(PageError, match="damaged") as caught:
        StatsPage(builder.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 100_000, b"7", b"null", b'{"tables": [null]}'])
def test_descriptions_that_are_none(text: bytes) -> None:
    builder = PageBuilder()
    head = HEADER.pack(b"PYALLOC\0", 1, HEADER.size, HEADER.size + len(text), 2, HEADER.size, len(text), HEADER.size, 0)
    builder.write(head + text)
    with pytest.raises(PageError, match="damaged"):
        StatsPage(builder.path)


def test_counts_beyond_the_tables() -> None:
    builder = PageBuilder()
    content = bytearray(builder.content())
    head = HEADER.unpack_from(content)
    process = json.loads(content[head[5] : head[5] + head[6]])["tables"][0]
    at = head[7] + next(field["offset"] for field in process["fields"] if field["name"] == "pools")
    for wrong in (17, -1, 1 << 40, -(1 << 63)):
        struct.pack_into("<q", content, at, wrong)
        builder.write(bytes(content))
        with StatsPage(builder.path) as page, pytest.raises(PageError, match="damaged"):
            page.read()


def test_random_damage_is_read_or_refused() -> None:
    import random

    draw = random.Random(5)
    builder = PageBuilder()
    whole = builder.content()
    for _ in range(2000):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        builder.path.write_bytes(content)
        with contextlib.suppress(PageError), StatsPage(builder.path) as page:
            page.read()


def test_a_folder_of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page_files() == []
    folder.symlink_to("/tmp")
    with pytest.raises(PageError, match="no folder"):
        page_files()
    folder.unlink()
    folder.mkdir()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    (folder.parent / f"pyalloc-{uid + 1}").mkdir()
    with pytest.raises(PageError, match=f"belongs to uid {uid}"):
        page_files()


def test_prune_deletes_what_the_dead_left_and_nothing_else(folder: Path) -> None:
    alive, dead = PageBuilder(pid=1), PageBuilder(pid=2)
    alive.write()
    dead.write()
    dead.die()
    (folder / "7-7-7").write_bytes(b"not ours")
    (folder / "notes.txt").write_text("not ours either")
    assert prune() == [dead.path]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["7-7-7", "notes.txt", alive.path.name])
    assert prune() == []


def test_reading_loads_neither_torch_nor_the_library() -> None:
    program = """
        import sys
        import pyalloc.stats_page, pyalloc.top.cli, pyalloc.top.live
        assert "torch" not in sys.modules
        assert "pyalloc._native" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
