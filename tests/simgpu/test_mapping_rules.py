"""Virtual memory management: each rule of the driver, and what breaking it returns."""

from __future__ import annotations

import ctypes

import pytest
from simulated_driver import (
    GIB,
    GRANULE,
    ILLEGAL_ADDRESS,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    NOT_PERMITTED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    POSIX_FD,
    READ,
    SUCCESS,
    SimulatedDriver,
    prop,
)


def test_granularity_is_asked_not_assumed(gpu: SimulatedDriver) -> None:
    for which in (0, 1):
        assert gpu.out("cuMemGetAllocationGranularity", ctypes.byref(prop()), which) == GRANULE
    size = ctypes.c_size_t()
    assert gpu.call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(prop()), 2) == INVALID_VALUE
    assert gpu.call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(prop(5)), 0) == INVALID_DEVICE


@pytest.mark.parametrize(
    ("size", "alignment", "flags"),
    [(0, 0, 0), (GRANULE - 1, 0, 0), (4096, 0, 0), (GRANULE, 3 * MIB, 0), (GRANULE, 0, 1)],
)
def test_reserve_refuses(gpu: SimulatedDriver, size: int, alignment: int, flags: int) -> None:
    address = ctypes.c_uint64()
    assert gpu.call("cuMemAddressReserve", ctypes.byref(address), size, alignment, 0, flags) == INVALID_VALUE


def test_reserve_gives_aligned_ranges_without_memory(gpu: SimulatedDriver) -> None:
    ranges = [gpu.reserve(GIB, alignment) for alignment in (0, 4096, GRANULE, 64 * MIB, GIB)]
    assert [
        address % alignment for address, alignment in zip(ranges, (GRANULE,) * 3 + (64 * MIB, GIB), strict=True)
    ] == [0] * 5
    assert gpu.control.used() == 0
    huge = gpu.reserve(256 * GIB)  # addresses are plentiful
    gpu.ok("cuMemAddressFree", huge, 256 * GIB)
    address = ctypes.c_uint64()
    assert gpu.call("cuMemAddressReserve", ctypes.byref(address), 1 << 60, 0, 0, 0) == OUT_OF_MEMORY


def test_a_free_hint_is_taken_and_a_taken_one_ignored(gpu: SimulatedDriver) -> None:
    first = gpu.reserve(4 * GRANULE)
    gpu.ok("cuMemAddressFree", first, 4 * GRANULE)
    assert gpu.reserve(4 * GRANULE, hint=first) == first
    assert gpu.reserve(4 * GRANULE, hint=first) != first


def test_address_free_wants_one_whole_reservation(gpu: SimulatedDriver) -> None:
    address = gpu.reserve(4 * GRANULE)
    for start, size in (
        (address, 2 * GRANULE),
        (address + GRANULE, 3 * GRANULE),
        (address, 8 * GRANULE),
        (0x1000, GRANULE),
    ):
        assert gpu.call("cuMemAddressFree", start, size) == INVALID_VALUE
    assert len(gpu.take_violations()) == 4
    gpu.ok("cuMemAddressFree", address, 4 * GRANULE)
    assert gpu.call("cuMemAddressFree", address, 4 * GRANULE) == INVALID_VALUE
    gpu.violated("not one whole reservation")


def test_address_free_with_mappings(gpu: SimulatedDriver) -> None:
    address = gpu.mapped(2)
    gpu.ok("cuMemUnmap", address, GRANULE)
    assert gpu.call("cuMemAddressFree", address, 2 * GRANULE) == INVALID_VALUE
    gpu.violated("1 mappings")
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    gpu.ok("cuMemAddressFree", address, 2 * GRANULE)


@pytest.mark.parametrize(("size", "flags"), [(0, 0), (GRANULE + 4096, 0), (GRANULE, 1)])
def test_create_refuses(gpu: SimulatedDriver, size: int, flags: int) -> None:
    handle = ctypes.c_uint64()
    assert gpu.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(prop()), flags) == INVALID_VALUE
    assert gpu.control.used() == 0


