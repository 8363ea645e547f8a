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
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS = {"measure": 110, "tests": 170, "stress": 70}  # limits; together under six minutes
SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed|deselected)\b")


def run(command: list[str], limit: int, environment: dict[str, str]) -> dict[str, Any]:
    """Runs one step. The JSON object or pytest summary on its last lines is for the caller to read from `output`."""
    started = time.monotonic()
    # In tests/, so that -m and -c find the installed pyalloc and not the sources beside this file.
    options: dict[str, Any] = {"cwd": ROOT / "tests", "env": environment, "text": True, "timeout": limit}
    try:
        step = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
        code, output = step.returncode, step.stdout
    except subprocess.TimeoutExpired as late:
        partial = late.stdout or b""
        code, output = -1, partial.decode(errors="replace") if isinstance(partial, bytes) else partial
        output += f"\nno end after {limit} s"
    return {"exit_code": code, "seconds": round(time.monotonic() - started, 1), "output": output}


def simulated(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pyalloc.simgpu", "--memory", "80GiB", *arguments]


def check_measure(dry_run: bool, environment: dict[str, str]) -> dict[str, Any]:
    script = str(ROOT / "tools" / "gpu_measure.py")
    command = simulated([script, "--small"]) if dry_run else [sys.executable, script]
    result = run(command, SECONDS["measure"], environment)
    lines = result["output"].strip().splitlines()
    if result["exit_code"] == 0 and lines and lines[-1].startswith("{"):
        result["measured"] = json.loads(lines[-1])
        del result["output"]
    return result


def check_tests(name: str, arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *arguments]
    result = run(command, SECONDS[name], environment)
    result["counts"] = {word: int(number) for number, word in SUMMARY.findall(result["output"][-400:])}
    result["output"] = result["output"][-8000:]
    return result


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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="default gpu_check.json")
    parser.add_argument("--dry-run", action="store_true", help="on the simulated GPU, smaller")
    parser.add_argument("--only", choices=tuple(SECONDS), action="append", help="run this step; may be repeated")
    args = parser.parse_args()

    environment = dict(os.environ, PYALLOC_TEST_DEVICE="sim" if args.dry_run else "gpu")
    installed = ROOT / ".gpu"
    if installed.is_dir():
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(installed), environment.get("PYTHONPATH"))))

    report: dict[str, Any] = {"dry_run": args.dry_run, "versions": versions(), "steps": {}}
    steps = args.only or list(SECONDS)
    for name in steps:
        print(f"gpu_check: {name}, at most {SECONDS[name]} s", flush=True)
        if name == "measure":
            result = check_measure(args.dry_run, environment)
        elif name == "tests":
            result = check_tests(name, ["torch", "-k", "not stress"], environment)
        else:
            result = check_tests(name, ["torch", "-k", "stress"], environment)
        report["steps"][name] = result
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        state = "ok" if result["exit_code"] == 0 else f"exit code {result['exit_code']}"
        print(f"gpu_check: {name}: {state} in {result['seconds']} s {result.get('counts', '')}", flush=True)
    print(f"gpu_check: wrote {args.out}")
    return 0 if all(step["exit_code"] == 0 for step in report["steps"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
