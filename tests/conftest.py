"""The parts of the suite: tests/torch needs torch, on the simulated GPU or (marked `gpu`) a real one; the rest none."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gpu_present

TESTS = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TESTS / "torch" in item.path.parents:
            item.add_marker("torch")
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if of_gpu and not gpu_present():
        for item in of_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
