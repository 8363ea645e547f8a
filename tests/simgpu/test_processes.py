"""Processes of one session: shared capacity, memory and events handed over, fork, and what is left when one dies."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated_driver import (
    DISABLE_TIMING,
    GRANULE,
    INTERPROCESS,
    INVALID_CONTEXT,
    INVALID_VALUE,
    MIB,
    NOT_INITIALIZED,
    NOT_READY,
    OUT_OF_MEMORY,
    POSIX_FD,
    SUCCESS,
    SimulatedDriver,
    driver_path,
    prop,
)

Start = Callable[..., SimulatedDriver]
HERE = Path(__file__).resolve().parent
PREAMBLE = """
import ctypes, os, sys
from simulated_driver import *
gpu = load_driver()
gpu.ok("cuInit", 0)
gpu.use_device(0)
def say(*words):
    print(*words, flush=True)
def listen():
    return sys.stdin.readline().strip()
"""


class Child:
    """A process of the session that runs `program`, talking in lines; `hear` gives its next one."""

    def __init__(self, program: str, session: str, options: str = "", pass_fds: tuple[int, ...] = ()) -> None:
        paths = [str(HERE), str(HERE.parent), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYALLOC_SIMGPU": f"memory:64MiB,session:{session}{options}",
            "PYALLOC_SIMGPU_LIBS": str(driver_path().parent),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def session() -> Iterator[str]:
    """A session's name; its file is gone at the end."""
    name = "test-" + secrets.token_hex(6)
    yield name
    left = [path.name for path in Path("/dev/shm").iterdir() if name in path.name]
    for name_left in left:
        Path("/dev/shm", name_left).unlink()


def leave(gpu: SimulatedDriver) -> None:
    gpu.reset("memory:64MiB")


