"""Calls back when a module has been imported: the first finder of sys.meta_path.

It finds nothing itself. For a module that is wanted it asks the other finders and has the loader they name call back
after it ran the module. Loaders keep their type, so that whatever reads them goes on working.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Finder:
    """start() calls back at once for what is imported already. `imported` gets the module and must not raise."""

    def __init__(self, wanted: Iterable[str], imported: Callable[[ModuleType], None]) -> None:
        self._wanted = frozenset(wanted)
        self._imported = imported
        self._unfinished: set[str] = set()  # being imported, out of our reach: seen to at a later import
        self._asking = threading.local()

    def start(self) -> None:
        for name in self._wanted:
            module = sys.modules.get(name)
            if module is None:
                continue
            if _is_unfinished(module):
                self._unfinished.add(name)
            else:
                self._imported(module)
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._wanted = frozenset()  # for loaders that are to call back yet
        self._unfinished.clear()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system calls it for every module that is not imported yet."""
        if self._unfinished:
            self._see_to_unfinished()
        if name not in self._wanted or getattr(self._asking, "name", None) == name:
            return None  # the second: a finder like this one asks us in its turn
        before, self._asking.name = getattr(self._asking, "name", None), name
        try:
            spec = next(filter(None, (_ask(one, name, path, target) for one in sys.meta_path if one is not self)), None)
        finally:
            self._asking.name = before
        if spec is not None and spec.loader is not None:
            self._call_back_after(name, spec.loader)
        return spec

    def _see_to_unfinished(self) -> None:
        for name in list(self._unfinished):
            module = sys.modules.get(name)
            if module is not None and not _is_unfinished(module):
                self._unfinished.discard(name)
                self._imported(module)

    def _call_back_after(self, name: str, loader: Any) -> None:
        execute, hooked_before = loader.exec_module, getattr(loader, "__dict__", {}).get("exec_module")

        def exec_module(module: ModuleType) -> None:
            if hooked_before is None:
                del loader.exec_module
            else:
                loader.exec_module = hooked_before
            execute(module)
            if name in self._wanted:
                self._imported(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that takes no attributes
            self._unfinished.add(name)


def _is_unfinished(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _ask(finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    find_spec = getattr(finder, "find_spec", None)
    spec: ModuleSpec | None = find_spec(name, path, target) if find_spec is not None else None
    return spec
