"""What is on the screen: a pure function of what the pages said, what the user chose, and the terminal's size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.text import Text

from .._words import counted
from ..stats_page import Device, Pool
from . import drawing
from .columns import Column, fitting, heading, line
from .drawing import Glyphs, Thresholds, ago, bar, clean, count, percent, size, sparkline, strip
from .model import DIED, ENDED, RUNNING, SILENT, SORT_KEYS, Process, Row, Selection, pools_in_use

VIEWS: Final = ("process", "pool", "tag", "event")

EMPTY: Final = """\
No process runs on pyalloc here.

A program can be seen from its first allocation on, while its option stats_page is on, as it is by default:

    PYALLOC_CONF=enable:True python train.py
    python -m pyalloc run train.py
    python -m pyalloc.simgpu --memory 8GiB -m pyalloc run train.py      with no GPU

Other users' programs need -u USER, and root. Where the pages are: {folder}
"""


@dataclass
class Screen:
    """What the user chose."""

    selection: Selection = field(default_factory=Selection)
    view: str = "process"
    glyphs: Glyphs = drawing.UNICODE
    thresholds: Thresholds = field(default_factory=Thresholds)
    width: int = 80
    height: int = 24
    cursor: int = 0
    top: int = 0  # the first line of the body that is shown
    detail: tuple[str, int] | None = None  # a row's key
    paused: bool = False
    help: bool = False
    prompt: str = ""  # what is being typed, with its name: "filter: ab"
    message: str = ""
    folder: str = ""
    marked: str = ""  # what the search marks
    jump: bool = False  # to the next of those


@dataclass(frozen=True)
class PoolRow:
    """A pool of a row."""

    row: Row
    pool: Pool


def limit_of(device: Device) -> int:
    """What the process may hold on the device."""
    return int(device.values.get("limit") or device.values.get("total") or 0)


def _pressure(row: Row) -> float:
    limit = limit_of(row.device)
    return row.device.allocated / limit if limit else 0.0


def _state(process: Process) -> str:
    return {RUNNING: "run", SILENT: "silent", ENDED: "ended", DIED: "died"}[process.state]


def _pid(row: Row, width: int) -> str:
    return f"{row.process.pid}{'' if row.process.same_namespace else '*'}"


def label(program: str) -> str:
    """A command line in few characters: without folders, and without the interpreter in front of a script."""
    words = clean(program).split(" ")
    words[0] = words[0].rpartition("/")[2]
    if len(words) > 1 and words[0].startswith("python") and not words[1].startswith("-"):
        words = [words[1].rpartition("/")[2], *words[2:]]
    return " ".join(words)


def process_columns(screen: Screen) -> list[Column[Row]]:
    """The main view's, the most important first."""
    glyphs, thresholds = screen.glyphs, screen.thresholds

    def use(row: Row, width: int) -> Text:
        share = _pressure(row)
        device = row.device
        drawn = bar(width - 1, device.allocated, device.reserved, limit_of(device), glyphs, thresholds.style(share))
        return drawn + thresholds.marked(share)

    def program(row: Row, width: int) -> str:
        return label(row.process.program)

    def age(row: Row, width: int) -> str:
        return ago(time.time() - (row.process.sample.process.get("opened_ms") or 0) / 1000)

    def history(row: Row, width: int) -> Text:
        return sparkline(width, row.track.reserved, glyphs)

    wide = screen.width >= 150
    return [
        Column("PID", 8, _pid, "pid"),
        Column("GPU", 3, lambda row, _: str(row.device.number)),
        Column("STATE", 6, lambda row, _: _state(row.process), right=False),
        Column("RESRVD", 7, lambda row, _: size(row.device.reserved), "reserved"),
        Column("ALLOC", 6, lambda row, _: size(row.device.allocated), "allocated"),
        Column("USE", 14, use, right=False),
        Column("FRAG", 5, lambda row, _: percent(row.device.effective_external_fragmentation), "fragmentation"),
        Column("PROGRAM", 30 if wide else 13, program, "program", right=False, grows=not wide),
        Column("ALLOC/s", 8, lambda row, _: count(row.track.rates["allocations"]), "rate"),
        Column("OOM", 4, lambda row, _: count(row.process.ooms), "oom"),
        Column("IDLE", 5, lambda row, _: size(row.device.idle), "idle"),
        Column("DRIVER/s", 9, lambda row, _: count(row.track.rates["driver_calls"]), "calls"),
        Column("STALLS/s", 8, lambda row, _: count(row.track.rates["stalls"])),
        Column("LIMIT", 6, lambda row, _: size(limit_of(row.device))),
        Column("HIGH", 6, lambda row, _: size(row.track.high)),
        Column("AGE", 5, age, "time"),
        Column("RESERVED, OVER TIME", 20, history, right=False, grows=wide),
    ]


