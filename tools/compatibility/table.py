"""Runs the programs under every allocator, compares each answer with that of torch's own, and writes the table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import programs  # noqa: F401  (they register themselves)
from .program import PROGRAMS, WAYS, Program

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "allocator_cpp" / "torch_bridge" / "COMPATIBILITY.md"
MEMORY, DEVICES = "8GiB", 2
# From the best to the worst; a name with several programs has the worst of theirs.
KINDS = ("works", "note", "refused", "wrong", "crash")


@dataclass(frozen=True)
class Verdict:
    """kind: one of KINDS; text: what the table says."""

    kind: str
    text: str


def compile_calls(folder: Path) -> Path:
    """calls.cpp as a library, against the installed torch as the bridge is."""
    from pyalloc import bridge_build

    goal = bridge_build.target()
    library = folder / "libcalls.so"
    command = bridge_build.compile_command(goal, bridge_build.find_compiler(), "", library)
    source = str(goal.sources.folder / "bridge.cpp")
    command = [str(HERE / "calls.cpp") if part == source else part for part in command]
    subprocess.run([*command, "-fvisibility=default", "-O0"], check=True)
    return library


def collect() -> dict[str, list[dict[str, Any]]]:
    """Every program's result, by way."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        library = compile_calls(Path(folder))
        for way in WAYS:
            command = [sys.executable, "-m", "pyalloc.simgpu", "--memory", MEMORY, "--devices", str(DEVICES)]
            command += [str(HERE / "run.py"), way, str(library)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"the programs did not run under {way}: {done.stderr}")
            results[way] = json.loads(done.stdout.splitlines()[-1])
    return results


def same(wanted: Any, found: Any) -> bool:
    """Whether an answer is torch's own; where that says at_least, more is the same."""
    if isinstance(wanted, dict) and set(wanted) == {"at_least"}:
        return isinstance(found, dict) and set(wanted["at_least"]) <= set(found.get("at_least", ()))
    if isinstance(wanted, list):
        return isinstance(found, list) and len(wanted) == len(found) and all(map(same, wanted, found))
    return bool(wanted == found)


def judge(program: Program, way: str, wanted: dict[str, Any], found: dict[str, Any]) -> Verdict:
    """What the table says of a program under one way, given torch's own result."""
    note = program.notes.get(way)
    if "crash" in found:
        return Verdict("crash", found["crash"])
    if "error" in found:
        if "error" in wanted:
            return Verdict("works", "refused, as by torch's own")
        return Verdict("refused", f"refused: {_plain(found['error'])}")
    told = [text for text in found["warnings"] if text not in wanted["warnings"]]
    if "error" in wanted:
        return Verdict("works", "works, where torch's own refuses")
    if same(wanted["answer"], found["answer"]) and not told:
        return Verdict("wrong", f"the note is not needed: {note}") if note else Verdict("works", "works")
    if note:
        return Verdict("note", note)
    if told:
        return Verdict("wrong", f"a warning: {_plain(told[0])}")
    return Verdict("wrong", f"{found['answer']!r}; torch's own: {wanted['answer']!r}")


def _plain(message: str) -> str:
    """A message without what differs from run to run, in one cell of a table."""
    message = re.sub(r"0x[0-9a-f]+", "0x...", message.splitlines()[0])
    return message.replace("|", "\\|").strip()


def verdicts(results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Verdict]]:
    """By name, then by way: the worst of its programs."""
    table: dict[str, dict[str, Verdict]] = {}
    for place, program in enumerate(PROGRAMS):
        for way in WAYS[1:]:
            verdict = judge(program, way, results["native"][place], results[way][place])
            for name in program.names:
                row = table.setdefault(name, {})
                if way not in row or KINDS.index(verdict.kind) > KINDS.index(row[way].kind):
                    row[way] = verdict
    return table


def problems(table: dict[str, dict[str, Verdict]]) -> list[str]:
    """What the table must not say: anything wrong or crashed, and what the bridge refuses though torch does not."""
    found = []
    for name, row in table.items():
        for way, verdict in row.items():
            refused = verdict.kind == "refused" and way == "bridge"
            if verdict.kind in ("wrong", "crash") or refused:
                found.append(f"{name} under {way}: {verdict.kind}: {verdict.text}")
    return found


_SECTIONS = {
    "cuda": "torch.cuda.memory",
    "accelerator": "torch.accelerator.memory",
    "virtual": "The virtual functions of torch's allocator class",
}


def page(table: dict[str, dict[str, Verdict]], torch_version: str) -> str:
    """The whole of COMPATIBILITY.md."""
    lines = [
        "# What torch's memory functions do under pyalloc",
        "",
        f"Written by `tools/docs.py compat` for torch {torch_version}: small programs ([tools/compatibility]"
        "(../../tools/compatibility)) call each function on the simulated",
        "GPU, and their answers are compared with those under torch's own allocator. *Works* means the same answer.",
        "",
        "- **bridge**: `pyalloc.enable()`",
        '- **bridge:off**: `pyalloc.enable(bridge="off")`, the plain registration, also where there is no compiler',
        '- **mode:pools**: `pyalloc.enable(mode="pools")`, inside `with pyalloc.pool("kv")`',
    ]
    for section, title in _SECTIONS.items():
        rows = sorted((name, row) for name, row in table.items() if name.startswith(f"{section}."))
        lines += ["", f"## {title}", "", "| | bridge | bridge:off | mode:pools |", "| --- | --- | --- | --- |"]
        for name, row in rows:
            cells = " | ".join(row[way].text for way in WAYS[1:])
            lines.append(f"| `{name.partition('.')[2]}` | {cells} |")
    return "\n".join(lines) + "\n"
