"""The control socket: who may ask, what is answered, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from snapshot_samples import MIB, live, snapshot_of

import pyalloc
from pyalloc import user_folder
from pyalloc.__main__ import main
from pyalloc.snapshots import asking, control_socket
from pyalloc.snapshots.reading import loads

SAMPLE = snapshot_of({"kv": [live(MIB, "request-1")]})

PROCESS = """
import sys, time
from pathlib import Path
from pyalloc.snapshots import control_socket
control_socket._ANSWERS["snapshot"] = lambda: Path(sys.argv[1]).read_text()
print(control_socket.start(), flush=True)
"""


@pytest.fixture(autouse=True)
def shared_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in the place of /dev/shm, with a short name: a socket's path has 107 characters at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("PYALLOC_SHARED_FOLDER", folder)
        yield Path(folder)
        control_socket.stop()


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    SAMPLE.save(tmp_path / "sample.json")
    return tmp_path / "sample.json"


@pytest.fixture
def process(shared_memory: Path, sample: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a socket that answers SAMPLE, until its standard input ends."""
    with serving(sample, "sys.stdin.read()") as started:
        yield started
        started.kill()


def serving(sample: Path, then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROCESS + then, str(sample)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline().endswith(".sock\n")
    return started


def sockets(shared_memory: Path) -> list[Path]:
    return list(shared_memory.glob("*/*.sock"))


def test_another_process_is_asked(process: subprocess.Popen[str], tmp_path: Path) -> None:
    assert asking.ask(process.pid) == SAMPLE
    assert asking.reachable() == [process.pid]
    output = tmp_path / "out.json"
    assert main(["snapshot", str(process.pid), "-o", str(output)]) == 0
    assert pyalloc.load_snapshot(output) == SAMPLE


def test_only_its_user_can_reach_it(process: subprocess.Popen[str], shared_memory: Path) -> None:
    (path,) = sockets(shared_memory)
    assert path.parent.name == f"pyalloc-{os.geteuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_goes_with_its_process_and_a_killed_one_s_goes_with_the_next(
    process: subprocess.Popen[str], shared_memory: Path, sample: Path
) -> None:
    with serving(sample, "sys.stdin.read()") as polite:
        assert len(sockets(shared_memory)) == 2
        polite.communicate("")
    assert len(sockets(shared_memory)) == 1
    process.kill()
    process.wait()
    strange = sockets(shared_memory)[0].with_name("0-1-1.sock")  # of another pid namespace
    strange.touch()
    assert len(sockets(shared_memory)) == 2
    own = control_socket.start()
    assert set(sockets(shared_memory)) == {own, strange}
    assert asking.reachable() == [os.getpid()]


def test_a_file_that_is_no_socket_is_left_alone(process: subprocess.Popen[str], shared_memory: Path) -> None:
    process.kill()
    process.wait()
    (path,) = sockets(shared_memory)
    path.unlink()
    path.write_text("mine")
    control_socket.start()
    assert path.read_text() == "mine"


def test_a_forked_child_does_not_answer_nor_take_the_socket_along(
    shared_memory: Path, sample: Path, tmp_path: Path
) -> None:
    then = """
import os
child = os.fork()
if child == 0:
    raise SystemExit(0)  # with everything that an exit does
assert os.waitpid(child, 0)[1] == 0
print("forked", flush=True)
sys.stdin.read()
"""
    with serving(sample, then) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "forked\n"
        assert len(sockets(shared_memory)) == 1
        assert asking.ask(started.pid) == SAMPLE
        started.kill()


def test_a_child_that_outlives_its_parent_leaves_no_socket_open(shared_memory: Path, sample: Path) -> None:
    then = """
import os
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
sys.stdin.read()
"""
    with serving(sample, then) as started:
        assert started.stdout is not None
        child = int(started.stdout.readline())
        started.kill()
        started.wait()
        (path,) = sockets(shared_memory)
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(str(path))
        os.kill(child, signal.SIGKILL)