def pool_columns(screen: Screen) -> list[Column[PoolRow]]:
    """The pools' view's, and the detail's."""
    glyphs, thresholds = screen.glyphs, screen.thresholds

    def use(one: PoolRow, width: int) -> Text:
        limit = int(one.pool.values.get("limit") or 0)
        share = one.pool.used / limit if limit else 0.0
        drawn = bar(width - 1, one.pool.allocated, one.pool.reserved, limit, glyphs, thresholds.style(share))
        return drawn + thresholds.marked(share)

    def segments(one: PoolRow, width: int) -> Text:
        cells = int(one.pool.values.get("cells") or 0)
        live, idle = one.pool.values.get("live_cells", b""), one.pool.values.get("idle_cells", b"")
        return strip(width, live[:cells], idle[:cells], glyphs)

    def figure(name: str) -> Callable[[PoolRow, int], str]:
        return lambda one, _: size(one.pool.values.get(name))

    return [
        Column("POOL", 10, lambda one, _: clean(one.pool.name), right=False),
        Column("RESRVD", 7, figure("reserved")),
        Column("ALLOC", 6, figure("allocated")),
        Column("IDLE", 5, lambda one, _: size(max(0, one.pool.reserved - one.pool.used))),
        Column("USE", 14, use, right=False),
        Column("FRAG", 5, lambda one, _: percent(one.pool.effective_external_fragmentation)),
        Column("SEGMENTS", 16, segments, right=False, grows=True),
        Column("BLOCKS", 6, lambda one, _: count(one.pool.values.get("blocks"))),
        Column("LIMIT", 6, lambda one, _: size(one.pool.values.get("limit") or None)),
        Column("PEAK", 6, figure("peak")),
        Column("LARGEST", 7, figure("largest_free")),
        Column("INTERN", 6, lambda one, _: percent(one.pool.internal_fragmentation)),
        Column("EXTERN", 6, lambda one, _: percent(one.pool.external_fragmentation)),
        Column("GRANUL", 6, lambda one, _: percent(one.pool.granule_fragmentation)),
        Column("RESERVE", 7, lambda one, _: size(one.pool.values.get("reserve") or None)),
    ]


def with_owner(columns: list[Column[PoolRow]]) -> list[Column[PoolRow]]:
    """The pools' columns behind those that say whose they are."""
    return [
        Column("PID", 8, lambda one, width: _pid(one.row, width)),
        Column("GPU", 3, lambda one, _: str(one.row.device.number)),
        *columns,
    ]


def device_lines(rows: Sequence[Row], screen: Screen) -> list[Text]:
    """One line for each GPU: what pyalloc's processes hold of it together, what others do, what is free."""
    of_gpu: dict[str, list[Row]] = {}
    for row in rows:
        if row.process.alive:
            of_gpu.setdefault(str(row.device.values.get("uuid") or row.device.number), []).append(row)
    lines = []
    for together in of_gpu.values():
        last = max(together, key=lambda row: row.process.sample.process["published_ns"]).device
        total, free = int(last.values.get("total") or 0), last.values.get("free")
        ours = sum(row.device.reserved + row.device.shelf for row in together)
        live = sum(row.device.allocated for row in together)
        others = None if free is None else max(0, total - ours - free)
        name = f"GPU {last.number} {clean(last.values['name'])}"
        share = 1 - free / total if total and free is not None else 0.0
        facts = f" pyalloc {size(ours)}, others {size(others)}, free {size(free)} of {size(total)}"
        room = max(10, screen.width - len(facts) - min(len(name), 28) - 3)
        drawn = bar(min(room, 60), live, ours, total, screen.glyphs, screen.thresholds.style(share))
        lines.append(Text.assemble(Text(f"{name[:28]} ", "bold"), drawn, screen.thresholds.marked(share), facts))
    return lines


