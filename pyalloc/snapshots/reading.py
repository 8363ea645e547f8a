"""Reads files of snapshots. Nothing in a file is taken on trust: what the Snapshot holds can be relied on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeVar

from ..attribution import Bill
from ..device_account import Ledger, Outside
from ..errors import SnapshotError
from ..purpose_pools import PoolStats
from .model import (
    COLUMNS,
    NONE,
    SCHEMA,
    SEGMENT_COLUMNS,
    STATES,
    Blocks,
    DeviceSnapshot,
    Events,
    Frame,
    Segment,
    Snapshot,
)

_END: Final = 1 << 63

_T = TypeVar("_T")


def load_snapshot(path: str | Path) -> Snapshot:
    """Reads a file of Snapshot.save() or `pyalloc snapshot`. Raises SnapshotError for what is not one, or cannot be
    read; the message names the file and what is wrong.
    """
    try:
        return loads(Path(path).read_bytes())
    except OSError as error:
        raise SnapshotError(f"{path}: {error.strerror or error}") from error
    except SnapshotError as error:
        raise SnapshotError(f"{path} {error}") from error


def loads(text: str | bytes) -> Snapshot:
    """The snapshot that a file's text holds. Raises SnapshotError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"is not a snapshot, or only a part of one: it is not JSON ({error})") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or not schema.startswith("pyalloc.snapshot/"):
        raise SnapshotError(f'is not a snapshot of pyalloc: its "schema" is not {SCHEMA!r}')
    if schema != SCHEMA:
        raise SnapshotError(f"is a snapshot of schema {schema!r}; this version of pyalloc reads {SCHEMA!r}")
    try:
        return _snapshot(data)
    except _Wrong as error:
        raise SnapshotError(f"is not a whole snapshot: {error}") from error


class _Wrong(Exception):
    """What is wrong with the file."""


def _need(data: object, key: str, kind: type[_T], where: str) -> _T:
    value = data.get(key) if isinstance(data, dict) else None
    if not _is(value, kind):
        raise _Wrong(f"{where} has no {key!r} that is {_KINDS[kind]}")
    return value  # type: ignore[return-value]


def _is(value: object, kind: type) -> bool:
    return type(value) is kind and (not isinstance(value, int) or -_END < value < _END)


