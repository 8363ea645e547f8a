"""What tests and benchmarks set and read: configuration, counts, costs and clock, fault plans, violations."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from simulated_driver import (
    GIB,
    GRANULE,
    MIB,
    NOT_FOUND,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    SUCCESS,
    SimulatedDriver,
    prop,
)

from pyalloc.errors import PyallocError

Start = Callable[..., SimulatedDriver]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("memory:big", "memory:big is not valid"),
        ("memory:0", "memory"),
        ("memory:1", "at least 2MiB"),
        ("devices:0", "1 to 8"),
        ("devices:9", "1 to 8"),
        ("streams:later", "immediate, deferred or timed"),
        ("seed:-1", "whole number"),
        ("oracle:maybe", "on or off"),
        ("session:a/b", "letters, digits"),
        ("colour:red", "unknown key 'colour'"),
        ("memory", "memory"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(gpu: SimulatedDriver, text: str, part: str) -> None:
    gpu.create()
    assert gpu.library.simgpu_reset(text.encode()) == -1
    assert part in gpu.library.simgpu_last_error().decode()
    assert gpu.control.used() == GRANULE  # the old simulation stays


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 * MIB), ("2GiB", 2 * GIB), ("4194304", 4 * MIB), ("1.5GiB", 3 * GIB // 2)]
)
def test_memory_sizes(start: Start, text: str, size: int) -> None:
    gpu = start(f"memory:{text}")
    assert gpu.out("cuDeviceTotalMem_v2", 0, kind=ctypes.c_size_t) == size


def test_nothing_works_before_cuinit(start: Start) -> None:
    gpu = start(init=False)
    out = ctypes.c_uint64()
    assert gpu.call("cuDeviceGetCount", ctypes.byref(out)) == NOT_INITIALIZED
    assert gpu.call("cuMemCreate", ctypes.byref(out), GRANULE, ctypes.byref(prop()), 0) == NOT_INITIALIZED
    gpu.ok("cuDriverGetVersion", ctypes.byref(out))
    gpu.ok("cuInit", 0)
    gpu.ok("cuInit", 0)
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), 1) == 201  # no context is current


def test_calls_are_counted_by_name(gpu: SimulatedDriver) -> None:
    gpu.control.reset_calls()
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.map(address + GRANULE, handle)
    plain = gpu.alloc()
    gpu.ok("cuMemcpyDtoD_v2", plain, plain, 0)
    assert gpu.control.all_calls() == {
        "cuMemAddressReserve": 1,
        "cuMemCreate": 1,
        "cuMemMap": 2,
        "cuMemAlloc": 1,
        "cuMemcpyDtoD": 1,
    }
    assert gpu.control.calls("cuMemAlloc") == gpu.control.calls("cuMemAlloc_v2") == 1
    assert gpu.control.calls() == 5  # copies are not memory management
    with pytest.raises(PyallocError, match="cuNothing"):
        gpu.control.calls("cuNothing")


def test_versions_of_a_name_share_one_count(gpu: SimulatedDriver) -> None:
    gpu.control.reset_calls()
    stream, status = gpu.stream(), ctypes.c_int()
    gpu.ok("cuStreamGetCaptureInfo", stream, ctypes.byref(status), None)
    gpu.ok("cuStreamGetCaptureInfo_v2", stream, ctypes.byref(status), None, None, None, None)
    gpu.ok("cuStreamGetCaptureInfo_v3", stream, ctypes.byref(status), None, None, None, None, None)
    assert gpu.control.calls("cuStreamGetCaptureInfo") == 3


def test_costs_move_the_virtual_clock(gpu: SimulatedDriver) -> None:
    gpu.control.set_cost("cuMemCreate", 10.0, 0.0, 0.5)
    gpu.control.set_cost("cuMemSetAccess", 1.0, 20.0, 0.0)
    gpu.control.set_cost("cuMemUnmap", 0.0, 3.0, 0.0)
    address = gpu.mapped(4)
    assert gpu.control.clock() == pytest.approx(4 * (10 + 2 * 0.5) + 1 + 4 * 20)
    gpu.ok("cuMemUnmap", address, 4 * GRANULE)
    assert gpu.control.clock() == pytest.approx(44 + 81 + 12)
    gpu.control.advance(5.0)
    assert gpu.control.clock() == pytest.approx(142)
    with pytest.raises(PyallocError, match="cuNothing"):
        gpu.control.set_cost("cuNothing", 1.0)


def test_the_nth_call_fails_and_does_nothing(gpu: SimulatedDriver) -> None:
    gpu.control.fail("cuMemCreate", nth=2, times=2, error=OUT_OF_MEMORY)
    out = ctypes.c_uint64()
    codes = [gpu.call("cuMemCreate", ctypes.byref(out), GRANULE, ctypes.byref(prop()), 0) for _ in range(5)]
    assert codes == [SUCCESS, OUT_OF_MEMORY, OUT_OF_MEMORY, SUCCESS, SUCCESS]
    assert gpu.control.used() == 3 * GRANULE
    assert gpu.control.calls("cuMemCreate") == 5


def test_faults_for_ever_until_cleared(gpu: SimulatedDriver) -> None:
    gpu.control.fail("cuMemMap", nth=1, times=0, error=205)
    address, handle = gpu.reserve(), gpu.create()
    assert [gpu.call("cuMemMap", address, GRANULE, 0, handle, 0) for _ in range(3)] == [205] * 3
    gpu.control.clear_faults()
    gpu.map(address, handle)


def test_every_entry_point_can_fail(gpu: SimulatedDriver) -> None:
    for name in ("cuInit", "cuCtxGetCurrent", "cuEventQuery", "cuStreamWaitEvent", "cuMemFree", "cuMemGetInfo"):
        gpu.control.fail(name, error=999)
        symbol = name + "_v2" if name in ("cuMemFree", "cuMemGetInfo") else name
        assert gpu.call(symbol, 0, 0, 0) == 999
    with pytest.raises(PyallocError, match="nth is below 1"):
        gpu.control.fail("cuInit", nth=0)


def test_violations_are_texts_in_order(gpu: SimulatedDriver) -> None:
    gpu.call("cuMemRelease", 5)
    gpu.call("cuMemAddressFree", 0x1000, GRANULE)
    texts = gpu.take_violations()
    assert ["cuMemRelease" in texts[0], "cuMemAddressFree" in texts[1]] == [True, True]
    assert gpu.library.simgpu_violation(ctypes.c_int64(0), None, ctypes.c_size_t(0)) == 0
    gpu.call("cuMemRelease", 5)
    short = ctypes.create_string_buffer(8)
    assert gpu.library.simgpu_violation(ctypes.c_int64(0), short, ctypes.c_size_t(8)) > 8
    assert short.value == b"cuMemRe"
    gpu.control.clear_violations()


def test_capacity_can_change(gpu: SimulatedDriver) -> None:
    gpu.create(512 * MIB)
    gpu.control.set_capacity(256 * MIB)
    out = ctypes.c_uint64()
    assert gpu.call("cuMemCreate", ctypes.byref(out), GRANULE, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    free, total = ctypes.c_size_t(1), ctypes.c_size_t()
    gpu.ok("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (0, 256 * MIB)
    gpu.control.set_capacity(2 * GIB)
    gpu.create(GIB)
    with pytest.raises(PyallocError, match="no device 3"):
        gpu.control.set_capacity(GIB, device=3)


@pytest.mark.parametrize("told", [True, False])
def test_a_containers_limit(gpu: SimulatedDriver, told: bool) -> None:
    """Refusals come at the limit; cuMemGetInfo tells of it or not, the device's total never does."""
    gpu.control.set_limit(64 * MIB, told=told)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    gpu.ok("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == ((64 * MIB,) * 2 if told else (GIB,) * 2)
    assert gpu.out("cuDeviceTotalMem_v2", 0, kind=ctypes.c_size_t) == gpu.control.capacity() == GIB
    gpu.create(62 * MIB)
    out = ctypes.c_uint64()
    assert gpu.call("cuMemCreate", ctypes.byref(out), 2 * GRANULE, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), 4 * MIB) == OUT_OF_MEMORY
    gpu.create(GRANULE)
    gpu.control.set_limit(0)
    gpu.create(512 * MIB)
    with pytest.raises(PyallocError, match="no device 3"):
        gpu.control.set_limit(GIB, device=3)


def test_reading_and_writing_from_outside(gpu: SimulatedDriver) -> None:
    address = gpu.mapped(2)
    gpu.control.write(address + GRANULE - 3, b"abcdef")
    assert gpu.control.read(address + GRANULE - 3, 6) == b"abcdef"
    with pytest.raises(PyallocError, match="not fully mapped"):
        gpu.control.read(address + 2 * GRANULE - 3, 6)


def test_error_names(gpu: SimulatedDriver) -> None:
    text = ctypes.c_char_p()
    gpu.ok("cuGetErrorName", NOT_FOUND, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_NOT_FOUND"
    gpu.ok("cuGetErrorString", OUT_OF_MEMORY, ctypes.byref(text))
    assert text.value == b"out of memory"
    assert gpu.call("cuGetErrorName", 12345, ctypes.byref(text)) == 1
