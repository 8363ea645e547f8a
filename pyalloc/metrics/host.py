"""Every pyalloc process of this host, from their stats pages: a look at all of them, for each scrape.

Nothing is kept between looks, so that a process may come, go, or leave its page behind at any time. What is no page
that can be read is counted, and said once.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from ..devices import MOST_DEVICES
from ..stats_page import PageBusyError, PageError, PageTornError, Sample, StatsPage, page_files
from ..user_folder import user_folder
from .families import Measured

_log = logging.getLogger("pyalloc")

# How a page is: its process runs; its process is gone and did not take it along; it was being written at every try; it
# is damaged, of another version, or no page.
READ, LEFT_BEHIND, BUSY, UNREADABLE = "read", "left_behind", "busy", "unreadable"
STATES: Final = (READ, LEFT_BEHIND, BUSY, UNREADABLE)

_FOLDER: Final = re.compile(r"pyalloc-([0-9]{1,10})")
_LONGEST_NAME: Final = 64
_MOST_FIELDS: Final = 1000  # of a table; a page that says more would fill Prometheus with series


@dataclass(frozen=True)
class Look:
    """What one look found: the processes that run, how many pages are in which state, and what is wrong with those that
    cannot be read.
    """

    processes: list[Measured] = field(default_factory=list)
    pages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Host:
    """Looks at the pages of this user; for root, of every user. look() may be called by several threads at once."""

    def __init__(self) -> None:
        self._namespace = os.stat("/proc/self/ns/pid").st_ino
        self._said: frozenset[str] = frozenset()

    def look(self) -> Look:
        """Every page once, now."""
        look, known = Look(), set()
        for uid in _users():
            for path in self._files(uid, look):
                try:
                    measured = self._measure(path, uid)
                    if measured is None:
                        look.pages[LEFT_BEHIND] += 1
                        continue
                    if (identity := tuple(measured.labels.items())[:-1]) in known:
                        raise PageError(f"{path}: a second page of process {measured.labels['pid']}")
                    known.add(identity)
                    look.processes.append(measured)
                    look.pages[READ] += 1
                except PageTornError:  # killed just now
                    look.pages[LEFT_BEHIND] += 1
                except PageBusyError:
                    look.pages[BUSY] += 1
                except PageError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):  # its process has just ended
                        self._add_problem(look, error)
        self._say(look.problems)
        return look

    def _files(self, uid: int, look: Look) -> list[Path]:
        try:
            return page_files(uid)
        except PageError as error:
            self._add_problem(look, error)
            return []

    def _measure(self, path: Path, uid: int) -> Measured | None:
        """None for the page of a process that is gone."""
        with StatsPage(path) as page:
            if not page.owner_alive:
                return None
            sample = page.read()
            if len(sample.devices) > MOST_DEVICES:
                raise PageError(f"{path}: a damaged stats page: {len(sample.devices)} devices")
            fields = {table: page.fields(table) for table in ("process", "device", "pool")}
            if any(len(of_table) > _MOST_FIELDS for of_table in fields.values()):
                raise PageError(f"{path}: a damaged stats page: more than {_MOST_FIELDS} figures of one thing")
        return Measured(sample, fields, self._labels(sample, uid))

    def _labels(self, sample: Sample, uid: int) -> dict[str, str]:
        """Process ids repeat between containers, and users may write what they like: those that are not this process's
        own are named as well. Prometheus takes an empty label for none.
        """
        namespace = sample.process["pid_namespace"]
        return {
            "pid": str(sample.process["pid"]),
            "pid_namespace": "" if namespace == self._namespace else str(namespace),
            "uid": "" if uid == os.geteuid() else str(uid),
            "program": program_name(sample.process["program"]),
        }

    def _add_problem(self, look: Look, error: PageError) -> None:
        look.pages[UNREADABLE] += 1
        look.problems.append(str(error))

    def _say(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._said:
                _log.warning("%s", problem)
        self._said = frozenset(problems)


def program_name(command_line: str) -> str:
    """A label of few values from a command line, without its arguments: they may be many, and may hold secrets. The
    script's name, or the module's, or else that of what was started.
    """
    words = command_line.split()
    scripts = [word for word in words if word.endswith(".py")]
    modules = [after for option, after in pairwise(words) if option == "-m"]
    if scripts:
        name = scripts[0].rpartition("/")[2]
    elif modules:
        name = modules[-1]
    else:
        name = words[0].rpartition("/")[2] if words else ""
    return name[:_LONGEST_NAME]


def _users() -> list[int]:
    if os.geteuid() != 0:
        return [os.geteuid()]
    try:
        names = os.listdir(user_folder(0).parent)
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := _FOLDER.fullmatch(name)))
