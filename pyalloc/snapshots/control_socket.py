"""The socket at which a process answers what others of its user ask: a snapshot of its memory. Only with
control_socket:on, and nothing that changes the program.

One daemon thread waits in accept() and costs nothing meanwhile. The socket is /dev/shm/pyalloc-<uid>/<process>.sock, of
mode 0600 in a folder of mode 0700, and whoever connects must be of the same user, or root. A request is one line of
JSON; the answer is one line that says how many bytes follow, and those. A client that is slow, silent or wrong is
dropped after some seconds and keeps nobody but other clients waiting. The socket goes when the process ends; what a
killed process leaves behind, the user's next one removes. A forked child has none until it calls start().
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..user_folder import made_user_folder, process_name

_log = logging.getLogger("pyalloc")

LONGEST_LINE: Final = 4096
_REQUEST_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 60.0
SOCKET_NAME: Final = re.compile(r"(\d+)-(\d+)-(\d+)\.sock")


def _snapshot_text() -> str:
    from .capture import snapshot

    return snapshot().dumps()


_ANSWERS: Final[dict[str, Callable[[], str]]] = {"snapshot": _snapshot_text}


def start() -> Path:
    """Opens this process's socket, if it is not open yet, and returns its path. What control_socket:on does; to be
    called by hand only without enable(), or in a forked child.

    Raises StateError when the user's folder is not the user's alone, and OSError when the socket cannot be made.
    """
    global _server
    with _lock:
        if _server is None:
            folder = made_user_folder()
            _remove_leftovers(folder)
            _server = _Server(folder / f"{process_name(os.getpid())}.sock")
        return _server.path


def stop() -> None:
    """Closes and removes this process's socket, if there is one."""
    global _server
    with _lock:
        server, _server = _server, None
    if server is not None:
        server.close()


class _Server:
    """The listening socket and its thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closing = False
        self._client: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(path))  # refused where there is something already
            self._made = path.lstat().st_ino
            path.chmod(0o600)
            self._listener.listen(8)
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=self._serve, name="pyalloc-control", daemon=True).start()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it
            if self.path.lstat().st_ino == self._made:
                self.path.unlink()
        with contextlib.suppress(OSError):  # closed from the other side of it
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()

    def forget(self) -> None:
        """In a forked child, which has copies of the descriptors and no thread: the parent's socket goes on."""
        for one in (self._listener, self._client):
            if one is not None and one.fileno() >= 0:
                os.close(one.detach())

    def _serve(self) -> None:
        while not self._closing:
            try:
                self._client, _ = self._listener.accept()
            except OSError as error:
                if self._closing:
                    return
                _log.warning("pyalloc's control socket cannot take a connection: %s", error)
                time.sleep(1.0)  # as while the process has no descriptors left
                continue
            with self._client:
                try:
                    _answer(self._client)
                except OSError as error:  # a timeout too
                    _log.debug("a client of pyalloc's control socket is gone: %s", error)


def _answer(client: socket.socket) -> None:
    client.settimeout(_REQUEST_SECONDS)
    _, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (os.geteuid(), 0):
        return
    try:
        name = json.loads(_line(client))["request"]
        answer = _ANSWERS[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        header: dict[str, object] = {"error": f"not a request; expected one of {', '.join(_ANSWERS)}"}
        client.sendall(json.dumps(header).encode() + b"\n")
        return
    try:
        text = answer().encode(errors="backslashreplace")
        header = {"bytes": len(text)}
    except Exception as error:  # the program goes on, whatever a snapshot ran into
        text, header = b"", {"error": f"{type(error).__name__}: {error}"}
    client.settimeout(_ANSWER_SECONDS)
    client.sendall(json.dumps(header).encode() + b"\n" + text)


def _line(client: socket.socket) -> bytes:
    """One line, received by its sender's deadline. Raises ValueError for one that is too long or does not end."""
    ends = time.monotonic() + _REQUEST_SECONDS
    line = b""
    while b"\n" not in line:
        client.settimeout(max(0.001, ends - time.monotonic()))
        more = client.recv(LONGEST_LINE)
        line += more
        if not more or len(line) > LONGEST_LINE:
            raise ValueError("no line")
    return line


def _remove_leftovers(folder: Path) -> None:
    """Sockets of this user's processes that are gone. Nothing else, and nothing of another pid namespace, where a
    process cannot be told to be gone.
    """
    namespace = process_name(os.getpid()).split("-")[0]
    for path in folder.iterdir():
        name = SOCKET_NAME.fullmatch(path.name)
        if name is None or name[1] != namespace:
            continue
        try:
            if process_name(int(name[2])) == path.stem:
                continue
        except ProcessLookupError:
            pass
        with contextlib.suppress(FileNotFoundError):  # another process of the user's does the same
            found = path.lstat()
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
                path.unlink()


def _after_fork_in_child() -> None:
    global _server, _lock
    server, _server, _lock = _server, None, threading.Lock()
    if server is not None:
        server.forget()


_lock = threading.Lock()
_server: _Server | None = None
atexit.register(stop)
os.register_at_fork(after_in_child=_after_fork_in_child)
