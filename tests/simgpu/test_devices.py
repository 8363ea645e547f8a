"""Several devices: identity, contexts, peers, visibility, and which device may reach which memory."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from simulated_driver import (
    GIB,
    GRANULE,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    NO_DEVICE,
    NOT_SUPPORTED,
    PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED,
    SUCCESS,
    SimulatedDriver,
    driver_path,
)

Start = Callable[..., SimulatedDriver]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_count_and_identity(start: Start, count: int) -> None:
    gpu = start(f"devices:{count}")
    assert gpu.out("cuDeviceGetCount", kind=ctypes.c_int) == count
    identities = set()
    for device in range(count):
        uuid, bus = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
        gpu.ok("cuDeviceGetUuid_v2", uuid, device)
        gpu.ok("cuDeviceGetPCIBusId", bus, 16, device)
        assert gpu.out("cuDeviceGetByPCIBusId", bus, kind=ctypes.c_int) == device
        identities.add((uuid.raw, bus.value))
    assert len(identities) == count
    name = ctypes.create_string_buffer(64)
    assert gpu.call("cuDeviceGetName", name, 64, count) == INVALID_DEVICE
    gpu.ok("cuDeviceGetName", name, 64, 0)
    assert b"simgpu" in name.value
    assert gpu.out("cuDeviceGetAttribute", 102, 0, kind=ctypes.c_int) == 1  # virtual memory management
    assert gpu.out("cuDeviceGetAttribute", 75, 0, kind=ctypes.c_int) == 9


def test_contexts_are_a_stack_per_thread(start: Start) -> None:
    gpu = start("devices:2")
    first, second = gpu.use_device(0), gpu.use_device(1)
    gpu.ok("cuCtxPushCurrent_v2", first)
    assert gpu.out("cuCtxGetDevice", kind=ctypes.c_int) == 0
    assert gpu.out("cuCtxPopCurrent_v2") == first
    assert gpu.out("cuCtxGetCurrent") == second
    gpu.ok("cuCtxSetCurrent", None)
    assert gpu.call("cuCtxPopCurrent_v2", None) == INVALID_CONTEXT
    assert gpu.call("cuCtxSetCurrent", 777) == INVALID_CONTEXT
    flags, active = ctypes.c_uint(), ctypes.c_int()
    for _ in range(2):
        gpu.ok("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        assert active.value == 1
        gpu.ok("cuDevicePrimaryCtxRelease_v2", 0)
    gpu.ok("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    assert active.value == 0
    assert gpu.call("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT
    assert gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(flags), 2) == INVALID_DEVICE


def test_each_device_has_its_own_memory(start: Start) -> None:
    gpu = start("devices:2")
    gpu.create(GIB, device=1)
    assert (gpu.control.used(0), gpu.control.used(1)) == (0, GIB)
    gpu.create(GIB, device=0)
    gpu.use_device(1)
    out = ctypes.c_uint64()
    assert gpu.call("cuMemAlloc_v2", ctypes.byref(out), 1) == 2


def test_peer_access_is_switched_once(start: Start) -> None:
    gpu = start("devices:2")
    first, second = gpu.use_device(0), gpu.use_device(1)
    assert gpu.out("cuDeviceCanAccessPeer", 0, 1, kind=ctypes.c_int) == 1
    assert gpu.out("cuDeviceCanAccessPeer", 0, 0, kind=ctypes.c_int) == 0
    assert gpu.call("cuCtxEnablePeerAccess", second, 0) == INVALID_CONTEXT  # itself
    assert gpu.call("cuCtxDisablePeerAccess", first) == PEER_ACCESS_NOT_ENABLED
    gpu.ok("cuCtxEnablePeerAccess", first, 0)
    assert gpu.call("cuCtxEnablePeerAccess", first, 0) == PEER_ACCESS_ALREADY_ENABLED
    gpu.ok("cuCtxDisablePeerAccess", first)


def test_mapped_memory_needs_access_for_the_peer(start: Start) -> None:
    gpu = start("devices:2")
    address = gpu.mapped(2)
    assert gpu.set_access(address + GRANULE, GRANULE, device=1) == SUCCESS
    gpu.use_device(1)
    stream = gpu.stream()
    gpu.write(stream, address + GRANULE, value=3)
    assert gpu.call("cuMemsetD8Async", address, 1, 16, stream) == ILLEGAL_ADDRESS
    gpu.violated("device 1", "without access")


def test_a_peer_copy_needs_no_access(start: Start) -> None:
    gpu = start("devices:2")
    first, second = gpu.use_device(0), gpu.use_device(1)
    there = gpu.mapped(device=1)
    gpu.use_device(0)
    here = gpu.mapped()
    gpu.upload(here, b"over the bridge")
    gpu.ok("cuMemcpyPeerAsync", there, second, here, first, 15, 0)
    assert gpu.control.read(there, 15) == b"over the bridge"
    assert gpu.call("cuMemcpyDtoDAsync_v2", there, here, 15, 0) == ILLEGAL_ADDRESS
    gpu.violated("without access")


def test_devices_that_cannot_reach_each_other(start: Start) -> None:
    gpu = start("devices:2")
    gpu.control.set_peers(False)
    first, second = gpu.use_device(0), gpu.use_device(1)
    assert gpu.out("cuDeviceCanAccessPeer", 0, 1, kind=ctypes.c_int) == 0
    assert gpu.call("cuCtxEnablePeerAccess", first, 0) == PEER_ACCESS_UNSUPPORTED
    there = gpu.mapped(device=1)
    assert gpu.set_access(there, GRANULE, device=0) == NOT_SUPPORTED
    gpu.use_device(0)
    here = gpu.mapped()
    gpu.upload(here, b"over the bridge")
    gpu.ok("cuMemcpyPeerAsync", there, second, here, first, 15, 0)
    assert gpu.control.read(there, 15) == b"over the bridge"


def test_plain_memory_and_peers(start: Start) -> None:
    gpu = start("devices:2")
    first = gpu.use_device(0)
    here = gpu.alloc()
    gpu.use_device(1)
    there, stream = gpu.alloc(), gpu.stream()
    gpu.ok("cuMemcpyDtoDAsync_v2", there, here, 64, stream)  # the driver copies between any two
    gpu.ok("cuCtxEnablePeerAccess", first, 0)
    gpu.write(stream, here)  # a kernel on device 1 needs the access
    gpu.ok("cuCtxDisablePeerAccess", first)
    with pytest.raises(Exception, match="700"):
        gpu.write(stream, here)
    gpu.violated("peer access")


def test_events_belong_to_a_device_waits_cross(start: Start) -> None:
    gpu = start("devices:2,streams:deferred")
    first, event = gpu.stream(), gpu.event()
    address = gpu.mapped()
    gpu.write(first, address)
    gpu.record(event, first)
    gpu.use_device(1)
    second = gpu.stream()
    assert gpu.call("cuEventRecord", event, second) == INVALID_HANDLE
    gpu.wait(second, event)
    gpu.ok("cuStreamSynchronize", second)
    assert gpu.control.pending() == 0


def test_a_fault_stays_on_its_device(start: Start) -> None:
    gpu = start("devices:2")
    address = gpu.reserve()
    gpu.map(address, gpu.create())
    assert gpu.call("cuMemsetD8_v2", address, 1, 1) == ILLEGAL_ADDRESS
    gpu.violated("without access")
    assert gpu.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    gpu.use_device(1)
    gpu.ok("cuCtxSynchronize")
    gpu.alloc()


VISIBLE = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
count, bus = ctypes.c_int(-1), ctypes.create_string_buffer(16)
code = driver.cuInit(0)
driver.cuDeviceGetCount(ctypes.byref(count))
buses = []
for device in range(max(count.value, 0)):
    driver.cuDeviceGetPCIBusId(bus, 16, device)
    buses.append(int(bus.value.decode()[5:7], 16) - 16)
print(code, buses)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, f"{SUCCESS} [0, 1, 2, 3]"),
        ("2,0", f"{SUCCESS} [2, 0]"),
        ("", f"{NO_DEVICE} []"),
        ("1,9,2", f"{SUCCESS} [1]"),
        ("-1", f"{NO_DEVICE} []"),
        ("1,1", f"{NO_DEVICE} []"),
        ("GPU-73696d67-7075-2d64-6576-6963652d3033", f"{SUCCESS} [3]"),
    ],
)
def test_visible_devices(text: str | None, expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    environment["PYALLOC_SIMGPU"] = "memory:64MiB,devices:4"
    if text is not None:
        environment["CUDA_VISIBLE_DEVICES"] = text
    command = [sys.executable, "-c", VISIBLE, str(driver_path())]
    assert (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip() == expected
    )
