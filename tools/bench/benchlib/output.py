"""What a benchmark shows: progress on a terminal, tables, and with --json one object on the last line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import BenchError

T = TypeVar("T")


class Progress:
    """One line on standard error that says what is going on; nothing when that is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self._shown:
            print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)

    def milestone(self, text: str) -> None:
        """A line that stays, on a terminal or not."""
        self.say("")
        print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        self.say("")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned first column, the others right-aligned."""
    cells = [list(header), *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        first, rest = (
            row[0].ljust(widths[0]),
            [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)],
        )
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(cell_text(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def cell_text(cell: object) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


def spread_text(figures: Mapping[str, Any] | None, form: str) -> str:
    """Median (low to high), each in `form`; "-" for what was not measured."""
    if figures is None or figures["median"] is None:
        return "-"
    median, low, high = (form.format(figures[name]) for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def parser(description: str, examples: str) -> argparse.ArgumentParser:
    """A parser with the option that all benchmarks have."""
    made = argparse.ArgumentParser(
        description=description, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="one JSON object on the last line instead of tables")
    return made


OPTION_ARGUMENT: dict[str, Any] = {
    "action": "append",
    "default": [],
    "metavar": "KEY=VALUE",
    "help": "an option of pyalloc, such as cross_stream_wait=off; may be repeated",
}


def pyalloc_options(parser: argparse.ArgumentParser, texts: Sequence[str]) -> dict[str, Any]:
    """Arguments for pyalloc.enable() from KEY=VALUE texts; the parser's error for anything else."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            parser.error(f"--option {text!r}: expected KEY=VALUE, such as cross_stream_wait=off")
        options[key] = value
    return options


def emit(result: dict[str, Any], as_json: bool, text: Callable[[], str]) -> None:
    print(json.dumps(result) if as_json else text(), flush=True)


def file_argument(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file")
    return path


def run_main(main: Callable[[], int]) -> None:
    """Runs a benchmark's main; its errors are one line, not a traceback."""
    try:
        code = main()
    except BenchError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads the rest
        code = 130
    sys.exit(code)
