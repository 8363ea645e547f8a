"""What cuGetProcAddress and dlsym find: every name the core and torch ask for, in the version they ask for."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_driver import NOT_FOUND, NOT_SUPPORTED, SimulatedDriver
from support import ROOT, need

DRIVER = ROOT / "allocator_cpp" / "simgpu" / "driver"
TYPEDEFS = Path("/usr/local/cuda/include/cudaTypedefs.h")
FOUND, NOT_KNOWN, TOO_OLD = 0, 1, 2

ENTRY = re.compile(r"^ENTRY\((\w+), (\w+), (\d+),", re.MULTILINE)
UNSUPPORTED = re.compile(r"^UNSUPPORTED\((\w+), (\w+), (\d+),", re.MULTILINE)
CORE_CALL = re.compile(r"^\w*CALL\(\w+, (\w+), (\d+),", re.MULTILINE)


def table(pattern: re.Pattern[str], path: Path) -> list[tuple[str, ...]]:
    found = pattern.findall(path.read_text(encoding="utf-8"))
    assert found
    return found


def resolve(gpu: SimulatedDriver, name: str, version: int) -> tuple[int, int]:
    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
    gpu.ok("cuGetProcAddress_v2", name.encode(), ctypes.byref(address), version, 0, ctypes.byref(status))
    return address.value or 0, status.value


def symbol_address(gpu: SimulatedDriver, symbol: str) -> int:
    return ctypes.cast(getattr(gpu.library, symbol), ctypes.c_void_p).value or 0


def test_every_entry_point_is_exported_and_found_in_its_version(gpu: SimulatedDriver) -> None:
    entries = table(ENTRY, DRIVER / "entry_points.def") + table(UNSUPPORTED, DRIVER / "unsupported_entry_points.def")
    for name, symbol, version in entries:
        assert resolve(gpu, name, int(version)) == (symbol_address(gpu, symbol), FOUND), symbol
    oldest: dict[str, int] = {}
    for name, _, version in entries:
        oldest[name] = min(int(version), oldest.get(name, 1 << 30))
    for name, version_number in oldest.items():
        assert resolve(gpu, name, version_number - 1) == (0, TOO_OLD), name


def test_the_core_finds_all_it_calls(gpu: SimulatedDriver) -> None:
    core = ROOT / "allocator_cpp" / "src" / "driver" / "driver_calls.def"
    for name, version in table(CORE_CALL, core):
        if name.startswith("simgpu_"):
            continue
        assert resolve(gpu, name, int(version))[1] == FOUND, name


def test_newer_drivers_bind_newer_variants_only_when_asked(gpu: SimulatedDriver) -> None:
    name = "cuStreamGetCaptureInfo"
    for version, symbol in ((10010, name), (11030, f"{name}_v2"), (12020, f"{name}_v2"), (13000, f"{name}_v3")):
        assert resolve(gpu, name, version)[0] == symbol_address(gpu, symbol)


def test_unknown_names(gpu: SimulatedDriver) -> None:
    assert resolve(gpu, "cuNoSuchThing", 13000) == (0, NOT_KNOWN)
    address = ctypes.c_void_p()
    assert gpu.call("cuGetProcAddress", b"cuNoSuchThing", ctypes.byref(address), 13000, 0) == NOT_FOUND
    assert gpu.call("cuGetProcAddress_v2", b"cuNoSuchThing", ctypes.byref(address), 13000, 0, None) == NOT_FOUND


def test_what_is_not_simulated_says_so_once(gpu: SimulatedDriver, capfd: pytest.CaptureFixture[str]) -> None:
    out = ctypes.c_uint64()
    assert gpu.call("cuMemAllocManaged", ctypes.byref(out), 64, 1) == NOT_SUPPORTED
    assert gpu.call("cuMemAllocManaged", ctypes.byref(out), 64, 1) == NOT_SUPPORTED
    assert capfd.readouterr().err.count("cuMemAllocManaged (managed memory) is not simulated") == 1


def test_the_controls_are_found_by_name_of_symbol(gpu: SimulatedDriver) -> None:
    header = (DRIVER.parent / "simgpu.h").read_text(encoding="utf-8")
    names = set(re.findall(r"\b(simgpu_[a-z_]+)\(", header))
    assert len(names) > 30
    for name in names:
        assert hasattr(gpu.library, name), name
    for name in names:
        if "oracle" in name:  # those an allocator calls through its driver table
            assert resolve(gpu, name, 0) == (symbol_address(gpu, name), FOUND)


def test_versions_are_nvidias(start: Callable[..., SimulatedDriver]) -> None:
    need(TYPEDEFS.is_file(), f"{TYPEDEFS} is not installed")
    known: dict[str, set[int]] = {}
    for name, version in re.findall(r"PFN_(cu\w+)_v(\d+)\)", TYPEDEFS.read_text(encoding="utf-8")):
        known.setdefault(name, set()).add(int(version))
    entries = table(ENTRY, DRIVER / "entry_points.def") + table(UNSUPPORTED, DRIVER / "unsupported_entry_points.def")
    wrong = [(name, version) for name, _, version in entries if name in known and int(version) not in known[name]]
    assert wrong == []
