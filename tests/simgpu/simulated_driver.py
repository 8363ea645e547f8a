"""The simulated driver for tests: every cu* function by name, CUDA's structures, and the steps that most tests need."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from support import need

from pyalloc.errors import LibraryError
from pyalloc.simgpu import Simulation, library_directory

MIB = 1 << 20
GIB = 1 << 30
GRANULE = 2 * MIB

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, UNSUPPORTED_LIMIT = 100, 101, 201, 215
INVALID_HANDLE, ILLEGAL_STATE, NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS = 400, 401, 500, 600, 700
PEER_ACCESS_UNSUPPORTED = 217
PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED = 704, 705
HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED = 712, 713
NOT_PERMITTED, NOT_SUPPORTED = 800, 801
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_MERGE, CAPTURE_UNMATCHED, CAPTURE_UNJOINED = 900, 901, 902, 903, 904
CAPTURE_ISOLATION, CAPTURE_IMPLICIT, CAPTURED_EVENT, CAPTURE_WRONG_THREAD = 905, 906, 907, 908

READ, READ_WRITE = 1, 3
POSIX_FD = 1
NON_BLOCKING = 1
DISABLE_TIMING, INTERPROCESS = 2, 4
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
LEGACY, PER_THREAD = 1, 2

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class AccessDesc(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


def prop(device: int = 0, handle_types: int = 0) -> AllocationProp:
    return AllocationProp(1, handle_types, Location(1, device), None, (ctypes.c_uint8 * 8)())


class SimulatedDriver:
    """`call` gives a function's error code; `ok` demands success; the rest are common steps that must succeed."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.control = Simulation(library)
        self.keep: list[object] = []  # what the driver holds a pointer to

    def call(self, name: str, *arguments: Any) -> int:
        converted = [ctypes.c_uint64(a & (1 << 64) - 1) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self.library, name)(*converted))

    def ok(self, name: str, *arguments: Any) -> None:
        code = self.call(name, *arguments)
        assert code == SUCCESS, f"{name} returned {code}; violations: {self.control.violations()}"

    def out(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint64) -> Any:
        """The value a function writes through its first argument."""
        value = kind()
        self.ok(name, ctypes.byref(value), *arguments)
        return value.value

    def reset(self, configuration: str) -> None:
        code = self.library.simgpu_reset(configuration.encode())
        assert code == 0, self.library.simgpu_last_error()

    def take_violations(self) -> list[str]:
        texts = self.control.violations()
        self.control.clear_violations()
        return texts

    def violated(self, *parts: str) -> None:
        """Exactly one rule was broken, and its text says so."""
        texts = self.take_violations()
        assert len(texts) == 1, texts
        for part in parts:
            assert part in texts[0], texts

    # --- devices ---

    def use_device(self, device: int) -> int:
        context = int(self.out("cuDevicePrimaryCtxRetain", device))
        self.ok("cuCtxSetCurrent", context)
        return context

    # --- memory ---

    def reserve(self, size: int = GRANULE, alignment: int = 0, hint: int = 0) -> int:
        return int(self.out("cuMemAddressReserve", size, alignment, hint, 0))

    def create(self, size: int = GRANULE, device: int = 0, handle_types: int = 0) -> int:
        return int(self.out("cuMemCreate", size, ctypes.byref(prop(device, handle_types)), 0))

    def set_access(self, address: int, size: int, device: int = 0, flags: int = READ_WRITE) -> int:
        return self.call("cuMemSetAccess", address, size, ctypes.byref(AccessDesc(Location(1, device), flags)), 1)

    def map(self, address: int, handle: int, size: int = GRANULE) -> None:
        self.ok("cuMemMap", address, size, 0, handle, 0)

    def mapped(self, granules: int = 1, device: int = 0) -> int:
        """Address of so many granules, each a mapping of its own, readable and writable; their handles are released."""
        address = self.reserve(granules * GRANULE)
        for i in range(granules):
            handle = self.create(device=device)
            self.map(address + i * GRANULE, handle)
            self.ok("cuMemRelease", handle)
        assert self.set_access(address, granules * GRANULE, device) == SUCCESS
        return address

    def alloc(self, size: int = GRANULE) -> int:
        return int(self.out("cuMemAlloc_v2", size))

    def upload(self, address: int, data: bytes) -> None:
        self.ok("cuMemcpyHtoD_v2", address, data, len(data))

    def download(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.ok("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    def pinned(self, size: int) -> ctypes.Array[ctypes.c_char]:
        address = int(self.out("cuMemHostAlloc", size, 0))
        return (ctypes.c_char * size).from_address(address)

    # --- streams and events ---

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return int(self.out("cuStreamCreate", flags))

    def event(self, flags: int = DISABLE_TIMING) -> int:
        return int(self.out("cuEventCreate", flags))

    def record(self, event: int, stream: int) -> None:
        self.ok("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.ok("cuStreamWaitEvent", stream, event, 0)

    def write(self, stream: int, address: int, size: int = 16, value: int = 1) -> None:
        """A kernel that fills [address, address + size) with `value`."""
        self.control.launch(stream, writes=[(address, size)], value=value)

    def host_function(self, stream: int, function: Any) -> int:
        wrapped = HOST_FUNCTION(function)
        self.keep.append(wrapped)
        return self.call("cuLaunchHostFunc", stream, wrapped, None)

    # --- capture ---

    def begin_capture(self, stream: int, mode: int = GLOBAL) -> None:
        self.ok("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: int) -> int:
        graph = ctypes.c_uint64()
        self.ok("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value

    def capture_status(self, stream: int) -> int:
        status = ctypes.c_int()
        self.ok("cuStreamIsCapturing", stream, ctypes.byref(status))
        return status.value

    def instantiate(self, graph: int) -> int:
        return int(self.out("cuGraphInstantiateWithFlags", graph, 0))

    def node_types(self, graph: int) -> list[int]:
        count = ctypes.c_size_t()
        self.ok("cuGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_uint64 * count.value)()
        self.ok("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
        types = []
        for node in nodes:
            kind = ctypes.c_int()
            self.ok("cuGraphNodeGetType", node, ctypes.byref(kind))
            types.append(kind.value)
        return types

    # --- the oracle ---

    def oracle(self, what: str, address: int, size: int, stream: int) -> None:
        function = getattr(self.library, f"simgpu_oracle_{what}")
        function(ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_void_p(stream))


def driver_path() -> Path:
    try:
        return library_directory() / "libcuda.so.1"
    except LibraryError as missing:
        need(False, str(missing))
        raise


@lru_cache(maxsize=1)
def load_driver() -> SimulatedDriver:
    return SimulatedDriver(ctypes.CDLL(str(driver_path())))


def handles(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(values))(*values)
