"""Asking another process for its snapshot, at its control socket."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from ..errors import SnapshotError
from ..user_folder import process_name, user_folder
from .control_socket import LONGEST_LINE, SOCKET_NAME
from .model import Snapshot
from .reading import loads

_HOW = (
    "Start it with PYALLOC_CONF=control_socket:on (with enable:True as well only where the program does not call "
    "pyalloc.enable() itself), or call pyalloc.enable(control_socket=True) in it"
)
_MOST_BYTES = 4 << 30


def ask(pid: int, seconds: float = 60.0) -> Snapshot:
    """The snapshot of another process of this user, which must run with control_socket:on.

    Raises SnapshotError when there is no such process, it has no socket, is another user's, or does not answer within
    so many seconds; the message says which.
    """
    text = _receive(pid, _socket_of(pid), {"request": "snapshot"}, time.monotonic() + seconds)
    try:
        return loads(text)
    except SnapshotError as error:
        raise SnapshotError(f"what process {pid} sent {error}") from error


def reachable() -> list[int]:
    """Processes of this user that have a control socket, by id."""
    found = []
    folder = user_folder(os.geteuid())
    for path in folder.iterdir() if folder.is_dir() else ():
        name = SOCKET_NAME.fullmatch(path.name)
        if name is None:
            continue
        try:
            if process_name(int(name[2])) == path.stem:
                found.append(int(name[2]))
        except ProcessLookupError:
            continue  # it has left its socket behind
    return sorted(found)


def _socket_of(pid: int) -> Path:
    try:
        name = process_name(pid)
        owner = os.stat(f"/proc/{pid}").st_uid
    except (ProcessLookupError, FileNotFoundError) as error:
        raise SnapshotError(f"there is no process {pid}{_others()}") from error
    if owner != os.geteuid() and os.geteuid() != 0:
        raise SnapshotError(f"process {pid} is of user {owner}; only that user, or root, may ask it")
    path = user_folder(owner) / f"{name}.sock"
    try:
        found = path.lstat()
    except FileNotFoundError as error:
        raise SnapshotError(
            f"process {pid} has no control socket in {path.parent}{_others()}. {_HOW}; if it runs with that already, "
            "and with another PYALLOC_SHARED_FOLDER, set the same one here"
        ) from error
    if found.st_uid != owner:
        raise SnapshotError(f"{path} was made by user {found.st_uid}, process {pid} is of user {owner}")
    return path


def _others() -> str:
    pids = reachable()
    return f" (there are control sockets of {', '.join(map(str, pids))})" if pids else ""


def _receive(pid: int, path: Path, request: dict[str, str], ends: float) -> bytes:
    text, wanted = bytearray(), None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            server.settimeout(_left(ends))
            server.connect(str(path))
            server.sendall(json.dumps(request).encode() + b"\n")
            while wanted is None or len(text) < wanted:
                server.settimeout(_left(ends))
                more = server.recv(1 << 20)
                if not more:
                    break
                text += more
                if wanted is None and (b"\n" in text or len(text) > LONGEST_LINE):
                    header, _, text = text.partition(b"\n")
                    wanted = _length(pid, bytes(header))
        except TimeoutError as error:
            raise SnapshotError(f"process {pid} has not answered in time; it may be stopped, or very busy") from error
        except OSError as error:
            raise SnapshotError(f"process {pid} does not answer at {path}: {error.strerror or error}") from error
    if wanted is None or len(text) != wanted:
        raise SnapshotError(f"process {pid} broke off its answer; it has ended, or closed its socket")
    return bytes(text)


def _left(ends: float) -> float:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _length(pid: int, line: bytes) -> int:
    """How many bytes follow the first line of an answer."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    size = header.get("bytes") if isinstance(header, dict) else None
    if isinstance(header, dict) and isinstance(header.get("error"), str):
        raise SnapshotError(f"process {pid} refused: {header['error']}")
    if not isinstance(size, int) or not 0 <= size <= _MOST_BYTES:
        raise SnapshotError(f"what answers for process {pid} is not pyalloc, or another version of it")
    return size
