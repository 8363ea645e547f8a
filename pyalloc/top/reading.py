"""Keeps the pages of a user's processes open, and turns what they say into model.Process, look by look."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..stats_page import PageBusyError, PageError, StatsPage, page_files
from .model import DIED, ENDED, RUNNING, SILENT, Process

SILENT_AFTER_S: Final = 5.0  # a page is written every 0.1 s, and at the slowest every 2
KEPT_S: Final = 600.0  # what an ended process had is shown so long


@dataclass
class _Open:
    page: StatsPage
    process: Process | None = None


class Reader:
    """Looks at every page of one user. A process that ends stays, with the last that it said, for ten minutes."""

    def __init__(self, uid: int | None = None) -> None:
        self._uid = uid
        self._open: dict[Path, _Open] = {}
        self._ended: list[Process] = []
        self._namespace = _own_namespace()
        self.unreadable: list[str] = []  # one line for each file that is no page one can read, of the last look

    def look(self) -> list[Process]:
        """Every process with a page. PageError when the user's folder cannot be read."""
        self.unreadable = []
        for path in page_files(self._uid):
            if path not in self._open:
                try:
                    self._open[path] = _Open(StatsPage(path))
                except PageError as error:
                    self.unreadable.append(str(error))
        for path, one in list(self._open.items()):
            self._read(path, one)
        now, open_pages = time.monotonic(), {str(path) for path in self._open}
        self._ended = [
            process
            for process in self._ended
            if now - process.seen_ended < KEPT_S and process.page not in open_pages  # else it has a new page
        ]
        return [one.process for one in self._open.values() if one.process is not None] + self._ended

    def close(self) -> None:
        """Harmless when done twice."""
        for one in self._open.values():
            one.page.close()
        self._open.clear()

    def _read(self, path: Path, one: _Open) -> None:
        alive = one.page.owner_alive
        busy = False
        try:
            sample = one.page.read()
            if one.process is None:
                one.process = Process(
                    sample, str(path), same_namespace=sample.process["pid_namespace"] == self._namespace
                )
            one.process.add(sample)
        except PageBusyError:
            busy = True  # the next look
        except PageError as error:
            self.unreadable.append(str(error))
            self._forget(path, one)
            return
        if one.process is None:
            if not alive:
                self._forget(path, one)
        elif alive:
            age = time.time() - one.process.sample.process["published_ms"] / 1000
            one.process.state = SILENT if age > SILENT_AFTER_S and not busy else RUNNING
        elif one.page.left_behind:
            one.process.state = DIED
        else:
            if one.process.state != DIED:  # else somebody has deleted what it left
                one.process.state = ENDED
                one.process.seen_ended = time.monotonic()
                self._ended.append(one.process)
            self._forget(path, one)

    def _forget(self, path: Path, one: _Open) -> None:
        one.page.close()
        del self._open[path]


def _own_namespace() -> int | None:
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return None
