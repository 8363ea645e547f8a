"""The machine a result comes from, as far as figures depend on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def describe(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` are the worker's: versions of torch and CUDA."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "device": "simulated",
        **facts,
    }


def one_line(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, load {machine['load']}; "
        f"Linux {machine['kernel']}, Python {machine['python']}, torch {machine['torch']}, "
        f"pyalloc {machine['pyalloc']}, {machine['device']} GPU"
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        return platform.machine()
    return platform.machine()
