"""pyalloc-top as a command: options, exit codes, JSON, pipes, and the loop in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from page_builder import PageBuilder

COMMAND = [sys.executable, "-m", "pyalloc.top.cli"]
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYALLOC_SHARED_FOLDER", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


def top(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_once_without_a_terminal_is_plain() -> None:
    builder = PageBuilder()
    builder.write()
    for arguments in (["--once"], []):
        done = top(*arguments)
        assert "\x1b" not in done.stdout
        assert "4711" in done.stdout
        assert done.stderr == ""
    assert max(len(line) for line in top("--once", COLUMNS="80").stdout.splitlines()) <= 80
    assert top("--once", "--ascii").stdout.isascii()
    assert top("--once", LC_ALL="C", PYTHONIOENCODING="ascii").stdout.isascii()


def test_json_has_a_schema_and_whole_bytes() -> None:
    # However long the command takes to begin, it does not find the page silent.
    builder = PageBuilder(published_ms=time.time_ns() // 1_000_000 + 600_000)
    builder.devices[0]["free"] = -(1 << 63)
    builder.write()
    found = json.loads(top("--once", "--json").stdout)
    assert found["schema"] == "pyalloc.top/1"
    assert found["unreadable"] == []
    (process,) = found["processes"]
    assert (process["pid"], process["state"], process["program"]) == (4711, "running", "python serve.py")
    (device,) = process["devices"]
    assert device["reserved"] == 2 << 30
    assert device["free"] is None
    assert device["rates"] == dict.fromkeys(device["rates"])
    assert device["fragmentation"]["external"] == 0.75
    (pool,) = device["pools"]
    assert pool["live_cells"] == [255, 128, 1, 0]


def test_json_by_the_line() -> None:
    builder = PageBuilder()
    builder.write()
    lines = top("--json", "-n", "3", "-d", "0.1").stdout.splitlines()
    assert [json.loads(line)["processes"][0]["pid"] for line in lines] == [4711] * 3


def test_json_is_flushed_and_ends_with_130() -> None:
    builder = PageBuilder()
    builder.write()
    with subprocess.Popen([*COMMAND, "--json", "-d", "30"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["processes"]
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
        assert (running.returncode, errors) == (130, b"")


def test_a_pipe_whose_reader_is_gone() -> None:
    builder = PageBuilder()
    builder.write()
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "--json", "-n", "5", "-d", "0.1"], stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_filters_and_sorting_hold_for_json() -> None:
    builders = [PageBuilder(pid=pid) for pid in (1, 2, 3)]
    for builder, reserved in zip(builders, (10, 30, 20), strict=True):
        builder.devices[0]["reserved"] = reserved
        builder.write()

    def pids(*arguments: str) -> list[int]:
        return [one["pid"] for one in json.loads(top("--once", "--json", *arguments).stdout)["processes"]]

    assert pids() == [2, 3, 1]
    assert pids("-r") == [1, 3, 2]
    assert pids("-s", "pid") == [1, 2, 3]
    assert pids("-p", "1", "-p", "3") == [3, 1]
    assert pids("-F", "SERVE", "--device", "0") == [2, 3, 1]


def test_nothing_to_show_is_3() -> None:
    for arguments in (["--once"], ["--once", "--json"], []):
        done = top(*arguments, code=3)
        assert done.stdout == ""
        assert "python -m pyalloc run train.py" in done.stderr
    builder = PageBuilder()
    builder.write()
    assert "none of the 1 processes" in top("--once", "-p", "1", code=3).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-d", "0.01"], "at least 0.1"),
        (["-d", "nan"], "at least 0.1"),
        (["-n", "0"], "at least 1"),
        (["-d", "soon"], "'soon'; expected seconds, at least 0.1"),
        (["-n", "x"], "'x'; expected a number of looks, at least 1"),
        (["-s", "size"], "expected one of reserved, allocated"),
        (["-u", "nobody-of-that-name"], "no user is named"),
        (["--thresholds", "90,75"], "two percentages"),
        (["--view", "arena"], "invalid choice"),
        (["file"], "unrecognized arguments"),
    ],
)
def test_wrong_command_lines_are_2(arguments: list[str], message: str) -> None:
    assert message in top(*arguments, code=2).stderr


def test_what_needs_no_page() -> None:
    from pyalloc import __version__

    assert top("-V").stdout == f"pyalloc-top {__version__}\n"
    assert "allocations a second" in top("-s", "help").stdout
    assert "pyalloc top" in subprocess.run(
        [sys.executable, "-m", "pyalloc", "top", "-h"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


def test_fields_are_explained() -> None:
    assert top("--fields", code=3).stdout == ""
    builder = PageBuilder()
    builder.devices[0]["allocation"] = [0] * 12
    builder.write()
    lines = top("--fields").stdout.splitlines()
    assert "device.reserved\tgauge\t-\t" in lines
    assert "device.allocation.<kind>.<figure>\tgauge\t-\t" in lines


def test_a_folder_that_cannot_be_read_is_1(folder: Path) -> None:
    (folder / f"pyalloc-{os.geteuid()}").symlink_to("/tmp")
    assert "no folder" in top("--once", code=1).stderr


def test_bad_pages_are_lines_on_stderr() -> None:
    builder = PageBuilder()
    path = builder.write()
    (path.parent / "1-2-3").write_bytes(builder.content(version=9))
    done = top("--once")
    assert "4711" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "version 9" in done.stderr
    assert len(json.loads(top("--once", "--json").stdout)["unreadable"]) == 1


def test_prune() -> None:
    alive, dead = PageBuilder(pid=1), PageBuilder(pid=2)
    alive.write()
    dead.write()
    dead.die()
    assert "2   0 died" in top("--once").stdout
    assert top("--prune").stdout == f"deleted {dead.path}\n"
    assert alive.path.exists()


def test_pools_and_tags_are_those_of_living_processes() -> None:
    alive, dead = PageBuilder(pid=101), PageBuilder(pid=102)
    for builder in (alive, dead):
        builder.tags = [{"name": "request-7", "bytes": 1, "peak_bytes": 1, "blocks": 1, "allocations": 1}]
        builder.write()
    dead.die()
    for view in ("pool", "tag"):
        lines = top("--once", "--view", view).stdout.splitlines()
        assert [line.split()[0] for line in lines if line.split()[0] in ("101", "102")] == ["101"], lines
        assert lines[-1].startswith("not here: 1 process that ended or died"), lines
        asked = top("--once", "--view", view, "-p", "102").stdout
        assert "102" in asked
        assert "not here" not in asked
    assert "102   0 died" in top("--once").stdout


class Terminal:
    """pyalloc-top in a terminal of its own."""

    def __init__(self, *arguments: str, columns: int = 100, lines: int = 30) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [*COMMAND, "-d", "0.1", *arguments],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.output = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, wanted: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while wanted not in plain(self.output):
            assert time.monotonic() < end, f"{wanted!r} did not appear in:\n{plain(self.output)[-3000:]}"
            self.read()

    def read(self, seconds: float = 0.2) -> bool:
        """Whether there was anything."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.output += os.read(self.master, 65536).decode(errors="replace")
        return True

    def press(self, keys: str) -> None:
        self.output = ""
        os.write(self.master, keys.encode())

    def end(self) -> int:
        end = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < end
            self.read()
        while self.read():  # one read gives at most a page of what it has written
            pass
        code = self.process.wait()
        after = termios.tcgetattr(self.slave)
        os.close(self.slave)
        os.close(self.master)
        assert after == self.before
        return code


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_in_a_terminal() -> None:
    builder = PageBuilder()
    builder.write()
    terminal = Terminal()
    terminal.wait_for("4711")
    assert ALTERNATE in terminal.output
    terminal.press("h")
    terminal.wait_for("turn the order round")
    terminal.press("x")
    terminal.wait_for("STATE")
    terminal.press("\r")
    terminal.wait_for("SEGMENTS, END TO END")
    terminal.press("\x1b")
    terminal.wait_for("STATE")
    terminal.press(" ")
    terminal.wait_for("PAUSED")
    builder.devices[0]["reserved"] = 7 << 30
    builder.advance()
    builder.write()
    terminal.press("\x1b[B")  # another picture, but not of the new figures
    terminal.wait_for("2.00G")
    assert "7.00G" not in terminal.output
    terminal.press(" ")
    terminal.wait_for("7.00G")
    builder.die()
    terminal.wait_for("died")
    terminal.output = ""
    terminal.resize(60, 12)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.wait_for("died")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.output.count(NORMAL) == 1


