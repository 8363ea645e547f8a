"""Command lines that name a Python program as python does: options of ours, then script.py, -m module or -c code.

Standard library only: the launcher of the simulated GPU reads its command line before anything else is loaded.
"""

from collections.abc import Collection


def split_program(arguments: list[str], take_a_value: Collection[str]) -> tuple[list[str], list[str]]:
    """Our options, and the rest from the program on. argparse would read -m and -c as options of ours.

    Args:
        arguments: the command line.
        take_a_value: our options whose value is the next argument. A `--` ends them.
    """
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            return arguments[:index], arguments[index + 1 :]
        if not argument.startswith("-") or argument[:2] in ("-m", "-c"):
            break
        index += 2 if argument in take_a_value else 1
    return arguments[:index], arguments[index:]
