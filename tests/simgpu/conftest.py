"""Tests of the simulated driver: ctypes against the built libcuda.so.1, no torch, a fresh simulation for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from simulated_driver import SimulatedDriver, load_driver


@pytest.fixture
def start() -> Iterator[Callable[..., SimulatedDriver]]:
    """start("devices:2") gives a fresh simulation of 1 GiB devices; a rule broken and not expected fails the test."""
    started: list[SimulatedDriver] = []

    def begin(configuration: str = "", init: bool = True) -> SimulatedDriver:
        driver = load_driver()
        memory = "" if "memory:" in configuration else "memory:1GiB,"
        driver.reset(memory + configuration)
        if init:
            driver.ok("cuInit", 0)
            driver.use_device(0)
        started.append(driver)
        return driver

    yield begin
    if started:
        left = started[-1].take_violations()
        started[-1].reset("memory:1GiB")
        assert left == [], "driver rules broken that the test did not expect"


@pytest.fixture
def gpu(start: Callable[..., SimulatedDriver]) -> SimulatedDriver:
    """One simulated device of 1 GiB, initialised, its context current."""
    return start()
