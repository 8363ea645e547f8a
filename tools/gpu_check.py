#!/usr/bin/env python3
"""Checks pyalloc on a real GPU in at most six minutes, and writes one JSON file.

    python tools/gpu_check.py --out gpu.json        needs a GPU, pyalloc, torch 2.11 or newer, pytest and hypothesis
    python tools/gpu_check.py --dry-run             the same steps, smaller, on the simulated GPU

First the open questions about the driver (tools/gpu_measure.py), then the torch tests and the stress on the real
driver. Each step runs in a process of its own with a time limit, and the file is written after each. pyalloc is the
installed one; a folder .gpu in the repository (`pip install --no-deps --target .gpu .`) goes before it, for a machine
that has no package index.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS = {"measure": 110, "tests": 170, "stress": 70}  # limits; together under six minutes
DRY_RUN_FACTOR = 6  # a machine without a GPU may have few cores
NOTHING_COLLECTED = 5  # pytest's exit code
SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed|deselected)\b")


def limit_of(step: str, dry_run: bool) -> int:
    """Seconds the step may take."""
    return SECONDS[step] * (DRY_RUN_FACTOR if dry_run else 1)


def run(command: list[str], limit: int, environment: dict[str, str]) -> dict[str, Any]:
    """Runs one step. The JSON object or pytest summary on its last lines is for the caller to read from `output`."""
    started = time.monotonic()
    # In tests/, so that -m and -c find the installed pyalloc and not the sources beside this file.
    where: dict[str, Any] = {"cwd": ROOT / "tests", "env": environment, "start_new_session": True}
    step = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **where)
    try:
        output, _ = step.communicate(timeout=limit)
        code = step.returncode
    except subprocess.TimeoutExpired:
        os.killpg(step.pid, signal.SIGKILL)  # with the programs its tests started
        output, _ = step.communicate()
        code, output = -1, f"{output}\nno end after {limit} s"
    return {"exit_code": code, "seconds": round(time.monotonic() - started, 1), "output": output}


def simulated(arguments: list[str], memory: str) -> list[str]:
    return [sys.executable, "-m", "pyalloc.simgpu", "--memory", memory, *arguments]


def check_measure(dry_run: bool, environment: dict[str, str]) -> dict[str, Any]:
    script = str(ROOT / "tools" / "gpu_measure.py")
    command = simulated([script, "--small"], "80GiB") if dry_run else [sys.executable, script]
    result = run(command, limit_of("measure", dry_run), environment)
    lines = result["output"].strip().splitlines()
    if result["exit_code"] == 0 and lines and lines[-1].startswith("{"):
        result["measured"] = json.loads(lines[-1])
        del result["output"]
    return result


def check_tests(name: str, files: list[Path], dry_run: bool, environment: dict[str, str]) -> dict[str, Any]:
    """Runs pytest once for each file, several at a time: most of a test is a program that imports torch."""
    started = time.monotonic()

    def one(file: Path) -> dict[str, Any]:
        left = limit_of(name, dry_run) - int(time.monotonic() - started)
        arguments = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(file)]
        command = simulated(arguments, "8GiB") if dry_run else [sys.executable, *arguments]
        result = run(command, max(1, left), environment)
        counts = {word: int(number) for number, word in SUMMARY.findall(result["output"][-400:])}
        return {"file": file.name, "counts": counts, **result, "output": result["output"][-8000:]}

    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        results = list(pool.map(one, files))
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result["counts"])
    bad = [result["exit_code"] for result in results if result["exit_code"] not in (0, NOTHING_COLLECTED)]
    seconds = round(time.monotonic() - started, 1)
    return {"exit_code": bad[0] if bad else 0, "seconds": seconds, "counts": dict(counts), "files": results}


def torch_tests(stress: bool) -> list[Path]:
    """The files of tests/torch that run programs on a device: the stress, or all others."""
    found = sorted((ROOT / "tests" / "torch").glob("test_*.py"))
    # These start a simulated GPU of their own, or are about it.
    elsewhere = ("test_examples.py", "test_bench.py", "test_simgpu_launcher.py", "test_simgpu_unsupported.py")
    return [file for file in found if file.name not in elsewhere and ("stress" in file.name) == stress]


def versions() -> dict[str, str]:
    """Of the machine's parts, as the installed packages say."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("torch", "pytest", "hypothesis", "transformers", "peft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def what_is_missing(steps: list[str], environment: dict[str, str]) -> list[str]:
    """Packages without which no step can work: better said at once than after minutes, by each test."""
    needed = ["pyalloc", "torch", *(("pytest", "hypothesis") if steps != ["measure"] else ())]
    # A folder by the name (tests/torch) is no package: it has no origin.
    look = (
        "import sys; from importlib.util import find_spec;"
        "print(*(one for one in sys.argv[1:] if not getattr(find_spec(one), 'origin', None)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", look, *needed],
        env=environment,
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="default gpu_check.json")
    parser.add_argument("--dry-run", action="store_true", help="on the simulated GPU, smaller")
    parser.add_argument("--only", choices=tuple(SECONDS), action="append", help="run this step; may be repeated")
    args = parser.parse_args()

    environment = dict(os.environ, PYALLOC_TEST_DEVICE="gpu")
    installed = ROOT / ".gpu"
    if installed.is_dir():
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(installed), environment.get("PYTHONPATH"))))

    steps = args.only or list(SECONDS)
    if missing := what_is_missing(steps, environment):
        print(f"gpu_check: nothing was checked: {sys.executable} lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    report: dict[str, Any] = {"dry_run": args.dry_run, "versions": versions(), "steps": {}}
    for name in steps:
        print(f"gpu_check: {name}, at most {limit_of(name, args.dry_run)} s", flush=True)
        if name == "measure":
            result = check_measure(args.dry_run, environment)
        else:
            result = check_tests(name, torch_tests(stress=name == "stress"), args.dry_run, environment)
        report["steps"][name] = result
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        state = "ok" if result["exit_code"] == 0 else f"exit code {result['exit_code']}"
        print(f"gpu_check: {name}: {state} in {result['seconds']} s {result.get('counts', '')}", flush=True)
    print(f"gpu_check: wrote {args.out}")
    return 0 if all(step["exit_code"] == 0 for step in report["steps"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
