"""The core and the simulated driver through ctypes, as a program without torch uses them. For fresh processes only."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from pyalloc import _native, simgpu

OK, OUT_OF_MEMORY, INVALID_ARGUMENT, UNKNOWN_POINTER = range(4)
BAD_CONFIG, WRONG_STATE = 7, 8
OWNED = 1
MIB = 1 << 20
GRANULE = 2 * MIB


class Freed(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("requested", ctypes.c_size_t),
        ("allocated", ctypes.c_size_t),
    )


class BlockInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("device", ctypes.c_int),
        ("block", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("requested", ctypes.c_size_t),
        ("allocated", ctypes.c_size_t),
        ("segment", ctypes.c_void_p),
        ("segment_bytes", ctypes.c_size_t),
    )


class Core:
    """One session of simgpu and pyalloc. Sizes in bytes; a stream is 0 or a handle of `stream()`."""

    def __init__(self, simulation: str, configuration: str = "maintenance:off", devices: int = 1) -> None:
        # The driver first, for all to see: the core asks the loader for libcuda.so.1 and gets this one.
        self.gpu = ctypes.CDLL(str(simgpu.library_directory() / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self.gpu.simgpu_used.restype = ctypes.c_uint64
        self.gpu.simgpu_violations.restype = ctypes.c_int64
        self.gpu.simgpu_step.argtypes = (ctypes.c_int64,)
        self.gpu.simgpu_step.restype = ctypes.c_int64
        self.gpu.simgpu_violation.argtypes = (ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t)
        self.gpu.simgpu_read.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t)
        self.gpu.cuMemsetD8Async.argtypes = (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
        assert self.gpu.simgpu_reset(simulation.encode()) == 0, simulation
        self.dll = ctypes.CDLL(str(Path(_native.library_path())))
        for name in ("last_error", "version"):
            getattr(self.dll, f"pyalloc_{name}").restype = ctypes.c_char_p
        self.dll.pyalloc_allocate.argtypes = (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        self.dll.pyalloc_deallocate.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.dll.pyalloc_find_block.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.dll.pyalloc_record_stream.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        self.dll.pyalloc_set_limit.argtypes = (ctypes.c_int, ctypes.c_uint64)
        self.dll.pyalloc_get_api.restype = ctypes.c_void_p
        self.ok(self.dll.pyalloc_configure(configuration.encode(), b"test"))
        self.ok(self.dll.pyalloc_init(devices))
        context = ctypes.c_void_p()
        assert self.gpu.cuInit(0) == 0
        assert self.gpu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.gpu.cuCtxSetCurrent(context) == 0

    def error(self) -> str:
        return str(self.dll.pyalloc_last_error().decode())

    def ok(self, status: int) -> None:
        assert status == OK, f"status {status}: {self.error()}"

    def stream(self) -> int:
        made = ctypes.c_void_p()
        assert self.gpu.cuStreamCreate(ctypes.byref(made), 1) == 0
        return made.value or 0

    def allocate(self, bytes_: int, stream: int = 0, device: int = 0) -> int | None:
        """The address of a block, 0 for none asked, or None when memory ran out."""
        pointer = ctypes.c_void_p()
        status = self.dll.pyalloc_allocate(device, stream, OWNED, bytes_, ctypes.byref(pointer))
        if status == OUT_OF_MEMORY:
            return None
        self.ok(status)
        return pointer.value or 0

    def free(self, pointer: int) -> Freed:
        freed = Freed()
        self.ok(self.dll.pyalloc_deallocate(pointer, ctypes.byref(freed)))
        return freed

    def allocated(self, pointer: int) -> int:
        """The bytes a live block takes."""
        info = BlockInfo(size=ctypes.sizeof(BlockInfo))
        self.ok(self.dll.pyalloc_find_block(pointer, ctypes.byref(info)))
        return int(info.allocated)

    def fill(self, pointer: int, bytes_: int, value: int, stream: int) -> None:
        assert self.gpu.cuMemsetD8Async(pointer, value, bytes_, stream) == 0

    def byte(self, address: int) -> int | None:
        """The byte at a device address as it is now; None where nothing is mapped."""
        value = ctypes.c_ubyte()
        return value.value if self.gpu.simgpu_read(address, ctypes.byref(value), 1) == 0 else None

    def json(self, name: str) -> Any:
        function = getattr(self.dll, f"pyalloc_{name}")
        function.restype = ctypes.c_size_t
        function.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
        needed = function(None, 0)
        buffer = ctypes.create_string_buffer(needed + 1)
        assert function(buffer, needed + 1) == needed
        return json.loads(buffer.value.decode())

    def stats(self, device: int = 0) -> dict[str, Any]:
        """Every statistic by name: a number, or {"all" | "small" | "large": (current, peak, allocated, freed)}."""
        fields = self.json("stat_fields_json")
        words = 1 + sum(12 if field["group"] else 1 for field in fields)
        buffer = (ctypes.c_int64 * words)()
        ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(buffer)
        self.ok(self.dll.pyalloc_get_stats(device, buffer))
        values = iter(list(buffer)[1:])
        found: dict[str, Any] = {}
        for field in fields:
            if field["group"]:
                found[field["name"]] = {
                    kind: tuple(next(values) for _ in range(4)) for kind in ("all", "small", "large")
                }
            else:
                found[field["name"]] = next(values)
        return found

    def valid(self, device: int = 0) -> None:
        self.ok(self.dll.pyalloc_validate(device))

    def violations(self) -> list[str]:
        texts = []
        for index in range(self.gpu.simgpu_violations()):
            buffer = ctypes.create_string_buffer(1024)
            self.gpu.simgpu_violation(index, buffer, len(buffer))
            texts.append(buffer.value.decode())
        return texts

    def close(self) -> None:
        """Ends the session: all memory back, no driver rule broken."""
        self.ok(self.dll.pyalloc_shutdown())
        assert self.gpu.simgpu_used(0) == 0, f"{self.gpu.simgpu_used(0)} bytes are still in use"
        assert self.violations() == []
