"""One whole screen: title, devices, the view, and the line at the bottom; and what a key does to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from .detail import detail_lines
from .model import SORT_KEYS, Process, Row
from .view import EMPTY, VIEWS, Screen, body, device_lines, notes

HELP: Final = """\
q F10 Ctrl-C   quit                      h ? F1   this page; any key returns
arrows PgUp PgDn Home End                move, scroll
Enter          one process on one GPU, whole; Esc leaves it
Tab 1 2 3 4    processes, pools, tags, events
F6 < >         choose what sorts         I        turn the order round
M N T P        sort by reserved memory, number, time, allocations a second
F4 \\           show only what contains a text; Esc shows all
F3 /           mark what contains a text and go there; with no text, to the next
Space Z        stop the picture; reading goes on
R              forget the highest figures seen here

RESRVD mapped memory   ALLOC of live blocks   IDLE may move to a need
USE    {live} live  {idle} held beyond it  {rest} left of the limit; + from {look}, ! from {short}
FRAG   of free mapped memory, what no request could get though all idle moved
SEGMENTS of a pool, end to end: {full} full  {partly} partly used  {empty} idle
INTERN what rounding costs   EXTERN free memory beyond its longest run
GRANUL free memory in partly used pieces, of what is reserved
STALLS/s allocations that waited for the GPU   HIGH most reserved, as seen here
STATE  run; silent: it has not written lately; ended; died: killed or crashed
"""
_KEYS: Final = "h help  Enter detail  Tab view  F6 sort  F4 filter  Space pause  q quit"
_SORT_OF_KEY: Final = {"M": "reserved", "N": "pid", "T": "time", "P": "rate"}


def lines(processes: Sequence[Process], unreadable: Sequence[str], screen: Screen) -> list[Text]:
    """As many lines as the terminal has, none wider than it is."""
    shown = _help(screen) if screen.help else _page(processes, unreadable, screen)
    room = screen.height - 1
    shown = shown[:room] + [Text()] * max(0, room - len(shown))
    shown.append(_bottom(screen))
    for one in shown:
        one.truncate(screen.width)
    return shown


def _help(screen: Screen) -> list[Text]:
    glyphs, thresholds = screen.glyphs, screen.thresholds
    text = HELP.format(
        live=glyphs.live,
        idle=glyphs.idle,
        rest=glyphs.rest,
        look=f"{thresholds.look:.0%}",
        short=f"{thresholds.short:.0%}",
        full=glyphs.shades[-1],
        partly=glyphs.shades[1:-1],
        empty=glyphs.shades[0],
    )
    return [Text("pyalloc-top", "bold"), Text(), *(Text(one) for one in text.splitlines())]


def _page(processes: Sequence[Process], unreadable: Sequence[str], screen: Screen) -> list[Text]:
    rows = screen.selection.rows(processes)
    title = _title(rows, screen)
    if screen.detail is not None:
        row = next((row for row in rows if row.key == screen.detail), None)
        if row is not None:
            return [title, *_scrolled(detail_lines(row, screen), screen, screen.height - 2)]
        screen.detail = None
    if not processes:
        return [
            title,
            Text(),
            *(Text(one) for one in EMPTY.format(folder=screen.folder).splitlines()),
            *_bad(unreadable),
        ]
    above = [title, *device_lines(rows, screen), Text()]
    below = [*notes(rows, screen), *_bad(unreadable)]
    head, items = body(rows, screen, screen.width - 1)
    room = max(1, screen.height - 1 - len(above) - len(head) - len(below))
    if screen.jump:
        screen.jump = False
        _jump(items, screen)
    screen.cursor = max(0, min(screen.cursor, len(items) - 1))
    if screen.cursor < screen.top:
        screen.top = screen.cursor
    screen.top = max(0, min(max(screen.top, screen.cursor - room + 1), len(items) - 1))
    for item in items:
        if _is_marked(item, screen):
            item.stylize("bold yellow")
    if screen.cursor < len(items):
        items[screen.cursor].stylize("on grey23")
    pointers = [screen.glyphs.cursor if at == screen.cursor else " " for at in range(len(items))]
    pointed = [Text(pointer) + item for pointer, item in zip(pointers, items, strict=True)]
    return [*above, *(Text(" ") + one for one in head), *pointed[screen.top : screen.top + room], *below]


def _is_marked(item: Text, screen: Screen) -> bool:
    return bool(screen.marked) and screen.marked.lower() in item.plain.lower()


def _jump(items: Sequence[Text], screen: Screen) -> None:
    """To the next line that is marked, from the top again after the last."""
    found = [at for at, item in enumerate(items) if _is_marked(item, screen)]
    if found:
        screen.cursor = next((at for at in found if at > screen.cursor), found[0])
    else:
        screen.message = f"nothing here contains {screen.marked!r}"


def _scrolled(all_lines: list[Text], screen: Screen, room: int) -> list[Text]:
    screen.top = max(0, min(screen.top, len(all_lines) - room))
    return all_lines[screen.top : screen.top + room]


def _bad(unreadable: Sequence[str]) -> list[Text]:
    return [Text(one, "red") for one in unreadable]


def _title(rows: Sequence[Row], screen: Screen) -> Text:
    views = Text(" ").join(
        Text(f"{number}:{name}", "bold reverse" if name == screen.view and screen.detail is None else "dim")
        for number, name in enumerate(VIEWS, 1)
    )
    number = len({row.process.page for row in rows})
    facts = f"  {number} process{'' if number == 1 else 'es'}"
    if screen.selection.text:
        facts += f", filter {screen.selection.text!r}"
    paused = Text("  PAUSED", "bold black on yellow") if screen.paused else Text()
    return Text.assemble(("pyalloc-top  ", "bold"), views, facts) + paused


def _bottom(screen: Screen) -> Text:
    if screen.prompt:
        return Text(screen.prompt + screen.glyphs.live, "bold")
    return Text(screen.message or _KEYS, "reverse" if not screen.message else "bold")


def press(key: str, screen: Screen, processes: Sequence[Process]) -> bool:
    """What a key does. False: the user is done."""
    screen.message = ""
    if screen.prompt:
        _type(key, screen)
        return True
    if key in ("q", "f10", "ctrl-c"):
        return False
    if screen.help:
        screen.help = False
        return True
    rows = screen.selection.rows(processes)
    if key in ("h", "?", "f1"):
        screen.help = True
    elif key in ("up", "down", "pgup", "pgdn", "home", "end"):
        _move(key, screen)
    elif key == "enter" and screen.view == "process" and rows:
        screen.detail, screen.top = rows[min(screen.cursor, len(rows) - 1)].key, 0
    elif key == "esc":
        _leave(screen)
    elif key == "tab" or key in ("1", "2", "3", "4"):
        at = VIEWS.index(screen.view)
        screen.view = VIEWS[(at + 1) % len(VIEWS) if key == "tab" else int(key) - 1]
        screen.detail, screen.cursor, screen.top = None, 0, 0
    elif key in ("f6", "<", ">", *_SORT_OF_KEY):
        _sort(key, screen)
    elif key == "I":
        _select(screen, invert=not screen.selection.invert)
    elif key in ("f4", "\\"):
        screen.prompt = "filter: " + screen.selection.text
    elif key in ("f3", "/"):
        screen.prompt = "search: "
    elif key in ("space", "Z"):
        screen.paused = not screen.paused
    elif key == "R":
        for row in rows:
            row.track.high = row.device.reserved
        screen.message = "the highest figures begin again"
    return True


def _select(screen: Screen, **changes: object) -> None:
    screen.selection = dataclasses.replace(screen.selection, **changes)  # type: ignore[arg-type]


def _move(key: str, screen: Screen) -> None:
    step = {"up": -1, "down": 1, "pgup": 3 - screen.height, "pgdn": screen.height - 3}.get(key)
    if screen.detail is not None:
        screen.top = max(0, screen.top + step) if step is not None else 0 if key == "home" else 1 << 30
    else:
        screen.cursor = max(0, screen.cursor + step) if step is not None else 0 if key == "home" else 1 << 30


def _leave(screen: Screen) -> None:
    if screen.detail is not None:
        screen.detail, screen.top = None, 0
    elif screen.marked:
        screen.marked = ""
    else:
        _select(screen, text="")


def _sort(key: str, screen: Screen) -> None:
    names = list(SORT_KEYS)
    at = names.index(screen.selection.sort)
    name = _SORT_OF_KEY.get(key) or names[(at + (-1 if key == "<" else 1)) % len(names)]
    _select(screen, sort=name, invert=False)
    screen.message = f"sorted by {name}: {SORT_KEYS[name][0]}"


def _type(key: str, screen: Screen) -> None:
    what, _, text = screen.prompt.partition(": ")
    if key == "esc":
        screen.prompt = ""
        if what == "filter":
            _select(screen, text="")
        return
    if key == "enter":
        screen.prompt = ""
        if what == "search":
            screen.marked = text or screen.marked
            screen.jump = bool(screen.marked)
    elif key == "backspace":
        text = text[:-1]
    elif key == "space":
        text += " "
    elif len(key) == 1:
        text += key
    if key != "enter":
        screen.prompt = f"{what}: {text}"
    if what == "filter":
        _select(screen, text=text)
