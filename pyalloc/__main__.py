"""The command line: `pyalloc` or `python -m pyalloc`.

Exit codes: 0 done; 1 doctor found that pyalloc cannot run with its bridge here, a snapshot cannot be had, the exporter
cannot serve, or diff found what grew; 2 a wrong command line or wrong options; under `run`, the program's own.
"""

import argparse
import contextlib
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import errors
from ._output import until_closed
from ._program import split_program
from ._version import __version__
from .metrics import commands as metrics_commands
from .snapshots import commands as snapshot_commands

_EXAMPLES = """\
examples:
  pyalloc doctor                          what works here, and why not
  pyalloc doctor --json                   the same for a program
  pyalloc run train.py --epochs 3         a script on pyalloc, unchanged
  pyalloc run --conf limit:20GiB -m my.module
  pyalloc record -o trace.csv train.py    what it allocates, as a trace
  pyalloc snapshot 4242 -o now.json       where a running process's memory is
  pyalloc diff before.json after.json     what grew
  pyalloc exporter                        the figures of all such programs, for Prometheus
  pyalloc top                             who holds which GPU memory, live; also as pyalloc-top
  python -m pyalloc.simgpu --memory 8GiB -m pyalloc run train.py     the same with no GPU
pyalloc COMMAND --help says more of each.
"""


_TARGET = "(script.py | -m module | -c code) [arguments of the program]"
_CONF_HELP = "pyalloc's options, as limit:20GiB,slack:0.1; they win over PYALLOC_CONF; pyalloc doctor lists all"
_TAKE_A_VALUE = ("--conf", "--device", "-o", "--output")


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The command line's parser, and those of the commands by name."""
    parser = argparse.ArgumentParser(
        prog="pyalloc",
        description="A drop-in CUDA allocator for PyTorch.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"pyalloc {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        usage=f"pyalloc run [options] {_TARGET}",
        help="run a Python program on pyalloc",
        description="Runs a Python program on pyalloc: a script, -m module or -c code, with its arguments.",
        epilog="The exit code is the program's. For example: pyalloc run --conf limit:20GiB train.py --epochs 3",
    )
    run.add_argument("--conf", default="", metavar="OPTIONS", help=_CONF_HELP)
    record = commands.add_parser(
        "record",
        usage=f"pyalloc record [options] {_TARGET}",
        help="run a Python program and write what it allocates as a trace",
        description="Runs a Python program on pyalloc and writes its allocations and frees as a trace, which "
        "tools/bench/replay.py of the source tree replays on pyalloc and on torch's allocators.",
        epilog="example: pyalloc record -o trace.csv.gz train.py --epochs 3",
    )
    record.add_argument("--conf", default="", metavar="OPTIONS", help=_CONF_HELP)
    record.add_argument("--device", type=int, default=0, metavar="N", help="the GPU to record (default: 0)")
    record.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the trace, .csv or .csv.gz; -o FILE may also stand after the program's arguments",
    )
    doctor = commands.add_parser(
        "doctor",
        help="show versions, driver, bridge and options",
        description="Shows what pyalloc finds on this machine, and what it would do. Compiles the bridge if need be.",
        epilog="Exit code: 0 pyalloc can run here with its bridge, 1 it cannot; a line with PROBLEM says why. "
        "For example: pyalloc doctor --json | python -m json.tool",
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object instead of text")
    doctor.add_argument(
        "--libraries",
        action="store_true",
        help="also import torch, transformers, peft and diffusers, and say what is instrumented in them",
    )
    snapshot_commands.add_parsers(commands)
    metrics_commands.add_parser(commands)
    commands.add_parser("top", add_help=False, help="show the memory of running programs, live (pyalloc top -h)")
    return parser, commands.choices


def _refused(error: errors.PyallocError) -> int:
    print(f"pyalloc: {error}", file=sys.stderr)
    return 2


def _record(parsed: argparse.Namespace, target: list[str]) -> int:
    from .record import options_for_recording, recording
    from .run import enable_for_program, run_target

    with contextlib.ExitStack() as stack:
        try:
            enable_for_program(options_for_recording(parsed.conf), target)
            writer = stack.enter_context(recording(Path(parsed.output), parsed.device))
        except errors.PyallocError as error:
            return _refused(error)
        try:
            run_target(target)
        finally:
            print(f"pyalloc: {writer.rows} rows in {parsed.output}", file=sys.stderr)
    return 0


def _run(parsed: argparse.Namespace, target: list[str]) -> int:
    from .run import enable_for_program, run_target

    try:
        enable_for_program(parsed.conf, target)
    except errors.PyallocError as error:
        return _refused(error)
    run_target(target)
    return 0


def _run_program(given: list[str]) -> int:
    """`run` and `record`."""
    parser, commands = _parsers()
    ours, target = split_program(given[1:], _TAKE_A_VALUE)
    parsed = parser.parse_args(given[:1] + ours)
    if parsed.command == "record" and parsed.output is None:
        from .record import output_argument

        target, parsed.output = output_argument(target)
        if parsed.output is None:
            commands["record"].error("record needs -o FILE")
    if not target or target in (["-m"], ["-c"]):
        commands[parsed.command].error(f"{parsed.command} needs a script.py, -m module or -c code")
    return _record(parsed, target) if parsed.command == "record" else _run(parsed, target)


def _command(given: list[str]) -> int:
    """All the others."""
    if given[:1] == ["top"]:
        from .top.cli import main as top

        return top(given[1:], "pyalloc top")
    parser, commands = _parsers()
    if given and (close := difflib.get_close_matches(given[0], commands, 1)) and given[0] not in commands:
        parser.error(f"there is no command {given[0]!r}; did you mean {close[0]!r}?")
    parsed = parser.parse_args(given)
    if parsed.command == "doctor":
        from . import doctor

        return doctor.main(as_json=parsed.json, libraries=parsed.libraries)
    if parsed.command == "snapshot":
        return snapshot_commands.run_snapshot(parsed)
    if parsed.command == "diff":
        return snapshot_commands.run_diff(parsed)
    return metrics_commands.run_exporter(parsed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["run"], ["record"]):
        return _run_program(given)  # what becomes of its output is the program's affair
    return until_closed(lambda: _command(given))


if __name__ == "__main__":
    sys.exit(main())