def test_control_c_and_a_number_of_looks() -> None:
    builder = PageBuilder()
    builder.write()
    terminal = Terminal()
    terminal.wait_for("4711")
    terminal.press("\x03")
    assert terminal.end() == 0
    assert NORMAL in terminal.output
    assert "Traceback" not in terminal.output
    assert Terminal("-n", "2").end() == 0


def test_a_terminal_that_can_only_print(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PageBuilder()
    builder.write()
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    assert terminal.end() == 0
    assert "4711" in terminal.output
    assert "\x1b" not in terminal.output


def test_an_empty_terminal_waits_for_a_process() -> None:
    terminal = Terminal(columns=120)
    terminal.wait_for("No process runs on pyalloc here")
    builder = PageBuilder()
    builder.write()
    terminal.wait_for("4711")
    builder.end()
    terminal.wait_for("ended")
    terminal.press("q")
    assert terminal.end() == 0


def test_no_color_in_a_terminal() -> None:
    builder = PageBuilder()
    builder.process["oom_limit"] = 1
    builder.write()
    coloured = re.compile(r"\x1b\[[0-9;]*3[1-7]m")
    terminal = Terminal()
    terminal.wait_for("4711")
    terminal.press("q")
    assert terminal.end() == 0
    terminal = Terminal("--no-color")
    terminal.wait_for("4711")
    assert not coloured.search(terminal.output)
    terminal.press("q")
    assert terminal.end() == 0
