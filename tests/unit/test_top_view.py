"""What pyalloc-top shows, as text, for pages of the test's making."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_builder import HEADER, POOL, PageBuilder

from pyalloc.top import drawing, frame
from pyalloc.top.model import SORT_KEYS, Process, Selection, records
from pyalloc.top.reading import Reader
from pyalloc.top.view import VIEWS, Screen, table

GIB = 1 << 30
RUNNING: list[PageBuilder] = []  # programs that live until the test's end
COUNTERS = ("num_device_alloc", "num_device_free", "stream_waits", "num_alloc_retries")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    yield
    RUNNING.clear()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def program(pid: int = 4711, **figures: int) -> PageBuilder:
    builder = PageBuilder(pid=pid, program=f"/usr/bin/python3 /srv/serve_{pid}.py --big")
    builder.devices[0].update({"allocation": [5] * 12, **dict.fromkeys(COUNTERS, 0), **figures})
    builder.write()
    RUNNING.append(builder)
    return builder


def text_of(processes: list[Process], reader: Reader, screen: Screen) -> str:
    lines = frame.lines(processes, reader.unreadable, screen)
    assert len(lines) == screen.height
    assert all(line.cell_len <= screen.width for line in lines)
    return "\n".join(line.plain.rstrip() for line in lines)


def test_the_main_view(reader: Reader) -> None:
    program(101, reserved=4 * GIB)
    program(102)
    text = text_of(reader.look(), reader, Screen(width=80, height=24))
    assert "GPU 0 GPU of a test" in text
    assert "pyalloc 6.00G, others 0B, free 5.00G of 8.00G" in text
    rows = [line for line in text.splitlines() if " run " in line]
    assert [row.strip("▶ ").split()[0] for row in rows] == ["101", "102"]
    assert rows[0].startswith("▶")
    assert "4.00G" in rows[0]
    assert "serve_101.py" in rows[0]
    assert "2.00G" in rows[1]
    assert "RESRVD▼" in text


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("height", [5, 24, 60])
@pytest.mark.parametrize("glyphs", [drawing.UNICODE, drawing.ASCII])
def test_every_view_fits_every_terminal(reader: Reader, width: int, height: int, glyphs: drawing.Glyphs) -> None:
    builder = program(101)
    builder.tags = [{"name": "request-1", "bytes": 5, "peak_bytes": 6, "blocks": 1, "allocations": 9}]
    builder.process.update(oom_limit=2, last_oom="CUDA out of memory. " * 20)
    builder.write()
    for pid in range(102, 140):
        program(pid)
    processes = reader.look()
    for view in VIEWS:
        screen = Screen(width=width, height=height, glyphs=glyphs, view=view)
        text = text_of(processes, reader, screen)
        if glyphs is drawing.ASCII:
            assert text.isascii()
    screen = Screen(width=width, height=height, glyphs=glyphs)
    for key in ("end", "enter", "end", "home", "h"):
        frame.press(key, screen, processes)
        text = text_of(processes, reader, screen)
        assert glyphs is drawing.UNICODE or text.isascii()


def test_wider_terminals_show_more_and_keep_the_order(reader: Reader) -> None:
    program()
    processes = reader.look()

    def titles(width: int) -> list[str]:
        lines = table(processes, Screen(width=width))
        return lines[1].plain.split()

    narrow, wide = titles(80), titles(200)
    assert wide[: len(narrow) - 1] == narrow[:-1]
    assert "PROGRAM" in narrow
    assert {"STALLS/s", "LIMIT", "HIGH"} <= set(wide) - set(narrow)


def test_rates_are_the_growth_of_counters(reader: Reader) -> None:
    builder = program(num_device_alloc=10)
    (process,) = reader.look()
    assert process.tracks[0].rates["allocations"] is None
    builder.advance(2.0)
    builder.devices[0]["allocation"][2] += 5000
    builder.devices[0]["num_device_alloc"] += 10
    builder.write()
    (process,) = reader.look()
    assert process.tracks[0].rates["allocations"] == pytest.approx(2500)
    assert process.tracks[0].rates["driver_calls"] == pytest.approx(5)
    assert process.tracks[0].rates["stalls"] == 0
    reader.look()  # the same page again is no new sample
    assert len(process.tracks[0].reserved) == 2
    builder.advance()
    builder.devices[0]["num_device_alloc"] = 1  # somebody reset it
    builder.write()
    reader.look()
    assert process.tracks[0].rates["driver_calls"] is None


def test_a_process_that_ends_or_dies_stays_and_says_so(reader: Reader) -> None:
    ends, dies = program(101), program(102)
    reader.look()
    ends.end()
    dies.die()
    text = text_of(reader.look(), reader, Screen(width=100))
    assert "101   0 ended" in text
    assert "102   0 died" in text
    assert "--prune" in text
    dies.path.unlink()
    assert [process.pid for process in reader.look()] == [101]


def test_a_process_that_begins_again_is_one(reader: Reader) -> None:
    builder = program(101)
    reader.look()
    builder.end()  # as pyalloc_shutdown() does
    assert [process.state for process in reader.look()] == ["ended"]
    builder.write()
    assert [process.state for process in reader.look()] == ["running"]


def test_a_process_that_stands_still_is_silent(reader: Reader) -> None:
    builder = program()
    builder.process["published_ms"] -= 60_000
    builder.write()
    text = text_of(reader.look(), reader, Screen())
    assert "silent" in text


def test_a_container_s_number_is_marked(reader: Reader) -> None:
    builder = PageBuilder(pid=7, pid_namespace=12345)
    builder.write()
    text = text_of(reader.look(), reader, Screen())
    assert "7*" in text
    assert "inside its container" in text


def test_no_process_at_all_teaches(reader: Reader) -> None:
    text = text_of(reader.look(), reader, Screen(width=120, folder="/dev/shm/pyalloc-0"))
    assert "python -m pyalloc run train.py" in text
    assert "/dev/shm/pyalloc-0" in text


def test_bad_pages_are_named_beside_the_others(reader: Reader) -> None:
    builder = program(101)
    (builder.path.parent / "1-2-3").write_bytes(builder.content(version=9))
    text = text_of(reader.look(), reader, Screen(width=200))
    assert "version 9" in text
    assert " run " in text


def test_what_others_wrote_cannot_command_the_terminal(reader: Reader) -> None:
    builder = program()
    builder.process["program"] = "evil\x1b[2J\x07 [bold]name[/bold]"
    builder.devices[0]["name"] = "GPU\x9b2J"
    builder.tags = [{"name": "a\x1b]0;title\x07\nb"}]
    builder.process.update(oom_limit=1, last_oom="\x1b[31mred")
    builder.write()
    processes = reader.look()
    for view in VIEWS:
        text = text_of(processes, reader, Screen(width=200, view=view))
        assert not any(char != "\n" and not char.isprintable() for char in text)
    assert "[bold]name[/bold]" in text_of(processes, reader, Screen(width=200))


def test_keys(reader: Reader) -> None:
    program(101, reserved=4 * GIB)
    program(102)
    processes = reader.look()
    screen = Screen(width=100, height=40)

    def press(*keys: str) -> str:
        for key in keys:
            assert frame.press(key, screen, processes)
        return text_of(processes, reader, screen)

    assert "Space pause" in press()
    assert "turn the order round" in press("h")
    assert "turn the order round" not in press("x")  # any key returns
    assert "SEGMENTS, END TO END" in press("down", "enter")
    assert "serve_102.py" in press()
    assert "SEGMENTS, END TO END" not in press("esc")
    assert screen.selection.sort == "reserved"
    press("N")
    assert [row.process.pid for row in screen.selection.rows(processes)] == [101, 102]
    press("I")
    assert [row.process.pid for row in screen.selection.rows(processes)] == [102, 101]
    assert "sorted by time" in press(">")
    assert "filter: 10" in press("f4", "1", "0")
    assert "serve_101" not in press("2", "enter")
    assert "serve_101" in press("esc")
    assert "PAUSED" in press("space")
    assert "PAUSED" not in press("Z")
    assert "POOL" in press("tab")
    assert "EVENT" in press("4")
    screen.cursor = 0
    press("1", "/", "s", "e", "r", "v", "e", "_", "x", "backspace", "enter")
    assert (screen.marked, screen.cursor) == ("serve_", 1)
    press("/", "enter")
    assert screen.cursor == 0  # from the top again
    assert "nothing here contains 'zz'" in press("/", "z", "z", "enter")
    press("esc")
    assert screen.marked == ""
    processes[0].tracks[0].high = 1 << 60
    press("R")
    assert processes[0].tracks[0].high == processes[0].sample.devices[0].reserved
    assert not frame.press("q", screen, processes)
    assert not frame.press("f10", screen, processes)
    assert not frame.press("ctrl-c", screen, processes)


def test_the_detail_of_a_process(reader: Reader) -> None:
    builder = program(101, lora_overflows=3, reserve=64 << 20)
    builder.pools.append({**POOL, "pool": 2, "name": "kv", "limit": 3 * GIB, "allocated": 2 * GIB, "used": 2 * GIB})
    builder.tags = [{"name": "request-1", "bytes": 5 << 20, "peak_bytes": 6 << 20, "blocks": 1, "allocations": 9}]
    builder.events = [
        {"unix_ms": builder.process["opened_ms"], "kind": "oom", "device": 0, "pool": "kv", "bytes": GIB, "times": 2}
    ]
    builder.process.update(oom_limit=2, last_oom="CUDA out of memory. Tried to allocate 1.00 GiB.")
    builder.write()
    screen = Screen(width=120, height=60)
    processes = reader.look()
    frame.press("enter", screen, processes)
    text = text_of(processes, reader, screen)
    for wanted in ("LoRA reserve 64.0M", "overflows 3", "request-1", "oom", "Tried to allocate 1.00 GiB", "limit 2"):
        assert wanted in text, wanted
    assert "external 75%" in text
    (general,) = (line for line in text.splitlines() if line.startswith("general  ") and "%" not in line)
    assert len(general.split()[1]) > 90  # four cells, as long as their share of the line
    assert set(general.split()[1]) == set("█▓░·")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0B"), (512, "512B"), (1000, "0.98K"), (1536, "1.50K"), (64 << 20, "64.0M"), (999 << 20, "999M"), (None, "-")],
)
def test_sizes(value: int | None, text: str) -> None:
    assert drawing.size(value) == text
    assert len(drawing.size(value)) <= 5


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12.3k"), (4_560_000, "4.6M"), (None, "-")]
)
def test_counts(value: float | None, text: str) -> None:
    assert drawing.count(value) == text


def test_bars_say_the_same_without_colour() -> None:
    assert drawing.bar(8, 2, 4, 8, drawing.ASCII, "").plain == "##==...."
    assert drawing.bar(8, 0, 0, 8, drawing.ASCII, "").plain == "........"
    assert drawing.bar(8, 1, 100, 8, drawing.ASCII, "").plain[0] == "#"  # what is there is seen
    thresholds = drawing.Thresholds()
    assert [thresholds.mark(share) for share in (0.5, 0.8, 0.95)] == [" ", "+", "!"]


def test_sparklines() -> None:
    assert drawing.sparkline(4, [0, 1, 4, 8], drawing.UNICODE).plain == " ▁▄█"
    assert drawing.sparkline(6, [8], drawing.ASCII).plain == "     @"
    assert drawing.sparkline(3, [], drawing.ASCII).plain == "   "


def test_selection(reader: Reader) -> None:
    for pid in (101, 102, 103):
        program(pid)
    processes = reader.look()
    assert len(Selection(pids=frozenset({101, 103})).rows(processes)) == 2
    assert Selection(devices=frozenset({1})).rows(processes) == []
    assert len(Selection(text="SERVE_102").rows(processes)) == 1


def spoil(content: bytes, table: int, field: int, kind: str) -> bytes:
    """The page with a field of another type than it should be, in a description of the same length."""
    head = HEADER.unpack_from(content)
    description = content[head[5] : head[5] + head[6]]
    described = json.loads(description)
    fields = described["tables"][table]["fields"]
    fields[field % len(fields)] |= {"type": kind, "bytes": 8}
    text = json.dumps(described).encode()
    return content[: head[5]] + text.ljust(len(description))[: len(description)] + content[head[7] :]


def test_a_page_with_figures_of_any_kind_and_size_is_shown_or_refused(reader: Reader) -> None:
    builder = program(101, lora_overflows=3, reserve=64 << 20)
    builder.tags = [{"name": "request-1", "bytes": 5 << 20, "peak_bytes": 6 << 20, "blocks": 1, "allocations": 9}]
    builder.events = [{"unix_ms": 1, "kind": "oom", "device": 0, "pool": "kv", "bytes": GIB, "times": 2}]
    builder.process.update(oom_limit=2, last_oom="CUDA out of memory.", padding=" " * 200)
    draw = random.Random(3)
    extremes = (0, -1, 1, (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1)
    plain = [dict(row) for row in (builder.process, builder.devices[0], builder.pools[0], builder.tags[0])]
    shown = 0
    for round_number in range(150):
        for row, was in zip(
            (builder.process, builder.devices[0], builder.pools[0], builder.tags[0]), plain, strict=True
        ):
            row.update(was)
            for name in draw.sample(sorted(row), 3):
                if isinstance(row[name], int) and name not in ("pid", "device"):
                    row[name] = draw.choice(extremes)
        content = builder.content()
        if round_number % 2:
            content = spoil(content, draw.randrange(5), draw.randrange(40), draw.choice(("int64", "text", "cells")))
        builder.write(content)
        processes = reader.look()
        json.dumps(records(Selection().rows(processes)))
        for view in VIEWS:
            text_of(processes, reader, Screen(width=150, view=view))
        screen = Screen(width=90, height=70)
        frame.press("enter", screen, processes)
        text_of(processes, reader, screen)
        for key in SORT_KEYS:
            Selection(sort=key).rows(processes)
        shown += bool(processes)
    assert shown > 50
