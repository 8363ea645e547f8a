"""What the table of compatibility is made of: small programs, each for some functions of torch. The answer of one is
the same under every allocator that does what torch's own does.

An answer is made of figures that do not depend on how an allocator lays out its memory. Where a way is known to answer
otherwise, `notes` says so in the words of the table; a note that is not needed is an error, as a missing one is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
WAYS = ("native", "bridge", "plain", "pools")


@dataclass(frozen=True)
class Program:
    """`names`: "cuda.NAME" and "accelerator.NAME" of torch.cuda.memory and torch.accelerator.memory, "virtual.NAME" of
    torch's allocator class. notes: by way, what differs there.
    """

    names: tuple[str, ...]
    run: Callable[[], Any]
    notes: dict[str, str] = field(default_factory=dict)


PROGRAMS: list[Program] = []


def covers(*names: str, **notes: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(run: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS.append(Program(names, run, notes))
        return run

    return add


# --- helpers; torch is imported by run.py before a program runs ---


def empty(size: int, device: str = "cuda") -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device=device)


def raised(call: Callable[[], Any]) -> str:
    """The class of what is raised; "nothing"."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def at_least(names: Any) -> dict[str, list[str]]:
    """An answer that another way's may exceed."""
    return {"at_least": sorted(names)}


calls: Any = None  # the library of calls.cpp, loaded by run.py
way = ""  # under which the programs run; set by run.py


def call(name: str) -> str:
    error = ctypes.c_char_p()
    answer = calls.call(name.encode(), ctypes.byref(error))
    if answer is None:
        raise RuntimeError((error.value or b"").decode())
    return str(answer.decode())


def of_cpp(function: str, *names: str, **notes: str) -> None:
    """Virtuals that calls.cpp calls."""
    PROGRAMS.append(Program(tuple(f"virtual.{name}" for name in names), lambda: call(function), notes))


TORCHS_SEGMENTS = "torch keeps the segments of a pool; pyalloc.empty_cache() gives them back"
