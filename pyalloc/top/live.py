"""The loop of the live view: look, draw, wait for a key."""

from __future__ import annotations

import copy
import sys
import time

from rich.console import Console, Group
from rich.live import Live

from .frame import lines, press
from .keys import Keyboard
from .model import Process
from .reading import Reader
from .view import Screen


def run(reader: Reader, screen: Screen, delay: float, iterations: int | None, console: Console) -> int:
    """Until the user quits, the terminal goes, or after so many looks. Returns the exit code."""
    looks = 0
    shown: list[Process] = []
    next_look = 0.0
    with (
        Keyboard(sys.stdin.fileno()) as keyboard,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        try:
            while True:
                if time.monotonic() >= next_look:
                    processes = reader.look()  # also while the picture stands still
                    if not screen.paused:
                        shown = processes
                    looks += 1
                    next_look = time.monotonic() + delay
                screen.width, screen.height = console.size
                live.update(Group(*lines(shown, reader.unreadable, screen)), refresh=True)
                if iterations is not None and looks >= iterations:
                    return 0
                keys = keyboard.wait(next_look - time.monotonic())
                if keys is None:
                    return 0
                for key in keys:
                    was_paused = screen.paused
                    if not press(key, screen, shown):
                        return 0
                    if screen.paused and not was_paused:
                        shown = copy.deepcopy(shown)
        except KeyboardInterrupt:
            return 0
