"""python -m pyalloc.simgpu and pyalloc.simgpu.install: arguments, exit codes, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyalloc.errors import ConfigError
from pyalloc.simgpu import Settings, parse_size


def launch(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyalloc.simgpu", *arguments]
    return subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120, cwd=cwd
    )


def python(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 << 30), ("512MiB", 512 << 20), ("80GB", 80 * 10**9), ("1.5 GiB", 3 << 29), ("4096", 4096), (7, 7)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "12XB", "-1GiB", "1e9", "1 2GiB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("wrong", [{"memory": 100}, {"devices": 0}, {"devices": 9}, {"streams": "later"}, {"seed": -1}])
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Settings(**{"memory": 1 << 30, **wrong})  # type: ignore[arg-type]


@pytest.mark.usefixtures("run_on_simgpu")
class TestLauncher:
    def test_script_arguments_and_exit_code(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text("import sys; print(__name__, sys.argv[1:], sys.path[0]); sys.exit(7)")
        done = launch("--memory=1GiB", "--devices", "2", str(script), "--memory", "x", "-m", "y")
        assert done.returncode == 7, done.stderr
        assert done.stdout.strip() == f"__main__ ['--memory', 'x', '-m', 'y'] {tmp_path}"

    def test_code_and_module(self, tmp_path: Path) -> None:
        done = launch("-c", "import sys, pyalloc.simgpu as s; print(sys.argv, s.active())", "--a", "b")
        assert done.stdout.strip() == "['-c', '--a', 'b'] True", done.stderr
        (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:])")
        done = launch(
            "--memory", "1GiB", "-m", "mod", "x", env={"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"}
        )
        assert done.stdout.strip() == "__main__ ['x']", done.stderr

    def test_failures_pass_through(self, tmp_path: Path) -> None:
        assert launch(str(tmp_path / "missing.py")).returncode == 2
        assert launch("-c", "raise SystemExit('no')").returncode == 1
        assert launch("-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)").returncode == -15

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ((), "no program to run"),
            (("-c",), "-c needs"),
            (("--memory", "3XB", "x.py"), "'3XB' is not a size"),
            (("--memory", "1KiB", "x.py"), "at least 2MiB"),
            (("--devices", "9", "x.py"), "devices: 9"),
            (("--streams", "later", "x.py"), "invalid choice"),
            (("--speed", "x.py"), "unrecognized arguments"),
            (("python", "-m", "json"), "no file 'python'; python -m pyalloc.simgpu takes the place of python"),
            (("no/python3.11", "x.py"), "takes the place of python"),
        ],
    )
    def test_wrong_arguments(self, arguments: tuple[str, ...], text: str) -> None:
        done = launch(*arguments)
        assert done.returncode == 2, done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr

    def test_help(self) -> None:
        done = launch("--help")
        assert done.returncode == 0
        assert "examples:" in done.stdout

    def test_interpreter_options_are_kept(self) -> None:
        command = [
            sys.executable,
            "-W",
            "error",
            "-X",
            "dev",
            "-m",
            "pyalloc.simgpu",
            "-c",
            "import sys; print(sys.warnoptions)",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert "'error'" in done.stdout, done.stderr

    def test_install_in_process(self) -> None:
        done = python(
            "import pyalloc.simgpu as s\n"
            "assert not s.active()\n"
            "sim = s.install(memory='1GiB', devices=2)\n"
            "assert s.active() and sim.capacity(1) == 1 << 30\n"
            "assert s.install(memory='1GiB', devices=2).used() == 0\n"
            "try:\n    s.install(memory='2GiB')\nexcept s.StateError as error:\n    print('refused:', error)\n"
            "import torch\n"
            "assert torch.cuda.device_count() == 2\n"
            "assert torch.arange(3.).cuda().cpu().tolist() == [0, 1, 2]\n"
        )
        assert done.returncode == 0, done.stderr
        assert "refused: the simulation already runs with memory:1073741824" in done.stdout

    def test_install_after_torch_is_refused(self) -> None:
        done = python("import torch, pyalloc.simgpu; pyalloc.simgpu.install()")
        assert done.returncode == 1
        assert "torch is already imported" in done.stderr.splitlines()[-1]

    def test_control_of_no_simulation(self) -> None:
        done = python("import pyalloc.simgpu; pyalloc.simgpu.simulation()")
        assert done.returncode == 1
        assert "no GPU is simulated here" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("cuda", "text"), [("None", "is built without CUDA"), ("'12.8'", "is built for CUDA 12.8"), ("'14.0'", "CUDA 14.0")]
)
def test_torch_that_cannot_be_simulated_for(tmp_path: Path, cuda: str, text: str) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "version.py").write_text(f"__version__ = '2.99.0'\ncuda: str = {cuda}\n")
    done = launch("-c", "print('ran')", env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert done.returncode == 1
    assert done.stdout == ""
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