def tag_lines(rows: Sequence[Row], width: int) -> list[Text]:
    """Who holds most, of every process shown."""
    columns: list[Column[tuple[Process, dict[str, Any]]]] = [
        Column("PID", 8, lambda one, _: str(one[0].pid)),
        Column("BYTES", 7, lambda one, _: size(one[1].get("bytes"))),
        Column("PEAK", 7, lambda one, _: size(one[1].get("peak_bytes"))),
        Column("BLOCKS", 7, lambda one, _: count(one[1].get("blocks"))),
        Column("ALLOCS", 7, lambda one, _: count(one[1].get("allocations"))),
        Column("TAG", 20, lambda one, _: clean(one[1]["name"]), right=False, grows=True),
    ]
    tags = [(process, tag) for process in _processes(rows) for tag in process.sample.tags]
    tags.sort(key=lambda one: one[1].get("bytes") or 0, reverse=True)
    fit = fitting(columns, width)
    return [heading(fit, "", ""), *(line(fit, one) for one in tags)]


def event_lines(rows: Sequence[Row], width: int) -> list[Text]:
    """The last things that happened, of every process shown, the newest first."""
    columns: list[Column[tuple[Process, dict[str, Any]]]] = [
        Column("AGO", 4, lambda one, _: ago(time.time() - (one[1].get("unix_ms") or 0) / 1000)),
        Column("PID", 8, lambda one, _: str(one[0].pid)),
        Column("GPU", 3, lambda one, _: count(one[1].get("device"))),
        Column("EVENT", 9, lambda one, _: clean(one[1]["kind"]), right=False),
        Column("BYTES", 7, lambda one, _: size(one[1].get("bytes"))),
        Column("TIMES", 6, lambda one, _: count(one[1].get("times"))),
        Column("POOL", 12, lambda one, _: clean(one[1].get("pool", "")), right=False, grows=True),
    ]
    events = [(process, event) for process in _processes(rows) for event in process.sample.events]
    events.sort(key=lambda one: one[1].get("unix_ms") or 0, reverse=True)
    fit = fitting(columns, width)
    return [
        heading(fit, "", ""),
        *(line(fit, one, "red" if one[1]["kind"] == "oom" else "") for one in events),
    ]


def _processes(rows: Sequence[Row]) -> list[Process]:
    return list({row.process.page: row.process for row in rows}.values())


def holding(rows: Sequence[Row], screen: Screen) -> list[Row]:
    """Without those that are over and so hold nothing, unless they were asked for by number."""
    return [row for row in rows if row.process.alive or row.process.pid in screen.selection.pids]


def body(rows: Sequence[Row], screen: Screen, width: int) -> tuple[list[Text], list[Text]]:
    """Heading and lines, so wide, of the view that is chosen."""
    if screen.view == "tag":
        lines = tag_lines(holding(rows, screen), width)
        return lines[:1], lines[1:]
    if screen.view == "event":
        lines = event_lines(rows, width)
        return lines[:1], lines[1:]
    if screen.view == "pool":
        fit = fitting(with_owner(pool_columns(screen)), width)
        pools = [PoolRow(row, pool) for row in holding(rows, screen) for pool in pools_in_use(row.device)]
        return [heading(fit, "", "")], [line(fit, one, _row_style(one.row)) for one in pools]
    columns = fitting(process_columns(screen), width)
    _, _, largest_first = SORT_KEYS[screen.selection.sort]
    order = screen.glyphs.order[0 if largest_first != screen.selection.invert else 1]
    return (
        [heading(columns, screen.selection.sort, order)],
        [line(columns, row, _row_style(row)) for row in rows],
    )


def _row_style(row: Row) -> str:
    return "" if row.process.alive else "dim"


def table(processes: Sequence[Process], screen: Screen) -> list[Text]:
    """Everything once, for --once and for what is no terminal."""
    rows = screen.selection.rows(processes)
    head, lines = body(rows, screen, screen.width)
    return [*device_lines(rows, screen), *head, *lines, *notes(rows, screen)]


def notes(rows: Sequence[Row], screen: Screen) -> list[Text]:
    """What marks in the table mean, of those that are there, and what is not."""
    found = []
    if screen.view in ("pool", "tag"):
        shown = holding(rows, screen)
        if left_out := len(_processes(rows)) - len(_processes(shown)):
            found.append(
                f"not here: {counted(left_out, 'process', 'processes')} that ended or died, and so hold nothing "
                "(see the view process, or name one with -p)"
            )
        rows = shown
    if any(not row.process.same_namespace for row in rows):
        found.append("* the number inside its container")
    if any(row.process.state == DIED for row in rows):
        found.append("died: killed or crashed; these are its last figures (--prune deletes them)")
    if any(row.process.state == ENDED for row in rows):
        found.append("ended: these are its last figures")
    if any(row.process.state == SILENT for row in rows):
        found.append("silent: alive, but it has not written its page lately: stopped, or very busy")
    return [Text(note, "dim") for note in found]
