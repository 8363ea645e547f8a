"""The ctypes binding: how the library is found, what is refused, and the structs made from its tables."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from support import need

import pyalloc
from pyalloc import _abi, _native


@pytest.fixture
def library() -> _native.Library:
    try:
        return _native.library()
    except pyalloc.LibraryError as error:
        need(False, str(error))
        raise


def test_a_wrong_override_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYALLOC_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(pyalloc.LibraryError, match=r"PYALLOC_LIBRARY names .*none\.so"):
        pyalloc.library_path()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libpyalloc.so"
    path.write_text("not a library")
    with pytest.raises(pyalloc.LibraryError, match="cannot load"):
        _native.Library(str(path))


def test_a_library_of_another_abi(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    need(compiler, "needs a C++ compiler")
    path = tmp_path / "libpyalloc.so"
    source = 'extern "C" unsigned pyalloc_abi_version() { return 99; }'
    subprocess.run(
        [str(compiler), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)], input=source, text=True, check=True
    )
    with pytest.raises(pyalloc.LibraryError, match="C ABI 99, this package expects 1"):
        _native.Library(str(path))


def test_version_is_the_package_s(library: _native.Library) -> None:
    assert library.version() == pyalloc.__version__


def test_the_struct_follows_the_table(library: _native.Library) -> None:
    fields = library._stats_type._fields_
    assert [name for name, *_ in fields] == ["size", "version", *(field["name"] for field in library.stat_fields)]
    groups = sum(1 for field in library.stat_fields if field["group"])
    numbers = len(library.stat_fields) - groups
    assert groups >= 9
    assert numbers > 6
    assert ctypes.sizeof(library._stats_type) == 8 + groups * 3 * 32 + numbers * 8


def test_statistics_before_any_use(library: _native.Library) -> None:
    stats = pyalloc.device_stats(0)
    assert stats["allocated_bytes"]["all"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    assert stats["num_ooms"] == 0
    with pytest.raises(pyalloc.InvalidArgumentError, match="device 1000; expected 0 to"):
        pyalloc.device_stats(1000)
    assert library.device_count() == 0


def test_the_table_of_functions(library: _native.Library) -> None:
    size = ctypes.c_uint32.from_address(library.api())
    version = ctypes.c_uint32.from_address(library.api() + 4)
    assert version.value == _abi.ABI_VERSION
    assert size.value >= 8 + 8 * 15
