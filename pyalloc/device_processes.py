"""What each process holds of a device, as NVML says, and whether it can say so at all.

In a container NVML may list no process, or name them by ids of another namespace; then nothing is known, and that is
what is said. Never initialises CUDA.
"""

from __future__ import annotations

import ctypes
import os
import uuid

from ._native import library
from .errors import PyallocError

_INSUFFICIENT_SIZE = 7
_NOT_AVAILABLE = (1 << 64) - 1
_LISTS = (  # the third version of each, the only one with one layout on all drivers torch runs on
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)


class UnknownProcessesError(PyallocError):
    """NVML cannot say who holds the device's memory; the message says why."""


class _Process(ctypes.Structure):  # nvmlProcessInfo_t
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def process_memory(device: int) -> dict[int, int]:
    """Bytes of the device that each process holds, by process id, this one included. Raises UnknownProcessesError."""
    names = _uuid_texts(device)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        start, stop = nvml.nvmlInit_v2, nvml.nvmlShutdown
        functions = [getattr(nvml, _LISTS[0])]
    except (OSError, AttributeError) as error:
        raise UnknownProcessesError(f"NVML cannot be used: {error}") from error
    functions += [getattr(nvml, name) for name in _LISTS[1:] if hasattr(nvml, name)]
    if start() != 0:
        raise UnknownProcessesError("NVML cannot be initialised")
    try:
        handle = _handle(nvml, names)
        held: dict[int, int] = {}
        for place, function in enumerate(functions):
            for pid, used in _listed(function, handle, must=place == 0):
                if used == _NOT_AVAILABLE:
                    raise UnknownProcessesError(f"NVML does not say what process {pid} holds")
                held[pid] = max(used, held.get(pid, 0))  # a process may be on two lists
    finally:
        stop()
    if os.getpid() not in held:
        raise UnknownProcessesError("NVML does not list this process, as in a container with process ids of its own")
    return held


def _uuid_texts(device: int) -> list[str]:
    """How NVML may call the device: ordinals differ between it and CUDA, identities do not."""
    driver = ctypes.CDLL(library().driver()["library"])
    handle, identity = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    ask = driver.cuDeviceGetUuid_v2 if hasattr(driver, "cuDeviceGetUuid_v2") else driver.cuDeviceGetUuid
    if driver.cuDeviceGet(ctypes.byref(handle), device) != 0 or ask(identity, handle) != 0:
        raise UnknownProcessesError("the driver does not say which device this is")
    text = uuid.UUID(bytes=bytes(identity))
    return [f"GPU-{text}", f"MIG-{text}"]


def _handle(nvml: ctypes.CDLL, names: list[str]) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    for name in names:
        if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) == 0:
            return handle
    raise UnknownProcessesError(f"NVML knows no device {names[0]}")


def _listed(function: ctypes._NamedFuncPointer, handle: ctypes.c_void_p, must: bool) -> list[tuple[int, int]]:
    room = 16
    while True:
        count, processes = ctypes.c_uint(room), (_Process * room)()
        status = function(handle, ctypes.byref(count), processes)
        if status == 0:
            return [(int(one.pid), int(one.used)) for one in processes[: count.value]]
        if status != _INSUFFICIENT_SIZE or room >= 1 << 16:
            if must:
                raise UnknownProcessesError(f"NVML does not list the device's processes (its error {status})")
            return []
        room = max(2 * room, count.value + 8)  # processes may come meanwhile