_KINDS: Final[dict[type, str]] = {
    int: "a whole number of 64 bits",
    str: "text",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


def _texts(data: dict[str, Any], key: str) -> dict[str, str]:
    found = _need(data, key, dict, "it")
    return {str(name): str(value) for name, value in found.items()}


def _snapshot(data: dict[str, Any]) -> Snapshot:
    if _need(data, "states", list, "it") != list(STATES):
        raise _Wrong(f'its "states" are not {list(STATES)}')
    tags = tuple(str(tag) for tag in _need(data, "tags", list, "it"))
    sites = tuple(_site(site) for site in _need(data, "sites", list, "it"))
    return Snapshot(
        unix_ms=_need(data, "unix_ms", int, "it"),
        pid=_need(data, "pid", int, "it"),
        program=_need(data, "program", str, "it"),
        versions=_texts(data, "versions"),
        registration=_need(data, "registration", str, "it"),
        options=_texts(data, "options"),
        devices=tuple(_device(one, tags, sites) for one in _need(data, "devices", list, "it")),
        bills=tuple(_figures(Bill, one, "a bill") for one in _need(data, "bills", list, "it")),
        oom=_oom(_need(data, "oom", dict, "it")),
    )


def _oom(report: dict[str, Any]) -> dict[str, Any]:
    counts, last = _need(report, "counts", dict, "oom"), _need(report, "last", list, "oom")
    refusals: list[dict[str, Any]] = []
    for one in last:
        numbers: dict[str, Any] = {name: _need(one, name, int, "a refusal") for name in ("unix_ms", "device", "bytes")}
        words = {name: _need(one, name, str, "a refusal") for name in ("pool", "reason", "message")}
        freed = _need(one, "freed", dict, "a refusal")
        refusals.append({**numbers, **words, "freed": {name: _need(freed, name, int, "freed") for name in freed}})
    return {"counts": {name: _need(counts, name, int, "counts") for name in counts}, "last": refusals}


def _site(frames: object) -> tuple[Frame, ...]:
    if not isinstance(frames, list):
        raise _Wrong("a site is not a list of frames")
    return tuple(_figures(Frame, one, "a frame") for one in frames)


def _figures(kind: type[_T], data: object, where: str, **given: object) -> _T:
    """A dataclass of numbers and text from an object; `given` are its fields of other types. A number that is missing
    is 0: the file is of a version that did not count it yet.
    """
    if not isinstance(data, dict):
        raise _Wrong(f"{where} is not an object")
    values = dict(given)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            continue
        if field.type == "str":
            values[field.name] = _need(data, field.name, str, where)
        elif field.type == "int | None" and data.get(field.name) is None:
            values[field.name] = None
        else:
            values[field.name] = _need({field.name: 0, **data}, field.name, int, where)
    return kind(**values)


def _ledger(data: dict[str, Any]) -> Ledger:
    pools = tuple(_figures(PoolStats, one, "a pool") for one in _need(data, "pools", list, "a ledger"))
    outside = data.get("outside_by")
    return _figures(
        Ledger,
        data,
        "a ledger",
        pools=pools,
        outside_by=None if outside is None else _figures(Outside, outside, "outside_by"),
    )


def _device(data: object, tags: tuple[str, ...], sites: tuple[tuple[Frame, ...], ...]) -> DeviceSnapshot:
    ledger = _ledger(_need(data, "ledger", dict, "a device"))
    table = _need(data, "blocks", dict, "a device")
    blocks = Blocks(**{name: _column(table, name, "blocks") for name in COLUMNS}, tags=tags, sites=sites)
    columns = {name: getattr(blocks, name) for name in COLUMNS}
    _same_length(columns, "blocks")
    for name, places in (("state", STATES), ("tag", tags), ("site", sites)):
        lowest = 0 if name == "state" else NONE
        column = columns[name]
        if column and not lowest <= min(column) <= max(column) < len(places):
            raise _Wrong(f"a block's {name} is none of the {len(places)} there are")
    segments = _segments(_need(data, "segments", dict, "a device"))
    _check_tiling(segments, blocks)
    exact, events = _need(data, "exact", bool, "a device"), _need(data, "events", dict, "a device")
    told = {name: _column(events, name, "events") for name in ("unix_us", "bytes")}
    _same_length(told, "events")
    return DeviceSnapshot(ledger, segments, blocks, exact, Events(**told))


def _column(table: dict[str, Any], name: str, of: str, kind: type = int) -> tuple[Any, ...]:
    values = _need(table, name, list, of)
    if not all(type(value) is kind for value in values) or (kind is int and values and not _fits(values)):
        raise _Wrong(f"the column {name!r} of {of} has something in it that is not {_KINDS[kind]}")
    return tuple(values)


def _fits(values: list[int]) -> bool:
    return min(values) > -_END and max(values) < _END


def _same_length(columns: Mapping[str, tuple[Any, ...]], of: str) -> None:
    if len({len(column) for column in columns.values()}) > 1:
        raise _Wrong(f"the columns of {of} differ in length")


def _segments(table: dict[str, Any]) -> tuple[Segment, ...]:
    columns: dict[str, tuple[Any, ...]] = {}
    for name in SEGMENT_COLUMNS:
        columns[name] = _column(table, name, "segments", {"pool": str, "large": bool}.get(name, int))
    _same_length(columns, "segments")
    firsts = list(accumulate(columns["blocks"], initial=0))[:-1]
    rows = zip(*columns.values(), firsts, strict=True)
    return tuple(Segment(**dict(zip((*columns, "first"), row, strict=True))) for row in rows)


def _check_tiling(segments: tuple[Segment, ...], blocks: Blocks) -> None:
    """Blocks lie in their segments end to end; what draws and sums them counts on it."""
    if sum(one.blocks for one in segments) != len(blocks) or any(one.blocks < 1 for one in segments):
        raise _Wrong("its segments do not have as many blocks as there are")
    if blocks.bytes and (min(blocks.bytes) <= 0 or min(blocks.requested) < 0):
        raise _Wrong("a block's size is not a positive number")
    for one in segments:
        last = one.first + one.blocks - 1
        begins = [one.address, *map(int.__add__, blocks.address[one.first : last], blocks.bytes[one.first : last])]
        if list(blocks.address[one.first : last + 1]) != begins:
            raise _Wrong(f"the blocks of the segment at {one.address:#x} do not lie end to end")
        if blocks.address[last] + blocks.bytes[last] != one.address + one.bytes:
            raise _Wrong(f"the blocks of the segment at {one.address:#x} do not fill it")
