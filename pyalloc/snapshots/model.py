"""What a snapshot is, and its file: one JSON object of the schema "pyalloc.snapshot/1".

In the file, blocks are columns (one list of numbers for each of their figures), so that 100,000 of them are read in a
moment; a block's state, tag and site are places in the lists `states`, `tags` and `sites`. reading.py reads it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from .._words import counted, readable
from ..attribution import Bill
from ..device_account import Ledger

SCHEMA: Final = "pyalloc.snapshot/1"
STATES: Final = ("live", "pending", "free")  # in the order of pyalloc_block_state
NONE: Final = -1  # the place of no tag and of no site
_COMPREHENSIONS: Final = ("<listcomp>", "<dictcomp>", "<setcomp>")  # frames of their own before Python 3.12


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.name}"


def own_frame(site: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of a stack that is the program's own: not torch's, pyalloc's or C++'s."""
    for frame in site:
        parts = frame.filename.replace("\\", "/").split("/")
        own = frame.filename.endswith(".py") and "torch" not in parts and "pyalloc" not in parts
        if own and frame.name not in _COMPREHENSIONS:
            return frame
    return site[0] if site else None


@dataclass(frozen=True)
class Segment:
    """A run of mapped memory of one pool; sizes in bytes.

    pool: its name; "private" for torch's MemPools and CUDA graphs, and then key_first and key_second are torch's id of
    the pool, else 0. large: it holds blocks over 1 MiB. stream: of its first block. allocated, requested: its live
    blocks, as rounded and as asked for; active: live ones and those whose free waits for events. Its blocks lie in it
    end to end: `blocks` of them, the first at place `first` of DeviceSnapshot.blocks.
    """

    address: int
    bytes: int
    pool: str
    key_first: int
    key_second: int
    large: bool
    stream: int
    allocated: int
    active: int
    requested: int
    first: int
    blocks: int

    def __repr__(self) -> str:
        return (
            f"<Segment of {self.pool!r} at {self.address:#x}: {readable(self.bytes)}, {readable(self.requested)} live, "
            f"{counted(self.blocks, 'block')}>"
        )


@dataclass(frozen=True)
class Block:
    """A stretch of a segment: a block that is live, one whose free waits for events ("pending"), or what is "free".

    bytes: up to the next block; requested: what was asked for, 0 where it is free; stream: it was allocated on, or
    freed on; tag: who pays for it; site: the stack that allocated it, innermost first, where torch's memory history
    knows it.
    """

    address: int
    bytes: int
    requested: int
    state: str
    stream: int
    tag: str | None
    site: tuple[Frame, ...]

    def __repr__(self) -> str:
        size = self.bytes if self.state == "free" else self.requested
        payer = "" if self.tag is None else f", tag {self.tag!r}"
        frame = own_frame(self.site)
        return f"<Block at {self.address:#x}: {readable(size)} {self.state}{payer}{f', {frame}' if frame else ''}>"


