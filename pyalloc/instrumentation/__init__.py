"""Pools without annotations: functions of torch and of model libraries, wrapped so that what they allocate goes to the
pool of its purpose. table.py says which.

A wrapper only suggests a pool, so the user's `with pyalloc.pool(...)` wins. A library is wrapped when it is imported,
and every original can be put back. What cannot be wrapped, say because a library has changed, is left as it is: one
warning per library, and its memory goes to the general pool.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import import_hook, patches

if TYPE_CHECKING:
    from .table import Target

_log = logging.getLogger("pyalloc")
_lock = threading.RLock()


class Instrumentation:
    """The wrappers in place, and the hook that adds those of modules still to be imported. `missing` says by library
    what could not be wrapped. Every method is called with _lock held, or by the hook, which takes it.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self.patches: list[patches.Patch] = []
        self.missing: dict[str, list[str]] = {}
        self._targets = targets
        self._finder = import_hook.Finder([target.module for target in targets], self._imported)
        self._finder.start()

    def _imported(self, module: ModuleType) -> None:
        with _lock:
            for target in self._targets:
                if target.module == module.__name__:
                    try:
                        self.patches += patches.apply(target, module)
                    except Exception as error:  # whatever another library has become must not fail its import
                        self._note_missing(target, str(error))

    def _note_missing(self, target: Target, reason: str) -> None:
        first = target.library not in self.missing
        self.missing.setdefault(target.library, []).append(reason)
        if first:
            _log.warning(
                "pyalloc does not know %s %s in every part (%s): what it allocates there goes to the general pool; "
                "`pyalloc doctor` lists the parts, instrument:off ends this warning",
                target.library,
                _version(target.library),
                reason,
            )

    def remove(self) -> list[str]:
        self._finder.stop()
        kept = [patch.label for patch in reversed(self.patches) if not patches.restore(patch)]
        self.patches.clear()
        return kept


_active: Instrumentation | None = None


def install() -> None:
    """Wraps what the table names, now or once its module is imported. enable() calls it; a second call does nothing."""
    from .table import TARGETS  # imports torch

    global _active
    with _lock:
        if _active is None:
            _active = Instrumentation(TARGETS)


def remove() -> list[str]:
    """Puts every original back. Returns the names of those that somebody else has wrapped meanwhile: they stay."""
    global _active
    with _lock:
        active, _active = _active, None
        return [] if active is None else active.remove()


def active() -> Instrumentation | None:
    """What is in place, or None."""
    return _active


def survey(imports: bool) -> dict[str, dict[str, Any]]:
    """By library: its version, the functions for each pool, and what is missing of them; `examined` says whether they
    were looked for. imports: also in libraries that are installed and not imported, which takes seconds.
    """
    from .table import TARGETS

    report: dict[str, dict[str, Any]] = {}
    for target in TARGETS:
        library = report.setdefault(
            target.library,
            {"version": _version(target.library), "installed": True, "examined": True, "wraps": {}, "missing": []},
        )
        if importlib.util.find_spec(target.library) is None:
            library["installed"] = library["examined"] = False
            continue
        if not imports and target.library not in sys.modules:
            library["examined"] = False
            continue
        try:
            found = patches.find(target, importlib.import_module(target.module))
        except Exception as error:  # a library that does not import is a finding
            library["missing"].append(f"{target.module}: {error}")
            continue
        library["wraps"].setdefault(target.pool, []).extend(patches.label(owner, name) for owner, name in found)
    return report


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