def test_create_refuses_what_the_device_is_not(gpu: SimulatedDriver) -> None:
    handle = ctypes.c_uint64()
    assert gpu.call("cuMemCreate", ctypes.byref(handle), GRANULE, ctypes.byref(prop(1)), 0) == INVALID_DEVICE
    assert gpu.call("cuMemCreate", ctypes.byref(handle), GRANULE, ctypes.byref(prop(0, 8)), 0) == NOT_SUPPORTED
    wrong = prop()
    wrong.type = 0
    assert gpu.call("cuMemCreate", ctypes.byref(handle), GRANULE, ctypes.byref(wrong), 0) == INVALID_VALUE


def test_out_of_memory_leaves_nothing_behind(gpu: SimulatedDriver) -> None:
    half = gpu.create(GIB // 2)
    handle = ctypes.c_uint64(77)
    assert gpu.call("cuMemCreate", ctypes.byref(handle), GIB, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    assert gpu.call("cuMemCreate", ctypes.byref(handle), 1 << 60, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    assert handle.value == 77
    assert gpu.control.used() == GIB // 2
    gpu.ok("cuMemRelease", gpu.create(GIB // 2))
    gpu.ok("cuMemRelease", half)
    assert gpu.control.used() == 0


def test_map_checks_range_handle_offset_and_size(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(4 * GRANULE), gpu.create(2 * GRANULE)
    refused = [
        (address, 0, 0, handle, 0),
        (address, GRANULE + 4096, 0, handle, 0),
        (address + 4096, GRANULE, 0, handle, 0),
        (address, 2 * GRANULE, GRANULE, handle, 0),  # past the handle's end
        (address, 4 * GRANULE, 0, handle, 0),  # more than the handle has
        (address + 3 * GRANULE, 2 * GRANULE, 0, handle, 0),  # past the reservation
        (0x7000_0000_0000, 2 * GRANULE, 0, handle, 0),
        (address, 2 * GRANULE, 0, handle, 1),
        (address, GRANULE, 0, 12345, 0),
    ]
    for arguments in refused:
        assert gpu.call("cuMemMap", *arguments) == INVALID_VALUE, arguments
    gpu.map(address + GRANULE, handle, 2 * GRANULE)
    for start in (address, address + GRANULE, address + 2 * GRANULE):
        assert gpu.call("cuMemMap", start, 2 * GRANULE, 0, handle, 0) == INVALID_VALUE
    one = gpu.create()
    gpu.map(address, one)
    gpu.map(address + 3 * GRANULE, one)


def test_a_handle_is_mapped_whole(gpu: SimulatedDriver) -> None:
    """As an H200 with driver 580 answers: half a handle, from its start or behind it, is not supported."""
    address, handle = gpu.reserve(4 * GRANULE), gpu.create(2 * GRANULE)
    for offset in (0, GRANULE):
        assert gpu.call("cuMemMap", address, GRANULE, offset, handle, 0) == NOT_SUPPORTED
    gpu.map(address, handle, 2 * GRANULE)


def test_a_released_handle_cannot_be_mapped(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.ok("cuMemRelease", handle)
    assert gpu.call("cuMemMap", address + GRANULE, GRANULE, 0, handle, 0) == INVALID_VALUE


def test_mapping_gives_no_access(gpu: SimulatedDriver) -> None:
    address = gpu.reserve()
    gpu.map(address, gpu.create())
    assert gpu.call("cuMemsetD8_v2", address, 1, 16) == ILLEGAL_ADDRESS
    gpu.violated("without access")


def test_access_is_needed_after_every_new_mapping(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.map(address, gpu.create())
    assert gpu.call("cuMemsetD8_v2", address, 1, 16) == ILLEGAL_ADDRESS
    gpu.violated("without access")


def test_set_access_wants_whole_mappings(gpu: SimulatedDriver) -> None:
    address = gpu.reserve(8 * GRANULE)
    gpu.map(address, gpu.create(2 * GRANULE), 2 * GRANULE)
    gpu.map(address + 2 * GRANULE, gpu.create())
    assert gpu.set_access(address, GRANULE) == INVALID_VALUE  # half of a mapping
    assert gpu.set_access(address + GRANULE, 2 * GRANULE) == INVALID_VALUE
    assert gpu.set_access(address, 4 * GRANULE) == INVALID_VALUE  # not fully mapped
    assert gpu.set_access(address + 4 * GRANULE, GRANULE) == INVALID_VALUE
    assert gpu.set_access(address, 0) == INVALID_VALUE
    assert gpu.set_access(address, 3 * GRANULE, device=3) == INVALID_DEVICE
    assert gpu.set_access(address, 3 * GRANULE, flags=2) == INVALID_VALUE
    assert gpu.set_access(address, 3 * GRANULE) == SUCCESS
    gpu.ok("cuMemsetD8_v2", address, 7, 3 * GRANULE)


def test_read_only_memory_cannot_be_written(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    gpu.upload(address, b"kept")
    assert gpu.set_access(address, GRANULE, flags=READ) == SUCCESS
    assert gpu.download(address, 4) == b"kept"
    flags = ctypes.c_ulonglong()
    gpu.ok("cuMemGetAccess", ctypes.byref(flags), ctypes.byref(prop().location), address)
    assert flags.value == READ
    assert gpu.call("cuMemcpyHtoD_v2", address, b"lost", 4) == ILLEGAL_ADDRESS
    gpu.violated("write by a copy", "without access")


def test_unmap_wants_whole_mappings_and_takes_several(gpu: SimulatedDriver) -> None:
    address = gpu.reserve(8 * GRANULE)
    gpu.map(address, gpu.create(2 * GRANULE), 2 * GRANULE)
    gpu.map(address + 2 * GRANULE, gpu.create())
    for start, size in ((address, GRANULE), (address + GRANULE, 2 * GRANULE), (address, 4 * GRANULE), (address, 0)):
        assert gpu.call("cuMemUnmap", start, size) == INVALID_VALUE
    gpu.ok("cuMemUnmap", address, 3 * GRANULE)
    assert gpu.call("cuMemUnmap", address, 3 * GRANULE) == INVALID_VALUE
    gpu.map(address + GRANULE, gpu.create())  # a plain reservation again


def test_touching_unmapped_memory_is_a_device_fault(gpu: SimulatedDriver) -> None:
    address = gpu.mapped(2)
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    assert gpu.call("cuMemsetD8_v2", address, 1, GRANULE + 1) == ILLEGAL_ADDRESS
    gpu.violated("not mapped")
    assert gpu.call("cuCtxSynchronize") == ILLEGAL_ADDRESS  # the error stays, as on a GPU


def test_unmapping_memory_that_queued_work_uses(gpu: SimulatedDriver) -> None:
    gpu.control.set_stream_mode("deferred")
    address, stream = gpu.mapped(2), gpu.stream()
    gpu.write(stream, address + GRANULE, 64)
    gpu.ok("cuMemUnmap", address, GRANULE)  # nothing uses this one
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    gpu.violated("work queued")
    assert gpu.call("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS
    assert gpu.take_violations() == []  # one mistake, one record


def test_memory_returns_when_neither_handle_nor_mapping_is_left(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.map(address + GRANULE, handle)
    gpu.ok("cuMemRelease", handle)
    assert gpu.control.used() == GRANULE
    gpu.ok("cuMemUnmap", address, GRANULE)
    assert gpu.control.used() == GRANULE
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    assert gpu.control.used() == 0


def test_releasing_twice(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(), gpu.create()
    gpu.map(address, handle)
    gpu.ok("cuMemRelease", handle)
    assert gpu.call("cuMemRelease", handle) == INVALID_VALUE
    gpu.violated("no reference is left")
    assert gpu.set_access(address, GRANULE) == SUCCESS
    gpu.ok("cuMemsetD8_v2", address, 1, 16)  # still mapped, still there


def test_retain_gives_the_handle_and_a_reference(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.ok("cuMemRelease", handle)
    again = gpu.out("cuMemRetainAllocationHandle", ctypes.c_void_p(address + 12345))
    gpu.ok("cuMemUnmap", address, GRANULE)
    assert gpu.control.used() == GRANULE
    gpu.map(address + GRANULE, again)
    gpu.ok("cuMemRelease", again)
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    assert gpu.control.used() == 0
    unmapped = ctypes.c_uint64()
    assert gpu.call("cuMemRetainAllocationHandle", ctypes.byref(unmapped), ctypes.c_void_p(address)) == INVALID_VALUE


def test_address_range_reports_one_mapping(gpu: SimulatedDriver) -> None:
    address = gpu.reserve(8 * GRANULE)
    gpu.map(address + GRANULE, gpu.create(3 * GRANULE), 3 * GRANULE)
    gpu.map(address + 4 * GRANULE, gpu.create())
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    gpu.ok("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address + 2 * GRANULE + 5)
    assert (base.value, size.value) == (address + GRANULE, 3 * GRANULE)
    assert gpu.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address) == INVALID_VALUE


def test_aliases_share_bytes(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.map(address + GRANULE, handle)
    assert gpu.set_access(address, 2 * GRANULE) == SUCCESS
    gpu.upload(address + 100, b"seen through both")
    assert gpu.download(address + GRANULE + 100, 17) == b"seen through both"
    assert gpu.control.used() == GRANULE
    gpu.ok("cuMemUnmap", address, GRANULE)
    assert gpu.download(address + GRANULE + 100, 17) == b"seen through both"


def test_bytes_follow_the_handle_to_a_new_address(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    assert gpu.set_access(address, GRANULE) == SUCCESS
    gpu.upload(address, b"moved")
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.map(address + GRANULE, handle)
    assert gpu.set_access(address + GRANULE, GRANULE) == SUCCESS
    assert gpu.download(address + GRANULE, 5) == b"moved"


def test_export_only_what_was_requested(gpu: SimulatedDriver) -> None:
    plain, shareable = gpu.create(), gpu.create(handle_types=POSIX_FD)
    fd = ctypes.c_int(-1)
    assert gpu.call("cuMemExportToShareableHandle", ctypes.byref(fd), plain, POSIX_FD, 0) == NOT_PERMITTED
    assert gpu.call("cuMemExportToShareableHandle", ctypes.byref(fd), shareable, 8, 0) == NOT_SUPPORTED
    assert gpu.call("cuMemExportToShareableHandle", ctypes.byref(fd), 99, POSIX_FD, 0) == INVALID_VALUE
    assert gpu.call("cuMemExportToShareableHandle", ctypes.byref(fd), shareable, POSIX_FD, 1) == INVALID_VALUE
    assert fd.value == -1
    handle = ctypes.c_uint64()
    assert gpu.call("cuMemImportFromShareableHandle", ctypes.byref(handle), 0, POSIX_FD) == INVALID_VALUE
    assert gpu.call("cuMemImportFromShareableHandle", ctypes.byref(handle), 0, 8) == NOT_SUPPORTED
    properties = prop()
    gpu.ok("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(properties), shareable)
    assert properties.handle_types == POSIX_FD


def test_ipc_handle_fails_on_mapped_memory(gpu: SimulatedDriver) -> None:
    ticket = ctypes.create_string_buffer(64)
    assert gpu.call("cuIpcGetMemHandle", ticket, gpu.mapped()) == INVALID_VALUE
    gpu.ok("cuIpcGetMemHandle", ticket, gpu.alloc())


def test_memory_information_is_true(gpu: SimulatedDriver) -> None:
    def free() -> int:
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        gpu.ok("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
        assert total.value == GIB
        return left.value

    assert free() == GIB
    handle = gpu.create(64 * MIB)
    small = gpu.alloc(100)
    assert free() == GIB - 64 * MIB - 512
    large = gpu.alloc(3 * MIB)
    assert free() == GIB - 68 * MIB - 512
    for address in (small, large):
        gpu.ok("cuMemFree_v2", address)
    gpu.ok("cuMemRelease", handle)
    assert free() == GIB
