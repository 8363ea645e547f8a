"""The endpoint of metrics, and the command `pyalloc exporter`: how they begin, answer and end."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exported_pages import alive, page
from prometheus_client import CollectorRegistry

import pyalloc
from pyalloc.__main__ import main
from pyalloc.metrics.capacity import capacity
from pyalloc.metrics.collectors import HostCollector
from pyalloc.metrics.host import Host
from pyalloc.metrics.server import MetricsServer, start


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    alive.clear()


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    host, registry = Host(), CollectorRegistry()
    registry.register(HostCollector(host))
    with start(0, "127.0.0.1", registry, lambda: capacity(host.look().processes)) as serving:
        yield serving


def get(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    request = urllib.request.Request(server.url.removesuffix("/metrics") + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_paths(server: MetricsServer) -> None:
    page().write()
    status, kind, body = get(server, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert "pyalloc_device_margin_bytes" in body
    status, kind, body = get(server, "/health/capacity")
    assert (status, kind) == (200, "application/json")
    assert json.loads(body)["schema"] == "pyalloc.capacity/1"
    assert get(server, "/health/capacity", "HEAD") == (200, "application/json", "")
    assert get(server, "/")[0] == 200
    assert get(server, "/etc/passwd")[0] == 404
    assert get(server, "/metrics", "POST")[0] == 405


def test_it_shows_where_it_serves(server: MetricsServer) -> None:
    assert repr(server) == f"<MetricsServer at http://127.0.0.1:{server.port}/metrics>"
    server.close()
    assert repr(server).endswith("/metrics (closed)>")


def test_an_error_of_pyalloc_s_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> dict[str, object]:
        raise pyalloc.DriverError("the driver is gone")

    with start(0, "127.0.0.1", CollectorRegistry(), fails) as serving:
        assert get(serving, "/health/capacity") == (503, "text/plain; charset=utf-8", "the driver is gone\n")
        assert get(serving, "/metrics")[0] == 200
    assert capfd.readouterr().err == ""


def test_clients_that_go_away_or_talk_nonsense(server: MetricsServer, capfd: pytest.CaptureFixture[str]) -> None:
    for sent in (b"", b"GET /metrics HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00" * 20, b"GET /metrics HTTP/1.0\r\n\r\n"):
        client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        client.sendall(sent)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not close
        client.close()
    assert get(server, "/metrics")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_without_descriptors_a_client_waits_and_the_server_sleeps(server: MetricsServer) -> None:
    page().write()
    client = socket.socket()
    client.settimeout(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # 0 to 2 are in use
    try:
        client.connect(("127.0.0.1", server.port))
        used = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - used
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with client:
        assert used < 0.2
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.0 200 OK")


def test_many_scrapes_at_once(server: MetricsServer) -> None:
    page().write()
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(get(server, "/metrics")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 8


def test_a_port_is_free_after_close_and_in_a_forked_child(server: MetricsServer) -> None:
    runs, says = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(says, b"!")
        signal.pause()
    try:
        assert os.read(runs, 1) == b"!"  # only once it runs has it let go of the port
        server.close()
        server.close()
        with socket.create_server(("127.0.0.1", server.port)):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(runs)
        os.close(says)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "70000"], "port 70000; expected 0 (any) to 65535"),
        (["--port", "-1"], "port -1; expected"),
        (
            ["--port", "0", "--addr", "192.0.2.1"],
            "address '192.0.2.1' is another host's; expected one of this host's, such as",
        ),
        (["--port", "0", "--addr", "no.such.host.invalid"], "address 'no.such.host.invalid': "),
        (["--port", "0", "--addr", ""], "address ''; expected one of this host's"),
        (["--port", "0", "--addr", "x" * 300], "expected one of this host's"),
    ],
)
def test_what_cannot_be_served(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exporter", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pyalloc exporter: ")
    assert expected in line


def test_a_port_that_is_taken(server: MetricsServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exporter", "--port", str(server.port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"port {server.port} of 127.0.0.1 is taken by another program; choose another" in line
    with pytest.raises(pyalloc.StateError, match="is taken"):
        pyalloc.metrics.serve(server.port)
    assert get(server, "/metrics")[0] == 200


@pytest.mark.parametrize(("port", "addr"), [(0, None), (0, b"127.0.0.1"), (0, ""), ("80", "127.0.0.1"), (True, "::1")])
def test_an_argument_that_cannot_be(port: Any, addr: Any) -> None:
    with pytest.raises(pyalloc.InvalidArgumentError, match="expected"):
        pyalloc.metrics.serve(port, addr)


def test_without_the_client_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["exporter"]) == 1
    expected = "metrics need the package prometheus_client: pip install prometheus_client"
    assert capsys.readouterr().err == f"pyalloc exporter: {expected}\n"
    for call in (pyalloc.metrics.collector, pyalloc.metrics.serve):
        with pytest.raises(pyalloc.MissingPackageError) as raised:
            call()
        assert str(raised.value) == expected


def test_once_loads_neither_torch_nor_the_core() -> None:
    page().write()
    code = """
import sys
from pyalloc.__main__ import main
assert main(["exporter", "--once"]) == 0
from pyalloc import _native
assert "torch" not in sys.modules and not _native.library.cache_info().currsize
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert 'pyalloc_device_margin_bytes{device="0",pid="4711"' in done.stdout


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_told_to_end(ended_by: signal.Signals) -> None:
    page().write()
    command = [sys.executable, "-m", "pyalloc", "exporter", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("pyalloc exporter: serving http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[-1], timeout=60) as answer:
            assert b'pyalloc_exporter_pages{state="read"} 1.0' in answer.read()
        process.send_signal(ended_by)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        serving = start(0, "::1", CollectorRegistry(), dict)
    except pyalloc.PyallocError as error:
        pytest.skip(str(error))
    with serving:
        assert serving.url.startswith("http://[::1]:")
        assert get(serving, "/metrics")[0] == 200
