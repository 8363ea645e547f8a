"""The driver calls of virtual memory through ctypes, for tools/gpu_measure.py, and torch tensors over mapped memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of one device."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc: read and write for one device."""

    _fields_ = (("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int))


PROP = AllocationProp(type=1, location_type=1, location_id=0)
ACCESS = AccessDesc(location_type=1, location_id=0, flags=3)


class Driver:
    """The few driver calls measured. Each raises RuntimeError with the driver's own name of the error."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        error = getattr(self.library, name)(*arguments)
        if error:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(error, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({error})")

    def version(self) -> int:
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def granularity(self, recommended: bool) -> int:
        size = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(PROP), int(recommended))
        return size.value

    def reserve(self, size: int) -> int:
        address = ctypes.c_uint64()
        zero = ctypes.c_size_t(0)
        self.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), zero, zero, zero)
        return address.value

    def create(self, size: int) -> int:
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(PROP), ctypes.c_uint64(0))
        return handle.value

    def map(self, address: int, size: int, handle: int, offset: int = 0) -> None:
        where = (ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_size_t(offset))
        self.call("cuMemMap", *where, ctypes.c_uint64(handle), ctypes.c_uint64(0))

    def set_access(self, address: int, size: int) -> None:
        one = ctypes.c_size_t(1)
        self.call("cuMemSetAccess", ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.byref(ACCESS), one)

    def unmap(self, address: int, size: int) -> None:
        self.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))

    def release(self, handle: int) -> None:
        self.call("cuMemRelease", ctypes.c_uint64(handle))

    def free(self, address: int, size: int) -> None:
        self.call("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(size))

    def plain_alloc(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def plain_free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))


class Mapped:
    """Device memory at `address`, for torch.as_tensor: bytes."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def tensor_at(address: int, size: int) -> torch.Tensor:
    return torch.as_tensor(Mapped(address, size), device="cuda")


@contextmanager
def mapped(driver: Driver, handles: list[int], size: int, used: bool = True) -> Iterator[int]:
    """Maps the handles, `size` bytes each, one after the other; gives the address and undoes it all at the end.

    When the memory is `used` by kernels, undoing waits for the device.
    """
    total = size * len(handles)
    address = driver.reserve(total)
    map_all(driver, address, size, handles)
    driver.set_access(address, total)
    try:
        yield address
    finally:
        if used:
            torch.cuda.synchronize()
        driver.unmap(address, total)
        driver.free(address, total)


def map_all(driver: Driver, address: int, size: int, handles: list[int]) -> None:
    for i, handle in enumerate(handles):
        driver.map(address + i * size, size, handle)