def test_processes_share_a_device(start: Start, session: str) -> None:
    gpu = start(f"memory:64MiB,session:{session}")
    child = Child("handle = gpu.create(40 * MIB); say('has it'); listen(); gpu.ok('cuMemRelease', handle)", session)
    assert child.hear() == "has it"
    assert gpu.control.used() == 40 * MIB
    out = ctypes.c_uint64()
    assert gpu.call("cuMemCreate", ctypes.byref(out), 26 * MIB, ctypes.byref(prop()), 0) == OUT_OF_MEMORY
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    gpu.ok("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert (free.value, total.value) == (24 * MIB, 64 * MIB)
    pids, held = (ctypes.c_int * 4)(), (ctypes.c_uint64 * 4)()
    gpu.library.simgpu_processes.restype = ctypes.c_size_t
    assert gpu.library.simgpu_processes(0, pids, held, ctypes.c_size_t(4)) == 1
    assert (pids[0], held[0]) == (child.process.pid, 40 * MIB)
    child.tell()
    child.finish()
    assert gpu.control.used() == 0
    gpu.create(64 * MIB)
    leave(gpu)


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_process_that_ends_gives_its_memory_back(start: Start, session: str, end: str) -> None:
    gpu = start(f"memory:64MiB,session:{session}")
    child = Child("gpu.create(64 * MIB); say('full'); listen()", session)
    assert child.hear() == "full"
    if end == "kill":
        child.process.send_signal(signal.SIGKILL)
        child.process.wait(60)
    else:
        child.tell()
        child.finish()
    gpu.create(64 * MIB)
    assert gpu.control.used() == 64 * MIB
    leave(gpu)


def test_the_last_process_removes_the_session(start: Start, session: str) -> None:
    gpu = start(f"memory:64MiB,session:{session}")
    child = Child("say('in'); listen()", session)
    assert child.hear() == "in"
    file = Path("/dev/shm") / f"pyalloc-simgpu-{session}"
    leave(gpu)
    assert file.exists()
    child.finish()
    assert not file.exists()


def test_a_session_whose_processes_all_died_is_begun_anew(start: Start, session: str) -> None:
    child = Child("gpu.create(32 * MIB); say('in'); listen()", session)
    assert child.hear() == "in"
    child.process.kill()
    child.process.wait(60)
    gpu = start(f"memory:128MiB,session:{session}")
    assert gpu.control.used() == 0
    assert gpu.control.capacity() == 128 * MIB
    leave(gpu)


def test_memory_handed_over_as_a_file_descriptor(start: Start, session: str) -> None:
    gpu = start(f"memory:64MiB,session:{session}")
    address, handle = gpu.reserve(4 * MIB), gpu.create(4 * MIB, handle_types=POSIX_FD)
    gpu.map(address, handle, 4 * MIB)
    assert gpu.set_access(address, 4 * MIB) == SUCCESS
    gpu.upload(address + 3 * MIB, b"from the parent")
    fd = gpu.out("cuMemExportToShareableHandle", handle, POSIX_FD, 0, kind=ctypes.c_int)
    child = Child(
        f"""
        handle = gpu.out("cuMemImportFromShareableHandle", ctypes.c_void_p({fd}), POSIX_FD)
        address = gpu.reserve(4 * MIB)
        gpu.map(address, handle, 4 * MIB)
        say(gpu.call("cuMemsetD8_v2", address, 1, 1))  # access is given anew
        gpu.reset(os.environ["PYALLOC_SIMGPU"])
        gpu.ok("cuInit", 0)
        gpu.use_device(0)
        handle = gpu.out("cuMemImportFromShareableHandle", ctypes.c_void_p({fd}), POSIX_FD)
        address = gpu.reserve(4 * MIB)
        gpu.map(address, handle, 4 * MIB)
        gpu.set_access(address, 4 * MIB)
        say(gpu.download(address + 3 * MIB, 15).decode())
        gpu.upload(address, b"from the child")
        say(gpu.control.used() // MIB)
        listen()
        say(gpu.control.used() // MIB)
        listen()
        """,
        session,
        pass_fds=(fd,),
    )
    os.close(fd)
    assert child.hear() == "700"
    assert child.hear() == "from the parent"
    assert child.hear() == "4"  # counted once
    assert gpu.download(address, 14) == b"from the child"
    gpu.ok("cuMemUnmap", address, 4 * MIB)
    gpu.ok("cuMemRelease", handle)
    child.tell()
    assert child.hear() == "4"  # the child still holds it
    child.finish()
    assert gpu.control.used() == 0
    leave(gpu)


def test_importing_in_the_same_process_makes_an_alias(gpu: SimulatedDriver) -> None:
    address, handle = gpu.reserve(2 * GRANULE), gpu.create(handle_types=POSIX_FD)
    fd = gpu.out("cuMemExportToShareableHandle", handle, POSIX_FD, 0, kind=ctypes.c_int)
    imported = gpu.out("cuMemImportFromShareableHandle", ctypes.c_void_p(fd), POSIX_FD)
    os.close(fd)
    gpu.map(address, handle)
    gpu.map(address + GRANULE, imported)
    assert gpu.set_access(address, 2 * GRANULE) == SUCCESS
    gpu.upload(address, b"same bytes")
    assert gpu.download(address + GRANULE, 10) == b"same bytes"
    assert gpu.control.used() == GRANULE
    gpu.ok("cuMemRelease", handle)
    gpu.ok("cuMemRelease", imported)
    gpu.ok("cuMemUnmap", address, GRANULE)
    assert gpu.control.used() == GRANULE
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    assert gpu.control.used() == 0
    assert gpu.control.resident() == 0


def test_plain_memory_handed_over_by_ipc(start: Start, session: str) -> None:
    gpu = start(f"memory:64MiB,session:{session}")
    address = gpu.alloc(3 * MIB)
    gpu.upload(address + MIB, b"shared")
    ticket, inner = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    gpu.ok("cuIpcGetMemHandle", ticket, address)
    gpu.ok("cuIpcGetMemHandle", inner, address + MIB)
    assert ticket.raw == inner.raw  # of the allocation, whatever address inside it names it
    child = Child(
        f"""
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * 64)]
        ticket = Handle.from_buffer_copy(bytes.fromhex("{ticket.raw.hex()}"))
        address = gpu.out("cuIpcOpenMemHandle_v2", ticket, 1)
        assert gpu.out("cuIpcOpenMemHandle_v2", ticket, 1) == address
        say(gpu.download(address + MIB, 6).decode(), gpu.control.used() // MIB)
        gpu.upload(address, b"answer")
        say(gpu.call("cuMemFree_v2", address))
        gpu.ok("cuIpcCloseMemHandle", address)
        gpu.ok("cuIpcCloseMemHandle", address)
        say(gpu.call("cuIpcCloseMemHandle", address))
        """,
        session,
    )
    assert child.hear() == "shared 4"
    assert child.hear() == str(INVALID_VALUE)
    assert child.hear() == str(INVALID_VALUE)
    child.finish()
    assert gpu.download(address, 6) == b"answer"

    class Handle(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_ubyte * 64),)

    out = ctypes.c_uint64()
    own = Handle.from_buffer_copy(ticket.raw)
    assert gpu.call("cuIpcOpenMemHandle_v2", ctypes.byref(out), own, 1) == INVALID_CONTEXT
    assert gpu.call("cuIpcOpenMemHandle_v2", ctypes.byref(out), Handle(), 1) == INVALID_VALUE
    gpu.ok("cuMemFree_v2", address)
    assert gpu.control.used() == 0
    leave(gpu)


