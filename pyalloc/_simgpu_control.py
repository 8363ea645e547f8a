"""The control of the simulated GPU in Python: a thin wrapper over the C functions of allocator_cpp/simgpu/simgpu.h."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from typing import Any

from .errors import InvalidArgumentError

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY, the error most fault plans inject."""


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


Spans = Sequence[tuple[int, int]]
"""Pieces of device memory: (address, bytes) each."""


class Simulation:
    """What a test or a benchmark sets on and reads from this process's simulated devices. Calls are thread-safe."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver
        driver.simgpu_last_error.restype = ctypes.c_char_p
        for name in ("simgpu_calls", "simgpu_step", "simgpu_pending", "simgpu_violations"):
            getattr(driver, name).restype = ctypes.c_int64
        for name in ("simgpu_used", "simgpu_capacity", "simgpu_resident"):
            getattr(driver, name).restype = ctypes.c_uint64
        for name in ("simgpu_calls_json", "simgpu_violation"):
            getattr(driver, name).restype = ctypes.c_size_t
        driver.simgpu_clock_us.restype = ctypes.c_double
        driver.simgpu_charged_us.restype = ctypes.c_double

    # --- streams ---

    def set_stream_mode(self, mode: str, seed: int = 1) -> None:
        """From now on "immediate", "deferred" or "timed"; work already enqueued stays in order."""
        self._check(self._driver.simgpu_set_stream_mode(mode.encode(), ctypes.c_uint64(seed)))

    def set_work_time(self, microseconds: float) -> None:
        """In timed mode: virtual time one operation takes on its stream."""
        self._driver.simgpu_set_work_time(ctypes.c_double(microseconds))

    def step(self, operations: int = -1) -> int:
        """Completes up to so many enqueued operations (-1: all that can). Returns how many it completed."""
        return int(self._driver.simgpu_step(ctypes.c_int64(operations)))

    def pending(self) -> int:
        """Operations enqueued and not yet complete, on all devices."""
        return int(self._driver.simgpu_pending())

    def launch(self, stream: int, reads: Spans = (), writes: Spans = (), value: int = 0) -> None:
        """Enqueues a kernel that says what it touches: access is checked, writes are filled with the byte `value`.

        `stream` is torch's `stream.cuda_stream`; pieces are (address, bytes).
        """
        result = self._driver.simgpu_launch(
            ctypes.c_void_p(stream),
            _spans(reads),
            ctypes.c_size_t(len(reads)),
            _spans(writes),
            ctypes.c_size_t(len(writes)),
            ctypes.c_uint8(value),
        )
        self._check(result)

    # --- calls, costs and faults ---

    def calls(self, entry_point: str | None = None) -> int:
        """Calls of one driver entry point since the start or the last reset; None: of all that manage memory."""
        count = int(self._driver.simgpu_calls(None if entry_point is None else entry_point.encode()))
        if count < 0:
            raise InvalidArgumentError(f"{entry_point!r} is no driver entry point the simulation has")
        return count

    def all_calls(self) -> dict[str, int]:
        """Entry point to number of calls, of those called at least once."""
        counts: dict[str, int] = json.loads(self._text(self._driver.simgpu_calls_json))
        return counts

    def reset_calls(self) -> None:
        self._driver.simgpu_reset_calls()

    def set_cost(self, entry_point: str, per_call: float, per_mapping: float = 0.0, per_mib: float = 0.0) -> None:
        """Virtual microseconds charged for each call, each mapping and each MiB."""
        charges = (ctypes.c_double(per_call), ctypes.c_double(per_mapping), ctypes.c_double(per_mib))
        self._check(self._driver.simgpu_set_cost(entry_point.encode(), *charges))

    def clock(self) -> float:
        """The virtual clock, in microseconds."""
        return float(self._driver.simgpu_clock_us())

    def charged(self) -> float:
        """Costs charged since the start, in microseconds; unlike the clock, waits and advance() do not move it."""
        return float(self._driver.simgpu_charged_us())

    def advance(self, microseconds: float) -> None:
        self._driver.simgpu_advance(ctypes.c_double(microseconds))

    def fail(self, entry_point: str, nth: int = 1, times: int = 1, error: int = OUT_OF_MEMORY) -> None:
        """The nth call from now (1: the next) and the times-1 after it return `error`, undone. times=0: for ever."""
        arguments = (ctypes.c_int64(nth), ctypes.c_int64(times), ctypes.c_int(error))
        self._check(self._driver.simgpu_fail(entry_point.encode(), *arguments))

    def clear_faults(self) -> None:
        self._driver.simgpu_clear_faults()

    # --- rules broken ---

    def violations(self) -> list[str]:
        """Driver rules broken so far, oldest first; with the oracle on also memory reused too early."""
        count = int(self._driver.simgpu_violations())
        return [self._text(self._driver.simgpu_violation, ctypes.c_int64(index)) for index in range(count)]

    def clear_violations(self) -> None:
        self._driver.simgpu_clear_violations()

    # --- memory ---

    def used(self, device: int = 0) -> int:
        """Bytes of device memory in use, by all processes of the simulation."""
        return int(self._driver.simgpu_used(ctypes.c_int(device)))

    def capacity(self, device: int = 0) -> int:
        """Bytes of memory the device has."""
        return int(self._driver.simgpu_capacity(ctypes.c_int(device)))

    def set_capacity(self, capacity: int, device: int = 0) -> None:
        """Changes the memory the device has, in bytes; what is in use stays."""
        self._check(self._driver.simgpu_set_capacity(ctypes.c_int(device), ctypes.c_uint64(capacity)))

    def set_limit(self, limit: int, device: int = 0, told: bool = True) -> None:
        """What a container may use of the device, in bytes, for all processes together; 0: no limit.

        The driver refuses what goes beyond. told: cuMemGetInfo shows the limit; else it shows the whole device, as
        cuDeviceTotalMem and NVML always do.
        """
        self._check(self._driver.simgpu_set_limit(ctypes.c_int(device), ctypes.c_uint64(limit), ctypes.c_int(told)))

    def set_peers(self, on: bool) -> None:
        """Whether devices can reach each other's memory; without, only peer copies work. Set it before they do."""
        self._driver.simgpu_set_peers(ctypes.c_int(on))

    def resident(self) -> int:
        """Host memory really held for device memory, in bytes."""
        return int(self._driver.simgpu_resident())

    def read(self, address: int, size: int) -> bytes:
        """Bytes behind a device address, as they are now (work still enqueued has not happened)."""
        buffer = ctypes.create_string_buffer(size)
        self._check(self._driver.simgpu_read(ctypes.c_uint64(address), buffer, ctypes.c_size_t(size)))
        return buffer.raw

    def write(self, address: int, data: bytes) -> None:
        """Puts bytes behind a device address at once."""
        self._check(self._driver.simgpu_write(ctypes.c_uint64(address), data, ctypes.c_size_t(len(data))))

    def _check(self, result: int) -> None:
        if result != 0:
            reason = self._driver.simgpu_last_error()
            text = reason.decode() if reason else f"the simulated driver refused the call with error {result}"
            raise InvalidArgumentError(text)

    def _text(self, function: Callable[..., Any], *arguments: object) -> str:
        needed = int(function(*arguments, None, ctypes.c_size_t(0)))
        buffer = ctypes.create_string_buffer(needed + 1)
        function(*arguments, buffer, ctypes.c_size_t(needed + 1))
        return buffer.value.decode()


def _spans(pieces: Spans) -> ctypes.Array[_Span]:
    return (_Span * len(pieces))(*(_Span(address, size) for address, size in pieces))
