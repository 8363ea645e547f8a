"""`pyalloc`: help, exit codes, running programs as python does, and what doctor reads from torch's headers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from pyalloc import __version__, doctor
from pyalloc import run as run_module
from pyalloc.__main__ import main

SHOW = "import sys, json; print(json.dumps([sys.argv, __name__, sys.path[0]]))"


def run_target(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"from pyalloc.run import run_target; run_target({arguments!r})"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["doctor", "--help"]])
def test_help_shows_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run"], ["run", "-m"], ["run", "--conf", "slack:1"]])
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["run"], "pyalloc run", "run needs a script.py, -m module or -c code"),
        (["record", "train.py"], "pyalloc record", "record needs -o FILE"),
        (["snapshot"], "pyalloc snapshot (PID | --html FILE... | --convert FILE) -o FILE", "-o/--output"),
        (
            ["snapshot", "1", "-o", "x", "--timeout", "soon"],
            "pyalloc snapshot",
            "'soon'; expected seconds, more than 0",
        ),
    ],
)
def test_a_wrong_command_line_shows_the_usage_of_its_command(
    arguments: list[str], usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {usage}")
    assert message in said


def test_a_mistyped_command_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dcotor"])
    assert ended.value.code == 2
    assert "there is no command 'dcotor'; did you mean 'doctor'?" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pyalloc {__version__}\n"


@pytest.mark.parametrize("lines", [100_000, 1])
def test_a_reader_that_has_had_enough(lines: int) -> None:
    """The pipe breaks while the command prints, and at its end, when what is buffered is written."""
    code = (
        "import sys; from pyalloc._output import until_closed;"
        f"sys.exit(until_closed(lambda: [print('a line') for _ in range({lines})] and 0))"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_commands_end_with_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("pyalloc.__main__.until_closed", lambda command: seen.append(command) or 0)
    for command in ("doctor", "diff", "snapshot", "exporter", "top"):
        main([command])
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (["nope.py"], "can't open file '{folder}/nope.py': [Errno 2] No such file or directory"),
        (["empty"], "can't find '__main__' module in 'empty'"),
        (["-m", "nosuchmod"], "no module named nosuchmod"),
        (["-m", "empty"], "no module named empty.__main__"),
        (["-m", "empty.nothing"], "no module named empty.nothing"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["record", "-o", "trace.csv"]])
def test_a_program_that_is_not_there(command: list[str], target: list[str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").touch()
    code = (
        "import sys; from pyalloc import run; from pyalloc.__main__ import main; run.enable = lambda: True;"
        f"sys.exit(main({[*command, *target]!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"pyalloc: {reason.format(folder=tmp_path)}\n")
    assert not (tmp_path / "trace.csv").exists()


@pytest.mark.parametrize(
    ("options", "environment", "refused"),
    [("bridge:off", "", "bridge:off"), ("", "bridge:off", "bridge:off"), ("mode:pools", "", "mode:pools")],
)
def test_options_without_the_bridge_cannot_be_recorded(
    options: str, environment: str, refused: str, tmp_path: Path
) -> None:
    arguments = ["record", "--conf", options, "-o", "trace.csv", "-c", "print('ran')"]
    code = f"import sys; from pyalloc.__main__ import main; sys.exit(main({arguments!r}))"
    variables = {**os.environ, "PYALLOC_CONF": environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pyalloc: {refused} cannot be recorded")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "trace.csv").exists()


@pytest.mark.parametrize("command", [["run"], ["record", "-o", "trace.csv"]])
def test_wrong_options_say_where_they_were_written(tmp_path: Path, command: list[str]) -> None:
    arguments = [*command, "--conf", "bla,limit:1GiB", "-c", "print('ran')"]
    code = f"import sys; from pyalloc.__main__ import main; sys.exit(main({arguments!r}))"
    variables = {**os.environ, "PYALLOC_CONF": "limit:5M"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "'bla' is not KEY:VALUE" in done.stderr
    assert "PYALLOC_CONF: 'bla'" not in done.stderr
    assert "PYALLOC_CONF: option 'limit' has value '5M'" in done.stderr


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_demo_explains_itself_without_an_environment(option: str, tmp_path: Path) -> None:
    demo = [str(ROOT / "tools" / "demo"), "--requests", "3", option]
    variables = {**os.environ, "PYALLOC_VENV": str(tmp_path / "venv")}
    done = subprocess.run(demo, env=variables, capture_output=True, text=True, check=True)
    assert "tools/demo [options" in done.stdout
    assert "set -" not in done.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("arguments", "conf", "target"),
    [
        (["s.py", "-m", "x"], "", ["s.py", "-m", "x"]),
        (["-m", "my.module", "--conf", "theirs"], "", ["-m", "my.module", "--conf", "theirs"]),
        (["--conf", "slack:1", "-m", "my.module", "-v"], "slack:1", ["-m", "my.module", "-v"]),
        (["--conf=slack:1", "-c", "print(1)"], "slack:1", ["-c", "print(1)"]),
        (["--conf", "slack:1", "--", "s.py", "--help"], "slack:1", ["s.py", "--help"]),
    ],
)
def test_run_takes_what_python_takes(
    arguments: list[str], conf: str, target: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(run_module, "enable_for_program", lambda options, target: seen.append(options))
    monkeypatch.setattr(run_module, "run_target", seen.append)
    assert main(["run", *arguments]) == 0
    assert seen == [conf, target]


def test_a_script_runs_as_main_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "show.py"
    script.write_text(SHOW)
    done = run_target([str(script), "-x", "a b"], tmp_path)
    assert done.stdout.strip() == f'[["{script}", "-x", "a b"], "__main__", "{script.parent}"]'


def test_a_module_runs_as_main_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOW)
    done = run_target(["-m", "shown", "--flag"], tmp_path)
    assert done.stdout.strip() == f'[["{tmp_path / "shown.py"}", "--flag"], "__main__", ""]'


def test_code_runs_as_main_with_its_arguments(tmp_path: Path) -> None:
    done = run_target(["-c", SHOW, "one"], tmp_path)
    assert done.stdout.strip() == '[["-c", "one"], "__main__", ""]'


def test_the_exit_code_is_the_program_s(tmp_path: Path) -> None:
    assert run_target(["-c", "raise SystemExit(7)"], tmp_path).returncode == 7
    failed = run_target(["-c", "1 / 0"], tmp_path)
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr


def test_virtuals_are_read_from_headers(tmp_path: Path) -> None:
    declarations = {
        "c10/cuda/CUDACachingAllocator.h": """
            class CUDAAllocator : public DeviceAllocator {
             public:
              virtual void* raw_alloc(size_t nbytes) = 0;
              virtual int getUseCount(
                  Index /*device*/,
                  Id /*id*/) { return 1; }
              // virtual void old(int);
              void plain() const;
              std::pair<int, int> info(Index d) override { return {}; }
            };
            class Other { virtual void not_ours(); };
            """,
        "c10/core/CachingDeviceAllocator.h": """
            struct C10_API DeviceAllocator : public c10::Allocator {
              ~DeviceAllocator() override;
              virtual bool initialized() = 0;
            };
            """,
        "c10/core/Allocator.h": """
            struct C10_API Allocator {
              virtual ~Allocator() = default;
              virtual DeleterFnPtr raw_deleter() const { return nullptr; }
            };
            """,
    }
    for name, text in declarations.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[12:] for line in text.splitlines()))
    assert doctor.torch_virtuals(tmp_path) == ["raw_alloc", "getUseCount", "initialized", "raw_deleter"]