def test_events_cross_processes(start: Start, session: str) -> None:
    gpu = start(f"memory:64MiB,session:{session},streams:deferred")
    stream, event = gpu.stream(), gpu.event(INTERPROCESS | DISABLE_TIMING)
    ticket = ctypes.create_string_buffer(64)
    gpu.ok("cuIpcGetEventHandle", ticket, event)
    assert gpu.call("cuIpcGetEventHandle", ticket, gpu.event()) == INVALID_VALUE
    gpu.record(event, stream)
    child = Child(
        f"""
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * 64)]
        event = gpu.out("cuIpcOpenEventHandle", Handle.from_buffer_copy(bytes.fromhex("{ticket.raw.hex()}")))
        stream, address = gpu.stream(), gpu.mapped()
        gpu.wait(stream, event)
        gpu.write(stream, address, value=3)
        say(gpu.call("cuEventQuery", event), gpu.control.read(address, 1)[0])
        listen()
        gpu.ok("cuStreamSynchronize", stream)
        say(gpu.call("cuEventQuery", event), gpu.control.read(address, 1)[0])
        """,
        session,
    )
    assert child.hear() == f"{NOT_READY} 0"
    gpu.ok("cuStreamSynchronize", stream)
    child.tell()
    assert child.hear() == f"{SUCCESS} 3"
    child.finish()
    leave(gpu)


def in_fork(function: Callable[[], int]) -> int:
    """The function's result in a forked child (0 to 255; 254 for an exception)."""
    pid = os.fork()
    if pid == 0:
        code = 254
        try:
            code = function()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_cannot_use_the_parents_devices(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    gpu.upload(address, b"of the parent")

    def child() -> int:
        codes = {
            gpu.call("cuMemFree_v2", address),
            gpu.call("cuCtxSynchronize"),
            gpu.call("cuInit", 0),
            gpu.call("cuMemUnmap", address, GRANULE),
        }
        return 1 if codes == {NOT_INITIALIZED} else 2

    assert in_fork(child) == 1
    assert gpu.download(address, 13) == b"of the parent"


def test_a_forked_child_can_begin_anew(gpu: SimulatedDriver) -> None:
    address = gpu.mapped()
    gpu.upload(address, b"of the parent")

    def child() -> int:
        gpu.reset("memory:64MiB")
        gpu.ok("cuInit", 0)
        gpu.use_device(0)
        own = gpu.mapped()
        gpu.upload(own, b"of the child")
        return 1 if gpu.download(own, 12) == b"of the child" and gpu.control.used() == GRANULE else 2

    assert in_fork(child) == 1
    assert gpu.download(address, 13) == b"of the parent"
    assert gpu.control.used() == GRANULE


def test_forking_before_cuinit_is_harmless(start: Start, session: str) -> None:
    gpu = start(f"memory:64MiB,session:{session}", init=False)
    assert gpu.control.used() == 0  # joins the session, as a monitor does

    def child() -> int:
        gpu.ok("cuInit", 0)
        gpu.use_device(0)
        gpu.create(16 * MIB)
        return 1 if gpu.control.used() == 16 * MIB else 2

    assert in_fork(child) == 1
    gpu.ok("cuInit", 0)
    assert gpu.control.used() == 0
    leave(gpu)
