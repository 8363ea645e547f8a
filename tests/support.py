"""Shared by the tests: where things are, and what happens when the machine lacks something."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# tools/gpu_check.py sets it: programs run on the device at hand, not on a simulated one of their own.
ON_DEVICE = os.environ.get("PYALLOC_TEST_DEVICE") == "gpu"


def need(found: object, reason: str) -> None:
    """Goes on when `found` is true; else skips the test, or fails it under PYALLOC_TEST_ALL=1 (as CI sets it)."""
    if not found:
        (pytest.fail if os.environ.get("PYALLOC_TEST_ALL") == "1" else pytest.skip)(reason)


def offered(found: object, reason: str) -> None:
    """Skips the test unless `found` is true: of programs by others that read what pyalloc writes."""
    if not found:
        pytest.skip(reason)


def on_device_command(script: Path, devices: int, simulation: bool, settings: Mapping[str, str]) -> list[str]:
    """The command that runs the script on the device at hand; skips what only a simulated GPU can do.

    A script that names simgpu is about it, unless it asks whether it is active; one that runs without pyalloc is too.
    """
    text = script.read_text(encoding="utf-8")
    about_simulation = "simgpu" in text and "simgpu.active()" not in text
    if simulation or about_simulation or ("pyalloc" not in text and "PYALLOC_CONF" not in settings):
        pytest.skip("about the simulated GPU itself")
    if devices > 1:
        pytest.skip(f"needs {devices} devices")
    return [sys.executable, str(script)]


def gpu_present() -> bool:
    """Whether a real CUDA driver sees a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    if hasattr(driver, "simgpu_present"):
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
