"""The HTTP endpoint: /metrics for Prometheus, /health/capacity for load balancers. Figures only, no contents.

A server has a thread that accepts and one for each request; close() ends the first. A scrape that fails is answered by
one line and status 503, and the server goes on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import socketserver
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from .. import errors

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_REQUEST_TIMEOUT_S: Final = 10  # a client that sends nothing keeps a thread so long
_PAUSE_S: Final = 0.1  # between tries while a connection cannot be taken
_EXPECTED: Final = "expected one of this host's, such as 127.0.0.1, ::1 or 0.0.0.0 (all)"
_TEXT: Final = "text/plain; charset=utf-8"


class MetricsServer:
    """What serve() returns: serving until close(), or the end of the process. Also a context manager."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="pyalloc-metrics", daemon=True)
        self._thread.start()
        _servers.add(server)

    @property
    def port(self) -> int:
        """The port; where 0 was asked for, the one that was free."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Of /metrics."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def __repr__(self) -> str:
        return f"<MetricsServer at {self.url}{'' if self._thread.is_alive() else ' (closed)'}>"

    def close(self) -> None:
        """Frees the port. Harmless when done twice, and in a forked child, where nothing serves."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def start(port: int, addr: str, registry: CollectorRegistry, capacity: Callable[[], dict[str, Any]]) -> MetricsServer:
    """A server of both paths. Raises InvalidArgumentError for a port or an address that cannot be, and StateError for a
    port that cannot be had.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise errors.InvalidArgumentError(f"port {port!r}; expected 0 (any) to 65535")
    family, address = _resolved(addr, port)
    try:
        server = _Server(address, family, _application(registry, capacity))
    except OSError as error:
        raise _refusal(error, port, addr) from error
    return MetricsServer(server)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, application: Any) -> None:
        self.address_family = family
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        # As the base class does, but for asking DNS about the address, which may take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            # While the process has no descriptors left, the client stays in the queue and is tried again at once.
            time.sleep(_PAUSE_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # else the client went away
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """No line for every scrape."""


# A forked child has the sockets and nobody who answers on them: a port stayed taken when the parent is gone.
_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for server in list(_servers):
        with contextlib.suppress(OSError):
            server.socket.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _application(registry: CollectorRegistry, capacity: Callable[[], dict[str, Any]]) -> Any:
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def say(status: str, text: str, kind: str = _TEXT) -> list[bytes]:
            body = text.encode()
            start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

        path = environ.get("PATH_INFO", "")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return say("405 Method Not Allowed", "only GET\n")
        try:
            if path == "/metrics":
                # Whole before it is answered, so that what cannot be had is an error and not half a page.
                found: Iterable[bytes] = metrics(environ, start_response)
                return found
            if path == "/health/capacity":
                return say("200 OK", json.dumps(capacity()) + "\n", "application/json")
        except errors.PyallocError as error:
            return say("503 Service Unavailable", f"{error}\n")
        if path == "/":
            return say("200 OK", "pyalloc: /metrics for Prometheus, /health/capacity for load balancers\n")
        return say("404 Not Found", "only /metrics and /health/capacity are here\n")

    return answer


def _resolved(addr: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not isinstance(addr, str) or not addr:  # the resolver takes those for every address of the host
        raise errors.InvalidArgumentError(f"address {addr!r}; {_EXPECTED}")
    try:
        found = socket.getaddrinfo(addr, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise errors.InvalidArgumentError(f"address {addr!r}: {error}; {_EXPECTED}") from error
    family, _, _, _, address = found[0]
    return family, (str(address[0]), port)


def _refusal(error: OSError, port: int, addr: str) -> errors.PyallocError:
    if error.errno == errno.EADDRINUSE:
        return errors.StateError(
            f"port {port} of {addr} is taken by another program; choose another, or 0 for any free one"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return errors.InvalidArgumentError(f"address {addr!r} is another host's; {_EXPECTED}")
    return errors.StateError(f"port {port} of {addr} cannot be had: {error.strerror}")
