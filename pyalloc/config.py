"""Options as Python writes them, and as the core reads them ("key:value,key:value", checked in C++ against one table).

Torch's own variable comes first, as far as it means something here (torch_options.py), then PYALLOC_CONF, then
arguments; the later wins.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from . import errors, torch_options
from ._native import Library

VARIABLE = "PYALLOC_CONF"

Switch: TypeAlias = bool | Literal["on", "off"]
Size: TypeAlias = int | str  # bytes, or text with a unit such as "20GiB"


@dataclass(frozen=True)
class Option:
    """One option in force: its value as text, and where that came from: default, environment (PYALLOC_CONF), argument,
    or the name of torch's variable.
    """

    key: str
    value: str
    default: str
    origin: str
    expected: str
    help: str


def environment_text() -> str:
    """What PYALLOC_CONF says, or an empty text."""
    return os.environ.get(VARIABLE, "").strip()


def inherited_text() -> str:
    """What the environment says altogether: torch's variable, then PYALLOC_CONF."""
    return joined(torch_options.as_options(), environment_text())


def argument_text(arguments: Mapping[str, object]) -> str:
    """Keyword arguments as the core's text; those that are None are left out. Raises ConfigError for what no text
    can say.
    """
    wrong = [
        f"option {key!r} has value {value!r}; expected a value without ',' and ':'"
        for key, value in arguments.items()
        if isinstance(value, str) and ("," in value or ":" in value)
    ]
    if wrong:
        raise errors.ConfigError("\n".join(wrong))
    return ",".join(f"{key}:{_value_text(value)}" for key, value in arguments.items() if value is not None)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def joined(*texts: str) -> str:
    """One text of all; where they differ the core takes the last."""
    return ",".join(text for text in texts if text)


def configure(library: Library, arguments: str = "") -> str:
    """Puts in force what the environment says and then these, and returns the whole text. ConfigError marks the errors
    that are PYALLOC_CONF's, which whoever reads a program's own options would not look for.
    """
    text = joined(inherited_text(), arguments)
    try:
        library.configure(text, "environment")
    except errors.ConfigError as error:
        inherited = _errors_of_environment(library)
        lines = [f"{VARIABLE}: {line}" if line in inherited else line for line in str(error).splitlines()]
        raise errors.ConfigError("\n".join(lines)) from None
    return text


def _errors_of_environment(library: Library) -> list[str]:
    try:
        library.configure(inherited_text(), "environment")
    except errors.ConfigError as error:
        return str(error).splitlines()
    except errors.StateError:  # in use, and so right
        pass
    return []


def _keys(text: str) -> set[str]:
    return {entry.split(":", 1)[0].strip() for entry in text.split(",") if entry}


def options(library: Library, arguments: str = "") -> list[Option]:
    """Every option in force. `arguments` is the text whose keys came from the program and not from the environment."""
    given = _keys(arguments)
    of_torch = _keys(torch_options.as_options()) - _keys(environment_text())

    def origin(row: dict[str, str]) -> str:
        if row["key"] in given:
            return "argument"
        return torch_options.variable() if row["key"] in of_torch and row["origin"] != "default" else row["origin"]

    return [
        Option(
            key=row["key"],
            value=row["value"],
            default=row["default"],
            origin=origin(row),
            expected=row["expected"],
            help=row["help"],
        )
        for row in library.config()
    ]


def values(library: Library) -> dict[str, str]:
    """Every option's value in force, by key."""
    return {row["key"]: row["value"] for row in library.config()}
