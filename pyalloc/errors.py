"""Every exception pyalloc raises. All derive from PyallocError, itself a RuntimeError, as torch's own errors are."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path


class PyallocError(RuntimeError):
    """Base of all errors of this package."""


class ConfigError(PyallocError, ValueError):
    """Options that cannot be used; the message lists every one, with what was expected."""


class LibraryError(PyallocError):
    """libpyalloc.so is missing, cannot be loaded, or does not fit this package."""


class DriverError(PyallocError):
    """The NVIDIA driver is missing, too old, lacks virtual memory management, or refused a call."""


class BridgeError(PyallocError):
    """The torch bridge could not be compiled, loaded or installed."""


class StateError(PyallocError):
    """The call came at the wrong time: CUDA already in use, another allocator installed, another configuration in
    force.
    """


class InvalidArgumentError(PyallocError, ValueError):
    """A value passed to the allocator that it cannot accept."""


class UnknownPointerError(PyallocError):
    """An address that is not the start of a live block of pyalloc's."""


class OutOfMemoryError(PyallocError, MemoryError):
    """The allocator could not find the memory asked for, in a process without torch: with it, what is raised is
    torch.OutOfMemoryError.
    """


class MissingPackageError(PyallocError, ImportError):
    """A package that only some of pyalloc needs is not installed; the message says how to install it."""


class SnapshotError(PyallocError, ValueError):
    """A file that is no snapshot, or a process that cannot be asked for one."""


@contextlib.contextmanager
def as_torch_raises() -> Iterator[None]:
    """Lack of memory becomes torch.OutOfMemoryError, as programs of torch know it, where torch is imported."""
    try:
        yield
    except OutOfMemoryError as error:
        torch = sys.modules.get("torch")
        if torch is None:
            raise
        raise torch.OutOfMemoryError(str(error)) from error


def how_to_install() -> str:
    """What to do where a compiled part of the package is missing."""
    checkout = Path(__file__).parent.parent
    if not (checkout / "allocator_cpp").is_dir():
        return "install pyalloc with pip"
    return f"{checkout} is a source checkout, which hides an installed pyalloc: `pip install -e .` there, or leave it"
