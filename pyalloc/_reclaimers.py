"""The program's functions for when memory runs out, as the core calls them.

The core calls from any thread, also from those that Python has not made, and may be about to call a function just when
it is taken off. So it is given one C function that stays for as long as the process, and numbers: what has been taken
off is not found any more. Before the interpreter goes all are taken off, and the calls under way waited for: a thread
that waits for the GIL then would be ended in the middle of the core's functions, and the process with it.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Callable
from typing import Any, Final

from ._abi import RECLAIM

PATIENCE_MS: Final = 2000  # a function that takes longer is left to its fate

Function = Callable[[None, int, int], int]  # of (context, device, bytes): the bytes it freed


class Reclaimers:
    """Those of one loaded core."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._called = RECLAIM(self._call)
        self._functions: dict[int, Function] = {}
        self._numbers = itertools.count(1)

    def add(self, function: Function, priority: int) -> int:
        """The core's status."""
        number = next(self._numbers)
        if number == 1:
            atexit.register(self._end)
        self._functions[number] = function
        return int(self._core.pyalloc_add_reclaimer(self._called, number, priority))

    def remove(self, function: Function) -> int:
        """The core's status. Another thread may still be in it."""
        number = next((number for number, one in self._functions.items() if one is function), 0)
        status = int(self._core.pyalloc_remove_reclaimer(self._called, number))
        self._functions.pop(number, None)
        return status

    def _call(self, number: int | None, device: int, size: int) -> int:
        function = self._functions.get(number or 0)
        return 0 if function is None else function(None, device, size)

    def _end(self) -> None:
        for number in list(self._functions):
            self._core.pyalloc_remove_reclaimer(self._called, number)
        self._core.pyalloc_await_reclaimers(PATIENCE_MS)
