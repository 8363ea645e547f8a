"""`pyalloc snapshot` and `pyalloc diff`: their command lines, and one line on standard error for what goes wrong.

Neither imports torch. Exit codes: snapshot 0 done, 1 it cannot be had, read or written; diff, as diff(1), 0 nothing
grew, 1 something did, 2 a file cannot be read; both 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from .. import errors

_SNAPSHOT_EXAMPLES = """\
examples:
  pyalloc snapshot 4242 -o now.json                    of a process that runs with control_socket:on
  pyalloc snapshot --html now.json -o now.html         to look at in a browser
  pyalloc snapshot --html a.json b.json -o ab.html     with a time line of several
  pyalloc snapshot --convert now.json -o now.pickle    for pytorch.org/memory_viz
In a program: pyalloc.snapshot().save("now.json").
"""


def add_parsers(commands: Any) -> None:
    """Adds both commands to the subparsers of `pyalloc`."""
    snapshot = commands.add_parser(
        "snapshot",
        usage="pyalloc snapshot (PID | --html FILE... | --convert FILE) -o FILE [--timeout SECONDS]",
        help="write where the memory of a running process is; draw or convert such a file",
        description="Asks a running process where its memory is, or draws or converts what it said.",
        epilog=_SNAPSHOT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = snapshot.add_mutually_exclusive_group(required=True)
    source.add_argument("pid", nargs="?", type=int, metavar="PID", help="a process that runs with control_socket:on")
    source.add_argument("--convert", metavar="FILE", help="turn a snapshot into a pickle for torch's viewers")
    source.add_argument("--html", nargs="+", metavar="FILE", help="draw snapshots as one page for a browser")
    snapshot.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the file to write; - for standard output"
    )
    snapshot.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the process (default: 60)",
    )
    diff = commands.add_parser(
        "diff",
        help="what grew between two snapshots",
        description="Names what grew between two snapshots, by pool, size, tag and call site: the leak finder.",
        epilog="Exit code: 0 nothing grew, 1 something did, 2 a file cannot be read. "
        "For example: pyalloc diff before.json after.json --at-least 1MiB",
    )
    diff.add_argument("before", metavar="BEFORE.json", help="a snapshot: of pyalloc snapshot, or Snapshot.save()")
    diff.add_argument("after", metavar="AFTER.json", help="a later one")
    diff.add_argument("--json", action="store_true", help="one JSON object instead of text")
    diff.add_argument(
        "--at-least",
        default="1",
        metavar="SIZE",
        help="exit with 1 only if a kind of blocks grew so much, as 1MiB (default: by any byte)",
    )
    diff.add_argument("--most", type=int, default=10, metavar="N", help="most rows of each table (default: 10)")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < 1e6:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r}; expected seconds, more than 0")


def run_snapshot(parsed: argparse.Namespace) -> int:
    """`pyalloc snapshot`."""
    try:
        _write(parsed.output, _snapshot_bytes(parsed))
    except BrokenPipeError:  # `-o - | head`: the command line's
        raise
    except (errors.PyallocError, OSError) as error:
        print(f"pyalloc snapshot: {_line(error)}", file=sys.stderr)
        return 1
    return 0


def _snapshot_bytes(parsed: argparse.Namespace) -> bytes:
    from .reading import load_snapshot

    if parsed.convert is not None:
        from .torch_pickle import torch_pickle

        return torch_pickle(load_snapshot(parsed.convert))
    if parsed.html is not None:
        from .page import html

        return html([load_snapshot(path) for path in parsed.html]).encode()
    from .asking import ask

    return ask(parsed.pid, parsed.timeout).dumps().encode(errors="backslashreplace") + b"\n"


def run_diff(parsed: argparse.Namespace) -> int:
    """`pyalloc diff`."""
    from .._native import library
    from .comparison import diff, lines
    from .reading import load_snapshot

    try:
        at_least = max(1, library().parse_size(parsed.at_least))
        before, after = load_snapshot(parsed.before), load_snapshot(parsed.after)
    except errors.PyallocError as error:
        print(f"pyalloc diff: {_line(error)}", file=sys.stderr)
        return 2
    difference = diff(before, after)
    if parsed.json:
        print(json.dumps(difference.as_dict(), indent=1))
    else:
        apart = f"{abs(difference.milliseconds) / 1000:.1f} s {'apart' if difference.milliseconds >= 0 else 'back'}"
        which = f"process {after.pid}" if difference.same_process else f"processes {before.pid} and {after.pid}"
        print(_printable(f"{parsed.before} to {parsed.after}: {which} ({after.program}), {apart}"))
        for line in lines(difference, max(1, parsed.most)):
            print(_printable(line))
    return 1 if difference.grew(at_least) else 0


def _printable(line: str) -> str:
    """With what a terminal would obey, or cannot show, written out: tags and names of files may be anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def _write(output: str, content: bytes) -> None:
    if output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        Path(output).write_bytes(content)


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).splitlines())
