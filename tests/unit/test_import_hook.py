"""What instrumentation stands on: a call when a module has been imported, and attributes replaced and put back."""

from __future__ import annotations

import abc
import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyalloc.instrumentation import patches
from pyalloc.instrumentation.import_hook import Finder

Write = Callable[[str, str], None]


class Row:
    """What patches needs of a row of the table; the real ones need torch."""

    def __init__(self, attribute: str, takes: str = "") -> None:
        self.attribute, self.pool, self.takes = attribute, "kv", takes

    @staticmethod
    def wrap(function: Any, pool: str) -> Any:
        return functools.wraps(function)(lambda *args: (pool, function(*args)))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """write(name, text) makes a module `name` that can be imported during the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def write(name: str, text: str) -> None:
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    before = list(sys.meta_path)
    yield write
    sys.meta_path[:] = before
    for name in names:
        sys.modules.pop(name, None)


def test_a_module_is_seen_to_at_once_or_when_it_is_imported(write: Write) -> None:
    seen: list[tuple[str, object]] = []
    write("hooked_before", "value = 1")
    write("hooked_later", "value = 2")
    write("hooked_never", "value = 3")
    importlib.import_module("hooked_before")
    finder = Finder(["hooked_before", "hooked_later"], lambda module: seen.append((module.__name__, module.value)))
    finder.start()
    assert seen == [("hooked_before", 1)]
    importlib.import_module("hooked_never")
    module = importlib.import_module("hooked_later")
    assert seen == [("hooked_before", 1), ("hooked_later", 2)]
    assert type(module.__loader__) is importlib.machinery.SourceFileLoader
    assert "exec_module" not in vars(module.__loader__)
    importlib.reload(module)  # its functions are new
    assert seen[2:] == [("hooked_later", 2)]
    finder.stop()
    assert finder not in sys.meta_path
    importlib.reload(module)
    assert len(seen) == 3


def test_a_module_that_is_being_imported_is_seen_to_afterwards(write: Write) -> None:
    seen: list[object] = []
    finder = Finder(["hooked_half"], lambda module: seen.append(module.value))
    write("hooked_other", "")
    write("hooked_half", "import starter; starter.start(); import hooked_first; value = 1")
    write("hooked_first", "")
    starter = ModuleType("starter")
    starter.start = finder.start  # type: ignore[attr-defined]
    sys.modules["starter"] = starter
    try:
        importlib.import_module("hooked_half")
    finally:
        del sys.modules["starter"]
    assert seen == []
    importlib.import_module("hooked_other")
    assert seen == [1]


def test_an_import_that_fails_can_be_repeated(write: Write) -> None:
    seen: list[str] = []
    finder = Finder(["hooked_broken"], lambda module: seen.append(module.__name__))
    finder.start()
    write("hooked_broken", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("hooked_broken")
    assert seen == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hooked_nowhere")
    write("hooked_broken", "value = 'a longer text than before'")
    importlib.import_module("hooked_broken")
    assert seen == ["hooked_broken"]


def test_two_finders_of_this_kind_live_together(write: Write) -> None:
    seen: list[int] = []
    write("hooked_twice", "")
    for number in range(2):
        Finder(["hooked_twice"], lambda module, number=number: seen.append(number)).start()  # type: ignore[misc]
    importlib.import_module("hooked_twice")
    assert sorted(seen) == [0, 1]


class RigidLoader(importlib.abc.Loader):
    """Has no dictionary that could take another exec_module."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    def exec_module(self, module: ModuleType) -> None:
        module.value = 5  # type: ignore[attr-defined]


def test_a_loader_that_cannot_be_hooked(write: Write) -> None:
    class RigidFinder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
            return importlib.machinery.ModuleSpec(name, RigidLoader()) if name == "hooked_rigid" else None

    seen: list[object] = []
    write("hooked_rigid", "")
    write("hooked_next", "")
    sys.meta_path.insert(0, RigidFinder)
    Finder(["hooked_rigid"], lambda module: seen.append(module.value)).start()
    importlib.import_module("hooked_rigid")
    importlib.import_module("hooked_next")
    assert seen == [5]


def classes() -> ModuleType:
    """A module like a library's."""
    module = ModuleType("library")

    class Base(abc.ABC):
        @abc.abstractmethod
        def make(self, size: int) -> int: ...

        def keep(self) -> int:
            return 1

        @classmethod
        def load(cls) -> str:
            return cls.__name__

        broken = 5

    class One(Base):
        def make(self, size: int, device: str = "cpu") -> int:
            return size

    class Two(Base):
        def make(self, size: int) -> int:
            return 2 * size

    class Foreign:
        def make(self, size: int) -> int:
            return size

    for one in (Base, One, Two):
        one.__module__ = "library"
        setattr(module, one.__name__, one)
    module.Foreign = Foreign  # type: ignore[attr-defined]
    return module


def names(found: list[tuple[Any, str]]) -> list[str]:
    return [f"{owner.__name__}.{name}" for owner, name in found]


def test_what_a_row_names() -> None:
    module = classes()
    assert names(patches.find(Row("*.make"), module)) == ["One.make", "Two.make"]  # type: ignore[arg-type]
    assert names(patches.find(Row("*.make", takes="device"), module)) == ["One.make"]  # type: ignore[arg-type]
    assert names(patches.find(Row("One.keep"), module)) == ["One.keep"]  # type: ignore[arg-type]
    for attribute in ("*.nothing", "Nobody.make", "One.nothing", "nothing", "Base.broken"):
        with pytest.raises(LookupError, match="library has no "):
            patches.find(Row(attribute), module)  # type: ignore[arg-type]


def test_what_is_replaced_comes_back() -> None:
    module = classes()
    one, base = module.One, module.Base
    before = {owner: dict(vars(owner)) for owner in (one, base, module.Two)}
    made = [
        patch
        for attribute in ("*.make", "One.keep", "Base.load")
        for patch in patches.apply(Row(attribute), module)  # type: ignore[arg-type]
    ]
    assert (one().make(3), one().keep(), base.load()) == (("kv", 3), ("kv", 1), ("kv", "Base"))
    assert one.load() == ("kv", "One")
    for owner, members in before.items():
        assert dict(vars(owner)) != members
    taken = one.make
    one.make = lambda self, size: taken(self, size)  # somebody else's
    assert [patches.restore(patch) for patch in made] == [False, True, True, True]
    one.make = before[one]["make"]
    for owner, members in before.items():
        assert dict(vars(owner)) == members
