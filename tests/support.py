"""Shared by the tests: where things are, and what happens when the machine lacks something."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def need(found: object, reason: str) -> None:
    """Goes on when `found` is true; else skips the test, or fails it under PYALLOC_TEST_ALL=1 (as CI sets it)."""
    if not found:
        (pytest.fail if os.environ.get("PYALLOC_TEST_ALL") == "1" else pytest.skip)(reason)


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
