"""What becomes of the options of torch's own allocator (PYTORCH_CUDA_ALLOC_CONF, else PYTORCH_ALLOC_CONF).

Torch reads and checks its variable itself, also under pyalloc, so nothing is checked here. TABLE has every option that
torch 2.11 to 2.14 knows; one that is not in it is a newer torch's and is ignored by name.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, Literal

# Translated: an option of pyalloc's, which PYALLOC_CONF and arguments win over. Honoured: pyalloc does so, whatever
# the option says or because it does. Torch's: of pinned host memory, which stays torch's.
Outcome = Literal["translated", "honoured", "ignored", "torch's"]
TABLE: Final[dict[str, tuple[Outcome, str]]] = {
    "per_process_memory_fraction": ("translated", "memory_fraction"),
    "throw_on_cudamalloc_oom": ("honoured", "limits always refuse before the driver is asked; num_oom_rejections"),
    "backend": ("ignored", "pyalloc takes the place of either backend"),
    "expandable_segments": ("ignored", "all of pyalloc's memory is mapped and moves, whatever this says"),
    "garbage_collection_threshold": ("ignored", "slack bounds what is idle, and decay gives it back"),
    "graph_capture_record_stream_reuse": (
        "ignored",
        "what was recorded on another stream waits for the end of the capture",
    ),
    "large_segment_size_mb": ("ignored", "memory is mapped in pieces of 2 to 32 MiB, by the size of the block"),
    "max_non_split_rounding_mb": ("ignored", "blocks are rounded to 512 bytes and what is free beside them is used"),
    "max_split_size_mb": ("ignored", "a large free range may be split: what is free moves to where it is needed"),
    "release_lock_on_cudamalloc": ("ignored", "a driver call holds up only those that need memory mapped as well"),
    "release_lock_on_hipmalloc": ("ignored", "the same by another name"),
    "roundup_power2_divisions": ("ignored", "blocks are rounded to 512 bytes; small ones have size classes"),
    "pinned_free_catch_all": ("torch's", "pinned host memory"),
    "pinned_max_cached_size_mb": ("torch's", "pinned host memory"),
    "pinned_max_round_threshold_mb": ("torch's", "pinned host memory"),
    "pinned_num_register_threads": ("torch's", "pinned host memory"),
    "pinned_reserve_segment_size_mb": ("torch's", "pinned host memory"),
    "pinned_use_background_threads": ("torch's", "pinned host memory"),
    "pinned_use_cuda_host_register": ("torch's", "pinned host memory"),
    "pinned_use_hip_host_register": ("torch's", "pinned host memory"),
}
_UNKNOWN: Final[tuple[Outcome, str]] = ("ignored", "pyalloc does not know it")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")  # torch takes what a value begins with


@dataclass(frozen=True)
class Given:
    """One option in torch's variable, and what becomes of it. For a translated one `meaning` is pyalloc's option."""

    variable: str
    option: str
    value: str
    outcome: Outcome
    meaning: str


def variable() -> str:
    """The variable that torch reads: the first of the two that is set, or an empty name."""
    return next((name for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if name in os.environ), "")


def given() -> list[Given]:
    """Every option that torch's variable has, in its order."""
    name = variable()
    text = re.sub(r"\s", "", os.environ.get(name, ""))
    found = []
    for option, _, value in (entry.partition(":") for entry in _entries(text)):
        found.append(Given(name, option, value, *TABLE.get(option, _UNKNOWN)))
    return found


def _entries(text: str) -> list[str]:
    """The parts between commas, but for those inside brackets."""
    return [entry for entry in re.split(r",(?![^\[]*\])", text) if entry]


def as_options() -> str:
    """The translated options as PYALLOC_CONF would have them. A value that torch is about to refuse is left out."""
    texts = []
    for one in given():
        number = _NUMBER.match(one.value)
        if one.outcome == "translated" and number is not None and 0 <= float(number.group()) <= 1:
            texts.append(f"{one.meaning}:{float(number.group())!r}")
    return ",".join(texts)


def line(in_force: dict[str, str]) -> str:
    """One line about what the variable asks for and does not get, or gets by another name; empty when there is no such
    thing. `in_force`: the value of each of pyalloc's options.
    """
    names: dict[str, list[str]] = {"translated": [], "ignored": []}
    for one in given():
        if one.outcome == "translated":
            names["translated"].append(f"{one.option}:{one.value} as {one.meaning}, now {in_force[one.meaning]}")
        elif one.outcome == "ignored" and (one.option, one.value) != ("backend", "native"):
            names["ignored"].append(one.option)
    parts = []
    if names["ignored"]:
        parts.append(f"pyalloc does not use {', '.join(names['ignored'])} of {variable()}")
    if names["translated"]:
        parts.append(f"{'it' if parts else 'pyalloc'} takes {', '.join(names['translated'])}")
    return "; ".join(parts)
