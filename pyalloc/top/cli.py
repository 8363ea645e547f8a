"""The command line of pyalloc-top.

Exit codes: 0 done; 1 what was asked for could not be read; 2 a wrong command line; 3 there was nothing to show;
130 interrupted while it wrote JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pwd
import sys
import time
from collections.abc import Sequence
from typing import Any

from .._output import until_closed
from ..stats_page import PageError, StatsPage, page_files, prune
from ..user_folder import user_folder
from . import drawing
from .model import SCHEMA, SORT_KEYS, Process, Selection, records
from .reading import Reader
from .view import EMPTY, VIEWS, Screen, table

LEAST_DELAY_S = 0.1
BETWEEN_SAMPLES_S = 0.25  # of --once: pages are written every 0.1 s, and rates need two
PIPED_WIDTH = 200

_EXAMPLES = """\
examples:
  pyalloc-top                       every process of yours that runs on pyalloc
  pyalloc-top --once --view pool    a table of their pools
  pyalloc-top --once --json | jq '.processes[].devices[] | {reserved, allocated}'
  pyalloc-top --json -d 10 >log     one object a line, every ten seconds
  pyalloc-top -s help               what one may sort by
exit code: 0 done, 1 it cannot be read, 2 a wrong command line, 3 nothing to show
"""


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description="Shows the GPU memory of processes that run on pyalloc, pool by pool. It reads what each of them "
        "keeps in shared memory, and disturbs none.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-p", "--pid", type=int, action="append", default=[], metavar="PID", help="only this process; may be repeated")
    add(
        "-d", "--delay", type=_delay, default=1.0, metavar="SEC", help="time between two looks (default: 1, least: 0.1)"
    )
    add("-n", "--iterations", type=_positive, metavar="N", help="stop after N looks")
    add("-1", "--once", action="store_true", help="print one table, and stop; without a terminal it does that anyway")
    add("--json", action="store_true", help="print JSON: with --once one object, else one a line at each look")
    add(
        "-s",
        "--sort",
        default="reserved",
        metavar="KEY",
        help="what rows are sorted by (default: reserved); -s help lists the keys",
    )
    add("-r", "--reverse", action="store_true", help="reverse the order")
    add(
        "-F",
        "--filter",
        default="",
        metavar="TEXT",
        help="only what has this in its process number, command line or GPU",
    )
    add("-u", "--user", type=_user, metavar="USER", help="another user's processes (needs root)")
    add("--device", type=int, action="append", default=[], metavar="N", help="only this GPU; may be repeated")
    add(
        "--view",
        choices=VIEWS,
        default="process",
        help="a row for each of these (default: process); pools and tags are those of living processes",
    )
    add(
        "--thresholds",
        type=_thresholds,
        default=drawing.Thresholds(),
        metavar="A,B",
        help="percent from which a bar is yellow, and red (default: 75,90)",
    )
    add("-U", "--ascii", action="store_true", help="only ASCII characters")
    add("--no-color", action="store_true", help="no colours; NO_COLOR does the same")
    add("--fields", action="store_true", help="list what each figure in the JSON means, with its unit, and stop")
    add("--prune", action="store_true", help="delete what dead processes left in shared memory, and stop")
    add("-V", "--version", action="store_true", help="show the version, and stop")
    return parser


def _delay(text: str) -> float:
    with contextlib.suppress(ValueError):
        if LEAST_DELAY_S <= (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}; expected seconds, at least {LEAST_DELAY_S}")


def _positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}; expected a number of looks, at least 1")


def _user(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"no user is named {text!r}") from None


def _thresholds(text: str) -> drawing.Thresholds:
    parts = text.split(",")
    if len(parts) == 2 and all(part.isdigit() for part in parts) and int(parts[0]) <= int(parts[1]) <= 100:
        return drawing.Thresholds(int(parts[0]) / 100, int(parts[1]) / 100)
    raise argparse.ArgumentTypeError(f"{text!r}; expected two percentages, as 75,90")


def main(arguments: Sequence[str] | None = None, name: str = "pyalloc-top") -> int:
    """Runs the command line and returns the exit code. `name` is what the user called."""
    return until_closed(lambda: _main(arguments, name))


def _main(arguments: Sequence[str] | None, name: str) -> int:
    parser = _parser(name)
    parsed = parser.parse_args(arguments)
    if parsed.version:
        from .._version import __version__

        print(f"pyalloc-top {__version__}")
        return 0
    if parsed.sort == "help":
        print("\n".join(f"{name:<14} {meaning}" for name, (meaning, _, _) in SORT_KEYS.items()))
        return 0
    if parsed.sort not in SORT_KEYS:
        parser.error(f"-s {parsed.sort}: expected one of {', '.join(SORT_KEYS)}")
    reader = Reader(parsed.user)
    try:
        if parsed.prune:
            for path in prune(parsed.user):
                print(f"deleted {path}")
            return 0
        if parsed.fields:
            return _fields(parsed)
        if parsed.json:
            return _json(reader, parsed)
        if parsed.once or not (sys.stdout.isatty() and sys.stdin.isatty()) or os.environ.get("TERM") in (None, "dumb"):
            return _once(reader, parsed)
        from .live import run

        return run(reader, screen_of(parsed), parsed.delay, parsed.iterations, _console(parsed))
    except PageError as error:
        print(f"pyalloc-top: {error}", file=sys.stderr)
        return 1
    finally:
        reader.close()


def screen_of(parsed: argparse.Namespace) -> Screen:
    """What the command line chose."""
    ascii_only = parsed.ascii or "utf" not in (sys.stdout.encoding or "").lower()
    return Screen(
        selection=Selection(
            frozenset(parsed.pid), frozenset(parsed.device), parsed.filter, parsed.sort, parsed.reverse
        ),
        view=parsed.view,
        glyphs=drawing.ASCII if ascii_only else drawing.UNICODE,
        thresholds=parsed.thresholds,
        folder=str(user_folder(os.geteuid() if parsed.user is None else parsed.user)),
    )


def _console(parsed: argparse.Namespace) -> Any:
    from rich.console import Console

    return Console(no_color=True if parsed.no_color else None, highlight=False)


def _looked(reader: Reader) -> list[Process]:
    """Two looks, so that there are rates."""
    if reader.look():
        time.sleep(BETWEEN_SAMPLES_S)
    processes = reader.look()
    for line in reader.unreadable:
        print(f"pyalloc-top: {line}", file=sys.stderr)
    return processes


def _once(reader: Reader, parsed: argparse.Namespace) -> int:
    screen = screen_of(parsed)
    processes = _looked(reader)
    if not screen.selection.rows(processes):
        print(_nothing(screen, processes), file=sys.stderr)
        return 3
    console = _console(parsed)
    screen.width = console.width if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    for line in table(processes, screen):
        line.rstrip()
        console.print(line, soft_wrap=True)
    return 0


def _fields(parsed: argparse.Namespace) -> int:
    """What the first page that can be read says of its own figures."""
    for path in page_files(parsed.user):
        with contextlib.suppress(PageError), StatsPage(path) as page:
            for table in ("process", "device", "pool", "tag", "event"):
                for field in page.fields(table):
                    history = ".<kind>.<figure>" if field.type == "stat" else ""
                    print(f"{table}.{field.name}{history}\t{field.kind}\t{field.unit or '-'}\t{field.help}")
            return 0
    print(_nothing(screen_of(parsed), []), file=sys.stderr)
    return 3


def _nothing(screen: Screen, processes: Sequence[Process]) -> str:
    if not processes:
        return EMPTY.format(folder=screen.folder).rstrip()
    return f"pyalloc-top: none of the {len(processes)} processes on pyalloc is one that was asked for"


def _json(reader: Reader, parsed: argparse.Namespace) -> int:
    selection = screen_of(parsed).selection
    shown = 0
    try:
        while True:
            processes = _looked(reader) if shown == 0 else reader.look()
            rows = selection.rows(processes)
            if parsed.once and not rows:
                print(_nothing(screen_of(parsed), processes), file=sys.stderr)
                return 3
            found = {
                "schema": SCHEMA,
                "time_ms": time.time_ns() // 1_000_000,
                "processes": records(rows),
                "unreadable": reader.unreadable,
            }
            print(json.dumps(found, indent=1 if parsed.once else None), flush=True)
            shown += 1
            if parsed.once or shown == parsed.iterations:
                return 0
            time.sleep(parsed.delay)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
