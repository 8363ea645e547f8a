#!/usr/bin/env python3
"""Draws pyalloc-top's views of what runs now into examples/images, as README.md shows them.

tools/demo --allocator pyalloc & sleep 20; tools/top_pictures.py
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from pyalloc.top import frame
from pyalloc.top.model import RUNNING, Process
from pyalloc.top.reading import Reader
from pyalloc.top.view import Screen

IMAGES = Path(__file__).resolve().parents[1] / "examples" / "images"
# File name, keys that lead there from the main view, columns and lines.
VIEWS = (
    ("top_main", (), 110, 12),
    ("top_pools", ("2",), 110, 14),
    ("top_detail", ("enter",), 110, 34),
    ("top_help", ("h",), 80, 24),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40, help="of history to gather first (default 40)")
    args = parser.parse_args()
    reader = Reader()
    end = time.monotonic() + args.seconds
    processes = reader.look()
    while processes and (time.monotonic() < end or not busy(processes)):
        time.sleep(0.5)
        processes = reader.look()
    if not processes:
        print("top_pictures: no process runs on pyalloc; start tools/demo beside this", file=sys.stderr)
        return 3
    for name, keys, width, height in VIEWS:
        (IMAGES / f"{name}.svg").write_text(picture(processes, keys, width, height), encoding="utf-8")
    return 0


def busy(processes: list[Process]) -> bool:
    """Whether something happens that is worth a picture; also when nothing will any more."""
    return any(
        process.state != RUNNING or any(track.rates["allocations"] for track in process.tracks.values())
        for process in processes
    )


def picture(processes: list[Process], keys: tuple[str, ...], width: int, height: int) -> str:
    """SVG of one view."""
    screen = Screen(width=width, height=height)
    for key in keys:
        frame.press(key, screen, processes)
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True, highlight=False)
    for line in frame.lines(processes, [], screen):
        console.print(line, soft_wrap=True)
    svg = console.export_svg(title="pyalloc-top", theme=MONOKAI)
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no fonts from the network


if __name__ == "__main__":
    sys.exit(main())
