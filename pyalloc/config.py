"""Options as Python writes them, and as the core reads them ("key:value,key:value", checked in C++ against one table).

The environment's PYALLOC_CONF comes first and arguments after it, so an argument wins over the environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from . import errors
from ._native import Library

VARIABLE = "PYALLOC_CONF"

Switch: TypeAlias = bool | Literal["on", "off"]
Size: TypeAlias = int | str  # bytes, or text with a unit such as "20GiB"


@dataclass(frozen=True)
class Option:
    """One option in force: its value as text, and where that came from (default, environment or argument)."""

    key: str
    value: str
    default: str
    origin: str
    expected: str
    help: str


def environment_text() -> str:
    """What PYALLOC_CONF says, or an empty text."""
    return os.environ.get(VARIABLE, "").strip()


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


def joined(environment: str, arguments: str) -> str:
    """One text of both; where they differ the core takes the later one, the argument."""
    return ",".join(text for text in (environment, arguments) if text)


def options(library: Library, arguments: str = "") -> list[Option]:
    """Every option in force. `arguments` is the text whose keys came from the program and not from the environment."""
    given = {entry.split(":", 1)[0] for entry in arguments.split(",") if entry}
    return [
        Option(
            key=row["key"],
            value=row["value"],
            default=row["default"],
            origin="argument" if row["key"] in given else row["origin"],
            expected=row["expected"],
            help=row["help"],
        )
        for row in library.config()
    ]


def values(library: Library) -> dict[str, str]:
    """Every option's value in force, by key."""
    return {row["key"]: row["value"] for row in library.config()}
