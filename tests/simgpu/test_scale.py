"""Sizes of real devices: 80 GiB with every granule mapped, many events, and what a call costs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from simulated_driver import GIB, GRANULE, MIB, OUT_OF_MEMORY, SUCCESS, SimulatedDriver, prop

Start = Callable[..., SimulatedDriver]
GRANULES = 80 * GIB // GRANULE


def test_an_80_gib_device_with_every_granule_mapped(start: Start) -> None:
    gpu = start("memory:80GiB")
    address = gpu.reserve(80 * GIB)
    for i in range(GRANULES):
        handle = gpu.create()
        gpu.map(address + i * GRANULE, handle)
        gpu.ok("cuMemRelease", handle)
    assert gpu.set_access(address, 80 * GIB) == SUCCESS
    out = ctypes.c_uint64()
    assert gpu.call("cuMemCreate", ctypes.byref(out), GRANULE, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    for i in range(0, GRANULES, 997):
        gpu.upload(address + (i + 1) * GRANULE - 4, i.to_bytes(8, "little"))
    for i in range(0, GRANULES, 997):
        assert gpu.download(address + (i + 1) * GRANULE - 4, 8) == i.to_bytes(8, "little")
    gpu.ok("cuMemsetD8_v2", address + GIB, 0, 78 * GIB)
    gpu.ok("cuMemcpyDtoD_v2", address + 40 * GIB, address + 2 * GIB, 38 * GIB)
    assert gpu.control.resident() < 64 * MIB
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert sum(1 for _ in maps) < 5000  # the host maps none of it
    gpu.ok("cuMemUnmap", address, 80 * GIB)
    assert gpu.control.used() == 0
    gpu.ok("cuMemAddressFree", address, 80 * GIB)


def test_a_second_alias_of_everything(start: Start) -> None:
    gpu = start("memory:8GiB")
    first, second = gpu.reserve(8 * GIB), gpu.reserve(8 * GIB)
    count = 8 * GIB // GRANULE
    for i in range(count):
        handle = gpu.create()
        gpu.map(first + i * GRANULE, handle)
        gpu.map(second + (count - 1 - i) * GRANULE, handle)
        gpu.ok("cuMemRelease", handle)
    assert gpu.set_access(first, 8 * GIB) == SUCCESS
    assert gpu.set_access(second, 8 * GIB) == SUCCESS
    gpu.upload(first + 5 * GRANULE, b"the sixth")
    assert gpu.download(second + (count - 6) * GRANULE, 9) == b"the sixth"


def test_the_host_may_not_touch_device_memory(start: Start) -> None:
    gpu = start()
    address = gpu.mapped()
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                assert line.split()[1].startswith("---")
                return
    raise AssertionError("the reservation is not in the address space")


def test_a_hundred_thousand_events(start: Start) -> None:
    gpu = start("streams:deferred")
    streams = [gpu.stream() for _ in range(8)]
    events = [gpu.event() for _ in range(1000)]
    for i in range(100_000):
        gpu.record(events[i % 1000], streams[i % 8])
    gpu.ok("cuCtxSynchronize")
    assert gpu.control.pending() == 0


def test_driver_calls_are_cheap(start: Start) -> None:
    gpu = start("memory:8GiB")
    address, handle = gpu.reserve(8 * GIB), gpu.create()
    begin = time.thread_time()  # what a busy machine gives to others does not count
    for i in range(4000):
        gpu.call("cuMemMap", address + i * GRANULE, GRANULE, 0, handle, 0)
    each = (time.thread_time() - begin) / 4000
    assert each < 100e-6  # about 0.4 us in the driver; the rest is ctypes and a slow machine
