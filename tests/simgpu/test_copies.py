"""Copies and memsets: where bytes land, what host memory must be, and that untouched memory costs nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_driver import (
    GIB,
    GRANULE,
    HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    MIB,
    SUCCESS,
    SimulatedDriver,
    load_driver,
)

Start = Callable[..., SimulatedDriver]
CHUNK = 4096


def test_bytes_cross_granules(gpu: SimulatedDriver) -> None:
    address = gpu.mapped(3)
    data = bytes(range(256)) * 32768
    assert len(data) == 8 * MIB
    at = address + GRANULE // 2
    gpu.upload(at, data[: 3 * MIB])
    assert gpu.download(at, 3 * MIB) == data[: 3 * MIB]
    gpu.ok("cuMemcpyDtoD_v2", address + 1000, at + MIB, MIB // 2)
    assert gpu.control.read(address + 1000, MIB // 2) == data[MIB : MIB + MIB // 2]


def test_fresh_memory_reads_as_zero(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    gpu.ok("cuMemsetD8_v2", address, 0xAB, GRANULE)
    gpu.ok("cuMemUnmap", address, GRANULE)
    again = gpu.mapped()
    assert gpu.download(again, GRANULE) == bytes(GRANULE)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["upload", "copy", "set8", "set32", "zero"]),
            st.integers(0, 3 * CHUNK),
            st.integers(0, 3 * CHUNK),
            st.integers(1, 2 * CHUNK),
            st.integers(0, 255),
        ),
        max_size=25,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
def test_memory_holds_what_was_written(steps: list[tuple[str, int, int, int, int]]) -> None:
    gpu = load_driver()
    gpu.reset("memory:64MiB")
    gpu.ok("cuInit", 0)
    gpu.use_device(0)
    edge = gpu.mapped(2) + GRANULE - 2 * CHUNK - 100  # the window lies over the border of two granules
    model = bytearray(6 * CHUNK)
    for what, target, source, size, value in steps:
        size = min(size, len(model) - max(target, source))
        if what == "upload":
            data = bytes((value + i) % 251 for i in range(size))
            gpu.upload(edge + target, data)
        elif what == "copy":
            if abs(target - source) < size:
                continue  # overlapping copies are undefined
            gpu.ok("cuMemcpyDtoD_v2", edge + target, edge + source, size)
            data = bytes(model[source : source + size])
        elif what == "set32":
            target, size = (edge + target) // 4 * 4 + 4 - edge, size // 4 * 4
            size = max(0, min(size, len(model) - target) // 4 * 4)
            gpu.ok("cuMemsetD32_v2", edge + target, 0x01020300 + value, size // 4)
            data = (0x01020300 + value).to_bytes(4, "little") * (size // 4)
        else:
            fill = 0 if what == "zero" else value
            gpu.ok("cuMemsetD8_v2", edge + target, fill, size)
            data = bytes([fill]) * size
        model[target : target + size] = data
    assert gpu.download(edge, len(model)) == bytes(model)


@pytest.mark.parametrize(
    ("function", "bytes_each"), [("cuMemsetD8_v2", 1), ("cuMemsetD16_v2", 2), ("cuMemsetD32_v2", 4)]
)
def test_memset_repeats_its_pattern_over_a_border(gpu: SimulatedDriver, function: str, bytes_each: int) -> None:
    address = gpu.mapped(2) + GRANULE - 4096 * bytes_each
    value = 0x04030201 & (1 << 8 * bytes_each) - 1
    gpu.ok(function, address, value, 8192)
    assert gpu.download(address, 8192 * bytes_each) == value.to_bytes(bytes_each, "little") * 8192


def test_memset_wants_its_elements_aligned(gpu: SimulatedDriver) -> None:
    assert gpu.call("cuMemsetD32_v2", gpu.mapped() + 2, 1, 8) == INVALID_VALUE


def test_rows(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    gpu.ok("cuMemsetD2D8_v2", address, 64, 7, 10, 3)
    expected = (bytes([7]) * 10 + bytes(54)) * 3
    assert gpu.download(address, 192) == expected

    class Side(ctypes.Structure):
        _fields_ = (
            ("x", ctypes.c_size_t),
            ("y", ctypes.c_size_t),
            ("type", ctypes.c_int),
            ("host", ctypes.c_void_p),
            ("device", ctypes.c_uint64),
            ("array", ctypes.c_void_p),
            ("pitch", ctypes.c_size_t),
        )

    class Copy(ctypes.Structure):
        _fields_ = (("source", Side), ("target", Side), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(30)
    copy = Copy(Side(0, 0, 2, None, address, None, 64), Side(0, 0, 1, ctypes.addressof(buffer), 0, None, 10), 10, 3)
    gpu.ok("cuMemcpy2D_v2", ctypes.byref(copy))
    assert buffer.raw == bytes([7]) * 30


def test_addresses_of_nothing_are_refused(gpu: SimulatedDriver) -> None:
    assert gpu.call("cuMemcpyHtoD_v2", 0x1234, b"x", 1) == INVALID_VALUE
    gpu.violated("no device address")
    assert gpu.call("cuMemsetD8_v2", 0x1234, 0, 1) == INVALID_VALUE
    gpu.violated("no device address")
    assert gpu.call("cuMemcpyHtoD_v2", gpu.alloc(), gpu.alloc(), 1) == INVALID_VALUE


def test_a_copy_may_not_run_past_an_allocation(gpu: SimulatedDriver) -> None:
    address = gpu.alloc(1000)
    gpu.upload(address, bytes(1000))
    assert gpu.call("cuMemcpyHtoD_v2", address, bytes(1001), 1001) == ILLEGAL_ADDRESS
    gpu.violated("write by a copy of 1001 bytes")


def test_an_unreadable_host_address_is_an_error_not_a_crash(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    reserved = gpu.reserve()  # a host range nobody may touch
    gpu.ok("cuMemAddressFree", reserved, GRANULE)
    assert gpu.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(0x10), 64) == ILLEGAL_ADDRESS
    gpu.violated("host address is not accessible")


def test_host_and_device_are_told_apart(gpu: SimulatedDriver) -> None:
    address, pinned, plain = gpu.mapped(), gpu.pinned(64), ctypes.create_string_buffer(b"plain host memory", 64)
    gpu.ok("cuMemcpy", address, ctypes.addressof(plain), 64)
    gpu.ok("cuMemcpy", ctypes.addressof(pinned), address, 64)
    assert pinned.raw == plain.raw
    gpu.ok("cuMemcpy", ctypes.addressof(plain), ctypes.addressof(pinned), 5)
    assert gpu.control.pending() == 0


def test_pinned_memory_is_read_when_the_copy_runs_pageable_when_it_is_made(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream, pinned = gpu.mapped(), gpu.stream(), gpu.pinned(16)
    pageable = ctypes.create_string_buffer(b"before", 6)
    pinned[:6] = b"before"
    gpu.ok("cuMemcpyHtoDAsync_v2", address, ctypes.addressof(pinned), 6, stream)
    gpu.ok("cuMemcpyHtoDAsync_v2", address + 64, ctypes.addressof(pageable), 6, stream)
    pinned[:6] = b"later!"
    pageable[:6] = b"later!"
    gpu.ok("cuStreamSynchronize", stream)
    assert gpu.control.read(address, 6) == b"later!"
    assert gpu.control.read(address + 64, 6) == b"before"


def test_a_pageable_target_is_complete_on_return(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream = gpu.mapped(), gpu.stream()
    gpu.write(stream, address, value=65)
    buffer = ctypes.create_string_buffer(1)
    gpu.ok("cuMemcpyDtoHAsync_v2", ctypes.addressof(buffer), address, 1, stream)
    assert buffer.raw == b"A"
    pinned = gpu.pinned(1)
    gpu.write(stream, address, value=66)
    gpu.ok("cuMemcpyDtoHAsync_v2", ctypes.addressof(pinned), address, 1, stream)
    assert pinned.raw == b"\0"
    gpu.ok("cuStreamSynchronize", stream)
    assert pinned.raw == b"B"


def test_registered_memory(gpu: SimulatedDriver) -> None:
    buffer = ctypes.create_string_buffer(8192)
    at = ctypes.addressof(buffer)
    gpu.ok("cuMemHostRegister_v2", at, 8192, 0)
    assert gpu.call("cuMemHostRegister_v2", at + 100, 10, 0) == HOST_MEMORY_ALREADY_REGISTERED
    assert gpu.out("cuMemHostGetDevicePointer_v2", at, 0) == at
    kind = ctypes.c_uint()
    gpu.ok("cuPointerGetAttribute", ctypes.byref(kind), 2, at + 8000)
    assert kind.value == 1
    assert gpu.call("cuMemHostUnregister", at + 100) == HOST_MEMORY_NOT_REGISTERED
    gpu.ok("cuMemHostUnregister", at)
    assert gpu.call("cuMemHostUnregister", at) == HOST_MEMORY_NOT_REGISTERED
    assert gpu.call("cuPointerGetAttribute", ctypes.byref(kind), 2, at) == INVALID_VALUE


def test_pointer_attributes(gpu: SimulatedDriver) -> None:
    plain, mapped = gpu.alloc(3 * MIB), gpu.mapped(2)

    def attribute(number: int, address: int) -> int:
        value = ctypes.c_uint64(0)
        gpu.ok("cuPointerGetAttribute", ctypes.byref(value), number, address)
        return value.value

    for address in (plain + 5, mapped + GRANULE + 5):
        assert attribute(2, address) & 0xFFFFFFFF == 2
        assert attribute(9, address) & 0xFFFFFFFF == 0
    assert (attribute(11, plain + 5), attribute(12, plain + 5)) == (plain, 3 * MIB)
    assert (attribute(19, mapped + GRANULE + 5), attribute(18, mapped + 5)) == (mapped + GRANULE, GRANULE)
    assert attribute(10, plain) & 0xFF == 1
    assert attribute(10, mapped) & 0xFF == 0
    assert attribute(7, plain) != attribute(7, gpu.alloc())


def test_memory_costs_the_host_only_what_was_written(gpu: SimulatedDriver) -> None:
    address = gpu.mapped(256)
    assert gpu.control.resident() == 0
    gpu.ok("cuMemsetD8_v2", address, 0, 512 * MIB)
    gpu.ok("cuMemcpyDtoD_v2", address + 256 * MIB, address, 256 * MIB)
    assert gpu.download(address + 300 * MIB, MIB) == bytes(MIB)
    assert gpu.control.resident() == 0
    gpu.upload(address + MIB, b"x" * MIB)
    gpu.ok("cuMemcpyDtoD_v2", address + 256 * MIB, address, 256 * MIB)
    assert gpu.control.resident() == 2 * MIB
    gpu.ok("cuMemsetD8_v2", address, 0, 256 * MIB)
    assert gpu.control.resident() == MIB
    assert gpu.download(address + 257 * MIB, MIB) == b"x" * MIB
    gpu.ok("cuMemUnmap", address, 512 * MIB)
    assert gpu.control.resident() == 0


def test_unpinning_and_freeing_host_memory(gpu: SimulatedDriver) -> None:
    pinned = gpu.pinned(100)
    address = ctypes.addressof(pinned)
    assert gpu.call("cuMemFreeHost", address + 1) == INVALID_VALUE
    gpu.ok("cuMemFreeHost", address)
    assert gpu.call("cuMemFreeHost", address) == INVALID_VALUE
    gpu.ok("cuMemFreeHost", None)


def test_plain_memory_is_aligned_separate_and_freed_once(gpu: SimulatedDriver) -> None:
    sizes = (1, 500, 4096, 100_000, 2 * MIB, 5 * MIB)
    blocks = [gpu.alloc(size) for size in sizes]
    assert all(address % 512 == 0 for address in blocks)
    for address, size, value in zip(blocks, sizes, range(1, 7), strict=True):
        gpu.ok("cuMemsetD8_v2", address, value, size)
    for address, size, value in zip(blocks, sizes, range(1, 7), strict=True):
        assert gpu.download(address, size) == bytes([value]) * size
    assert gpu.call("cuMemFree_v2", blocks[5] + 512) == INVALID_VALUE
    for address in blocks:
        gpu.ok("cuMemFree_v2", address)
    assert gpu.call("cuMemFree_v2", blocks[0]) == INVALID_VALUE
    assert gpu.call("cuMemFree_v2", gpu.mapped()) == INVALID_VALUE
    gpu.ok("cuMemFree_v2", 0)
    out = ctypes.c_uint64()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), 0) == INVALID_VALUE
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), 2 * GIB) == 2
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), 1 << 60) == 2
    assert gpu.call("cuMemcpyDtoD_v2", 0, 0, 0) == SUCCESS