@dataclass(frozen=True)
class Blocks(Sequence[Block]):
    """The blocks of a device in address order. Columns of equal length; a Block is made when it is asked for."""

    address: tuple[int, ...]
    bytes: tuple[int, ...]
    requested: tuple[int, ...]
    state: tuple[int, ...]  # places in STATES
    stream: tuple[int, ...]
    tag: tuple[int, ...]  # places in `tags`, or NONE
    site: tuple[int, ...]  # places in `sites`, or NONE
    tags: tuple[str, ...] = ()
    sites: tuple[tuple[Frame, ...], ...] = ()

    def __repr__(self) -> str:
        return f"<Blocks: {len(self):,}, {sum(state == 0 for state in self.state):,} of them live>"

    def __len__(self) -> int:
        return len(self.address)

    def __iter__(self) -> Iterator[Block]:
        return (self._at(index) for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:  # as Sequence declares it: a Block, or a tuple of them for a slice
        if isinstance(index, slice):
            return tuple(self._at(one) for one in range(*index.indices(len(self))))
        return self._at(range(len(self))[index])

    def _at(self, index: int) -> Block:
        tag, site = self.tag[index], self.site[index]
        return Block(
            address=self.address[index],
            bytes=self.bytes[index],
            requested=self.requested[index],
            state=STATES[self.state[index]],
            stream=self.stream[index],
            tag=None if tag == NONE else self.tags[tag],
            site=() if site == NONE else self.sites[site],
        )


@dataclass(frozen=True)
class Events:
    """The last allocations and frees of a device, oldest first, as far as torch's memory history has them: when, in
    microseconds of Unix time, and the bytes asked for, below 0 for a free.
    """

    unix_us: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<Events: {len(self.bytes):,}>"


COLUMNS: Final = ("address", "bytes", "requested", "state", "stream", "tag", "site")
SEGMENT_COLUMNS: Final = tuple(field.name for field in dataclasses.fields(Segment) if field.name != "first")


@dataclass(frozen=True)
class DeviceSnapshot:
    """One device: its ledger (pools, limits, fragmentation), its segments in address order and their blocks.

    exact: ledger and blocks are of one moment. Where other threads allocate all the time, that cannot always be had.
    events: what led to it; empty without torch's memory history.
    """

    ledger: Ledger
    segments: tuple[Segment, ...]
    blocks: Blocks
    exact: bool
    events: Events = Events()

    def __repr__(self) -> str:
        return f"<DeviceSnapshot: {self}>"

    def __str__(self) -> str:
        blocks = sum(pool.blocks for pool in self.ledger.pools)
        return (
            f"device {self.ledger.device} has {readable(self.ledger.requested)} live in {counted(blocks, 'block')}, "
            f"{readable(self.ledger.reserved)} reserved"
        )

    def blocks_of(self, segment: Segment) -> tuple[Block, ...]:
        """The blocks of a segment, end to end."""
        return self.blocks[segment.first : segment.first + segment.blocks]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Snapshot:
    """Where the memory of a process was at one moment.

    unix_ms: when. program: the name of its script. versions: of pyalloc, python and torch. registration: how pyalloc is
    torch's allocator: "bridge", "plain", "pools" (that of its pools alone), or "none" where enable() had no part in it.
    options: every option and its value; `enable` is on after enable() too. devices: those in use. bills: of the tags
    that pay for something or have a scope open. oom: as oom_report().
    """

    unix_ms: int
    pid: int
    program: str
    versions: Mapping[str, str]
    registration: str
    options: Mapping[str, str]
    devices: tuple[DeviceSnapshot, ...]
    bills: tuple[Bill, ...]
    oom: Mapping[str, Any]

    def __repr__(self) -> str:
        devices = "; ".join(map(str, self.devices)) or "no device in use"
        return f"<Snapshot of {self.program or 'a program'} (process {self.pid}): {devices}>"

    def as_dict(self) -> dict[str, Any]:
        """What the file holds, as dicts, lists, numbers and text."""
        tags: dict[str, int] = {}
        sites: dict[tuple[Frame, ...], int] = {}
        devices = [_device_dict(one, tags, sites) for one in self.devices]
        return {
            "schema": SCHEMA,
            "unix_ms": self.unix_ms,
            "pid": self.pid,
            "program": self.program,
            "versions": dict(self.versions),
            "registration": self.registration,
            "options": dict(self.options),
            "states": list(STATES),
            "tags": list(tags),
            "sites": [[asdict(frame) for frame in site] for site in sites],
            "devices": devices,
            "bills": [asdict(one) for one in self.bills],
            "oom": dict(self.oom),
        }

    def dumps(self) -> str:
        """The file's text."""
        return json.dumps(self.as_dict(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Writes the file. Raises OSError."""
        Path(path).write_text(self.dumps() + "\n", encoding="utf-8", errors="backslashreplace")


def _device_dict(device: DeviceSnapshot, tags: dict[str, int], sites: dict[tuple[Frame, ...], int]) -> dict[str, Any]:
    blocks = device.blocks
    tag_places = [tags.setdefault(name, len(tags)) for name in blocks.tags] + [NONE]  # so that -1 stays -1
    site_places = [sites.setdefault(site, len(sites)) for site in blocks.sites] + [NONE]
    columns: dict[str, list[int]] = {name: list(getattr(blocks, name)) for name in COLUMNS}
    columns["tag"] = [tag_places[tag] for tag in blocks.tag]
    columns["site"] = [site_places[site] for site in blocks.site]
    return {
        "ledger": device.ledger.as_dict(),
        "exact": device.exact,
        "segments": {name: [getattr(one, name) for one in device.segments] for name in SEGMENT_COLUMNS},
        "blocks": columns,
        "events": {"unix_us": list(device.events.unix_us), "bytes": list(device.events.bytes)},
    }
