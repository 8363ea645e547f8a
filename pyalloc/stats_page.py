"""Reads stats pages: what a process's memory is like, without the process's help.

Where a page lies and what it holds is written down in pyalloc/stats_page.h. This module needs the standard library
alone: it loads neither torch nor the allocator's library, and knows of the page's tables only what each page says of
itself, so it reads pages of libraries with other figures. A page is a file that anybody of the user may have written:
what it says is checked before it is used.

    for path in page_files():
        with StatsPage(path) as page:
            print(page.read().process["program"])
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import errors
from ._words import readable
from .fragmentation import DeviceFragmentation, Fragmentation, PoolFragmentation
from .user_folder import user_folder

VERSION: Final = 1
MAGIC: Final = b"PYALLOC\0"
UNKNOWN: Final = -(1 << 63)
STAT_KINDS: Final = ("all", "small_pool", "large_pool")  # torch's names
STAT_FIGURES: Final = ("current", "peak", "allocated", "freed")

_HEADER: Final = struct.Struct("<8sIIQQIIII")
_SEQUENCE_AT: Final = 24
_FILE_NAME: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+")
_FIELD_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_MOST_BYTES: Final = 8 << 20  # those of 64 devices are under 2 MiB
_MOST_RECORDS: Final = 1 << 14
_TRIES: Final = 20
_BETWEEN_TRIES_S: Final = 0.0005

Record = dict[str, Any]


class PageError(errors.PyallocError):
    """What cannot be read as a stats page, and why, in one line."""


class PageBusyError(PageError):
    """The page was being written at every try; the next may succeed."""


class PageTornError(PageBusyError):
    """Its process was killed while it wrote the page, which nobody will finish."""


@dataclass(frozen=True)
class Field:
    """One field of a table, as the page describes it. kind: gauge, counter, fact or stat."""

    name: str
    type: str
    offset: int
    bytes: int
    kind: str
    unit: str
    help: str


@dataclass(frozen=True)
class _Table:
    name: str
    offset: int
    stride: int
    capacity: int
    fields: tuple[Field, ...]


class _OnPage(Fragmentation):
    """Figures of a page, 0 for what is not known; free memory is that of the look for the largest runs."""

    def __init__(self, values: Record) -> None:
        self.values: Final = values
        for owner in type(self).__mro__:
            for name in getattr(owner, "__annotations__", ()):
                setattr(self, name, values[name] if isinstance(values.get(name), int) else 0)

    def _free(self) -> int:
        value = self.values.get("surveyed_free")
        return value if isinstance(value, int) else super()._free()

    def __repr__(self) -> str:
        what = f"{type(self).__name__} {self.values['name']!r}, device {self.values['device']}"
        return f"<{what}: {readable(self.requested)} live, {readable(self.reserved)} reserved>"


class Pool(_OnPage, PoolFragmentation):
    """A pool of a device: `values` by the names of pool_fields.def and page_fields.def, and its fragmentation.
    Largest runs are up to 2 seconds older than the rest, and so is the free memory that they are taken as shares of.
    """

    def __init__(self, values: Record) -> None:
        super().__init__(values)
        self.name: Final[str] = values["name"]


class Device(_OnPage, DeviceFragmentation):
    """A device of a process, its fragmentation and its pools: `values` by the names of stat_fields.def,
    ledger_fields.def and page_fields.def. A statistic with a history is "allocated_bytes.all.current", as in torch.
    """

    def __init__(self, values: Record, pools: tuple[Pool, ...]) -> None:
        super().__init__(values)
        self.pools: Final = pools
        self.number: Final[int] = values["device"]


@dataclass(frozen=True)
class Sample:
    """What a page said at one moment. Bytes unless a name says otherwise; None for what is not known.

    process, and the records of tags (those that hold most, largest first) and events (oldest first): by the names of
    page_fields.def and tag_fields.def.
    """

    process: Record
    devices: tuple[Device, ...]
    tags: tuple[Record, ...]
    events: tuple[Record, ...]

    def __repr__(self) -> str:
        return f"<Sample of {self.process['program']} (process {self.process['pid']}): {self.devices}>"


def page_files(uid: int | None = None) -> list[Path]:
    """Every file in a user's folder that has a page's name; none where there is no folder. uid None: this process's
    user's. PageError where the folder is not the user's own, or may not be read.
    """
    uid = os.geteuid() if uid is None else uid
    folder = user_folder(uid)
    try:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            raise PageError(f"{folder} is no folder")
        if facts.st_uid != uid:
            raise PageError(f"{folder} belongs to uid {facts.st_uid}: what is in it is not this user's")
        return sorted(folder / name for name in os.listdir(folder) if _FILE_NAME.fullmatch(name))
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise PageError(f"{folder} may be read by its owner and root alone") from error


def prune(uid: int | None = None) -> list[Path]:
    """Deletes the pages whose owners are gone, and returns them. What is no page, is locked, or belongs to somebody
    else stays.
    """
    deleted = []
    for path in page_files(uid):
        try:
            with StatsPage(path) as page:
                if page.delete_leftover():
                    deleted.append(path)
        except PageError:
            continue  # not ours to judge
    return deleted


class StatsPage:
    """One page, open for reading until close(). Reading it costs its owner nothing.

    Raises PageError for a file that is no page this module can read: it says in one line what the file is instead.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise PageError(f"{path}: {error.strerror}") from error
        try:
            self._tables = self._read_layout()
        except PageError:
            self.close()
            raise

    def close(self) -> None:
        """Harmless when done twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> StatsPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def owner_alive(self) -> bool:
        """Whether the process that writes the page still runs."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    @property
    def left_behind(self) -> bool:
        """Of a page whose owner is gone: whether the file is still there, so the owner did not end by itself."""
        return os.fstat(self._file).st_nlink > 0

    def fields(self, table: str) -> tuple[Field, ...]:
        """What the page says of the fields of a table: process, device, pool, tag or event."""
        return self._tables[table].fields

    def read(self) -> Sample:
        """A copy of one moment. PageBusyError or PageTornError where there is none, PageError for a damaged page."""
        tables = self._copy_tables()
        (process,) = self._records(tables, "process", 1)
        pools: dict[int, list[Pool]] = {}
        for values in self._records(tables, "pool", process.get("pools")):
            pools.setdefault(values["device"], []).append(Pool(values))
        return Sample(
            process=process,
            devices=tuple(
                Device(values, tuple(pools.get(values["device"], ())))
                for values in self._records(tables, "device", process.get("devices"))
            ),
            tags=tuple(self._records(tables, "tag", process.get("tags"))),
            events=tuple(self._records(tables, "event", process.get("events"))),
        )

    def delete_leftover(self) -> bool:
        """Deletes the file if its owner is gone and it is this user's. Returns whether it did."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            ours, there = os.fstat(self._file), self.path.lstat()
            same = (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
            if same and ours.st_uid == os.geteuid():
                self.path.unlink()
                return True
        except FileNotFoundError:
            pass  # somebody else was quicker
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def _wrong(self, what: str) -> PageError:
        return PageError(f"{self.path}: {what}")

    def _read_layout(self) -> dict[str, _Table]:
        facts = os.fstat(self._file)
        if not stat.S_ISREG(facts.st_mode):
            raise self._wrong("no stats page: not a file")
        head = os.pread(self._file, _HEADER.size, 0)
        if len(head) < _HEADER.size or not head.startswith(MAGIC):
            raise self._wrong("no stats page")
        _, version, _, size, _, layout_at, layout_bytes, self._tables_at, self._tables_bytes = _HEADER.unpack(head)
        if version != VERSION:
            raise self._wrong(
                f"a stats page of version {version}, this pyalloc reads version {VERSION}: use the viewer of the "
                "program's pyalloc"
            )
        if size != facts.st_size or size > _MOST_BYTES:
            raise self._wrong(f"a damaged stats page: {facts.st_size} bytes, it says {size}")
        if layout_at + layout_bytes > size or self._tables_at + self._tables_bytes > size:
            raise self._wrong("a damaged stats page: its parts are larger than it is")
        try:
            described = json.loads(os.pread(self._file, layout_bytes, layout_at))
            tables = {one["name"]: self._table(one) for one in described["tables"]}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._wrong(f"a damaged stats page: its description cannot be read ({error})") from error
        for name, needed in _NEEDED.items():
            there = {(field.name, field.type) for field in tables[name].fields} if name in tables else set()
            if lacking := sorted(field for field, _ in needed - there):
                raise self._wrong(f"a damaged stats page: its table {name} has no {', '.join(lacking)}")
        return tables

    def _table(self, one: Mapping[str, Any]) -> _Table:
        fields = tuple(
            Field(
                name=_text(field["name"]),
                type=_text(field["type"]),
                offset=_number(field["offset"]),
                bytes=_number(field["bytes"]),
                kind=_text(field["kind"]),
                unit=_text(field["unit"]),
                help=_text(field["help"]),
            )
            for field in one["fields"]
        )
        offset, stride, capacity = (_number(one[key]) for key in ("offset", "stride", "capacity"))
        table = _Table(_text(one["name"]), offset, stride, capacity, fields)
        if offset + stride * capacity > self._tables_bytes or capacity > _MOST_RECORDS:
            raise ValueError(f"table {table.name} is larger than the page, or than any")
        for field in fields:
            least = {"int64": 8, "stat": 8 * len(STAT_KINDS) * len(STAT_FIGURES)}.get(field.type, 1)
            if not _FIELD_NAME.fullmatch(field.name) or field.type not in ("int64", "stat", "text", "cells"):
                raise ValueError(f"field {field.name!r} of type {field.type!r}")
            if field.bytes < least or field.offset + field.bytes > table.stride:
                raise ValueError(f"field {field.name} is not inside its record")
        return table

    def _copy_tables(self) -> bytes:
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_BETWEEN_TRIES_S)
            final = attempt > 0 and not self.owner_alive
            before = os.pread(self._file, 8, _SEQUENCE_AT)
            tables = os.pread(self._file, self._tables_bytes, self._tables_at)
            after = os.pread(self._file, 8, _SEQUENCE_AT)
            if len(before) != 8 or len(tables) != self._tables_bytes:
                raise self._wrong("a damaged stats page: it has become shorter")
            if before == after and before[0] % 2 == 0:
                return tables
            if final:
                raise PageTornError(f"{self.path}: its process was killed while it wrote this page; it is no use")
        raise PageBusyError(f"{self.path}: being written; nothing could be read")

    def _records(self, tables: bytes, name: str, count: int | None) -> Iterator[Record]:
        table = self._tables[name]
        if not isinstance(count, int) or not 0 <= count <= table.capacity:
            raise self._wrong(f"a damaged stats page: {count} records in the table {name}")
        known = [field for field in table.fields if _is_as_known(name, field)]
        for index in range(count):
            values = _record(tables, table.offset + index * table.stride, known)
            if unknown := [field for field, _ in _NEEDED[name] if values[field] is None]:
                raise self._wrong(f"a damaged stats page: a record of the table {name} has no {unknown[0]}")
            yield values


_NUMBERS: Final = ("pid", "pid_namespace", "start_time", "published_ms", "published_ns", "devices", "pools")
# Without these a page's records could not be put together.
_NEEDED: Final = {
    "process": {("program", "text"), *((name, "int64") for name in _NUMBERS)},
    "device": {("device", "int64"), ("name", "text")},
    "pool": {("device", "int64"), ("name", "text")},
    "tag": {("name", "text")},
    "event": {("kind", "text")},
}


# What is no number, by table. Whatever else a page has is a number, or is left out of records.
_TEXTS: Final = {
    "process": {"program", "version", "last_oom"},
    "device": {"name", "uuid"},
    "pool": {"name"},
    "tag": {"name"},
    "event": {"kind", "pool"},
}
_CELLS: Final = {"pool": {"live_cells", "idle_cells"}}


def _is_as_known(table: str, field: Field) -> bool:
    texts, cells = _TEXTS.get(table, ()), _CELLS.get(table, ())
    expected = "text" if field.name in texts else "cells" if field.name in cells else "number"
    return expected == ("number" if field.type in ("int64", "stat") else field.type)


def _record(tables: bytes, start: int, fields: Iterable[Field]) -> Record:
    values: Record = {}
    for field in fields:
        at = start + field.offset
        if field.type == "int64":
            (number,) = struct.unpack_from("<q", tables, at)
            values[field.name] = None if number == UNKNOWN else number
        elif field.type == "stat":
            numbers = iter(struct.unpack_from(f"<{len(STAT_KINDS) * len(STAT_FIGURES)}q", tables, at))
            for kind in STAT_KINDS:
                for figure in STAT_FIGURES:
                    values[f"{field.name}.{kind}.{figure}"] = next(numbers)
        elif field.type == "text":
            text = tables[at : at + field.bytes].split(b"\0", 1)[0]
            values[field.name] = text.decode(errors="replace")
        else:
            values[field.name] = tables[at : at + field.bytes]
    return values


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"{value!r} is no size")
    return value