def refused(capsys: pytest.CaptureFixture[str], pid: int | str, *more: str) -> str:
    assert main(["snapshot", str(pid), "-o", "/dev/null", *more]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_who_cannot_be_asked_is_one_line(
    process: subprocess.Popen[str], shared_memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, 1 << 30, 0):
        assert f"there is no process {pid}" in refused(capsys, pid)
    line = refused(capsys, os.getpid())
    assert f"has no control socket in {shared_memory}/pyalloc-{os.geteuid()}" in line, line
    assert line.endswith(
        ". Start it with PYALLOC_CONF=control_socket:on (with enable:True as well only where the program does not call "
        "pyalloc.enable() itself), or call pyalloc.enable(control_socket=True) in it; if it runs with that already, "
        "and with another PYALLOC_SHARED_FOLDER, set the same one here"
    )
    assert f"(there are control sockets of {process.pid})" in line
    with pytest.raises(SystemExit) as ended:
        main(["snapshot", "me", "-o", "/dev/null"])
    assert ended.value.code == 2


def test_a_socket_that_nobody_listens_at(shared_memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = user_folder.made_user_folder()
    path = folder / f"{user_folder.process_name(os.getpid())}.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        assert "does not answer at" in refused(capsys, os.getpid())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "broke off its answer"),
        (b'{"bytes": 100}\nshort', "broke off its answer"),
        (b'{"bytes": 2}\n{}', "is not a snapshot of pyalloc"),
        (b'{"bytes": -1}\n', "is not pyalloc"),
        (b'{"bytes": 1e99}\n', "is not pyalloc"),
        (b"HTTP/1.1 200 OK\r\n", "is not pyalloc"),
        (b"x" * 100_000, "is not pyalloc"),
        (b'{"error": "busy"}\n', "refused: busy"),
        (None, "has not answered in time"),
    ],
)
def test_a_wrong_answer_is_one_line(
    answer: bytes | None, says: str, shared_memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = user_folder.made_user_folder() / f"{user_folder.process_name(os.getpid())}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        done = threading.Event()

        def answering() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                if answer is None:
                    done.wait(60)
                else:
                    client.sendall(answer)

        thread = threading.Thread(target=answering)
        thread.start()
        assert says in refused(capsys, os.getpid(), "--timeout", "0.3" if answer is None else "30")
        done.set()
        thread.join()


def said_to(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        parts = []
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_wrong_clients_are_told_and_the_next_one_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def answer() -> str:
        asked.set()
        assert may_answer.wait(60)
        return SAMPLE.dumps()

    monkeypatch.setitem(control_socket._ANSWERS, "snapshot", answer)
    monkeypatch.setattr(control_socket, "_REQUEST_SECONDS", 60.0)
    path = control_socket.start()
    assert control_socket.start() == path  # it is open already
    wrong = [b"\n", b"{}\n", b"[]\n", b'{"request": "trim"}\n', b'{"request": []}\n', b"[" * 4000 + b"\n", b"\xff\n"]
    for request in [*wrong, b"x" * 4097, b"half a line"]:
        assert json.loads(said_to(path, request))["error"].startswith("not a request")
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as patient:
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(path))
            rude.sendall(b'{"request": "snapshot"}\n')
            assert asked.wait(60)
        # It has gone before its answer, for which the others queue: one says nothing, the other has said all.
        silent.connect(str(path))
        patient.connect(str(path))
        patient.sendall(b'{"request": "snapshot"}\n')
        monkeypatch.setattr(control_socket, "_REQUEST_SECONDS", 0.2)
        may_answer.set()
        silent.settimeout(60)
        assert silent.recv(100) == b""  # its time was over
        patient.settimeout(60)
        header, _, text = patient.makefile("rb").read().partition(b"\n")
        assert json.loads(header) == {"bytes": len(text)}
        assert loads(text) == SAMPLE
    monkeypatch.setattr(control_socket, "_REQUEST_SECONDS", 60.0)
    assert asking.ask(os.getpid()) == SAMPLE


def test_a_snapshot_that_fails_is_told_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise pyalloc.DriverError("cuMemGetInfo failed")

    monkeypatch.setitem(control_socket._ANSWERS, "snapshot", fail)
    control_socket.start()
    for _ in range(2):
        with pytest.raises(pyalloc.SnapshotError, match="refused: DriverError: cuMemGetInfo failed"):
            asking.ask(os.getpid())


def test_stopping_ends_the_thread_and_may_be_repeated() -> None:
    path = control_socket.start()
    control_socket.stop()
    control_socket.stop()
    assert not path.exists()
    ends = time.monotonic() + 30
    while any(one.name == "pyalloc-control" for one in threading.enumerate()):
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert control_socket.start() == path


def test_a_folder_that_is_not_the_user_s_alone_is_refused(shared_memory: Path) -> None:
    folder = user_folder.user_folder(os.geteuid())
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(pyalloc.StateError, match="is not a folder of user"):
        control_socket.start()
    folder.rmdir()
    elsewhere = shared_memory / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(pyalloc.StateError, match="is not a folder of user"):
        control_socket.start()
    folder.unlink()


def test_something_in_the_socket_s_place_is_left_there(shared_memory: Path) -> None:
    path = user_folder.made_user_folder() / f"{user_folder.process_name(os.getpid())}.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        control_socket.start()
    assert path.read_text() == "mine"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_to_wait_that_is_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["snapshot", "1", "-o", "/dev/null", "--timeout", seconds])
    assert ended.value.code == 2
    assert "--timeout" in capsys.readouterr().err
