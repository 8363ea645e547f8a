"""Allocation traces: the two formats read, and the packed rows that native code replays. Ours is written by pyalloc.

Our format, plain or .gz: a header line `seq,op,id,bytes,stream,pool,time_us,tag` (further columns are ignored, `tag`
may be missing), then one line per operation:
  alloc   id is one per allocation, bytes as requested, stream a small integer (0: the default stream), pool a name
  free    id of an allocation; nothing else is looked at
  record  the block `id` is also used on `stream` (torch's record_stream)
  wait    `stream` waits for everything enqueued so far on the stream whose number stands in `id`
RMM's log (rmm::mr::logging_resource_adaptor): `Thread,Time,Action,Pointer,Size,Stream` with allocate, free and
"allocate failure"; the latter is left out, as are frees of blocks allocated before the log began.
"""

from __future__ import annotations

import gzip
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pyalloc.trace_file import DEFAULT_POOL, HEADER

from .errors import BenchError

ALLOC, FREE, RECORD, WAIT = range(4)
OPERATIONS = ("alloc", "free", "record", "wait")
ROW = struct.Struct("=dQIHBB")  # bench_row of native/replay.h
MAX_STREAMS = 33  # the default stream, and torch's pool of 32
PURPOSES = ("general", "weights", "kv", "workspace", "lora")  # pyalloc's pools, by their numbers
_PURPOSES = {"weights": "weights", "kv_pool": "kv", "kv_request": "kv", "kv": "kv", "adapter": "lora"}
RMM_HEADER = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]


@dataclass
class Trace:
    """A trace with dense block, stream and pool numbers. `rows` holds packed bench_row structs."""

    name: str
    rows: bytearray = field(default_factory=bytearray)
    count: int = 0
    blocks: int = 0
    streams: int = 1
    pools: list[str] = field(default_factory=lambda: [DEFAULT_POOL])
    live_peaks: list[int] = field(default_factory=lambda: [0])  # of each pool
    live_peak: int = 0
    ignored: int = 0  # rows that mean nothing: frees of blocks the trace never allocated, failed allocations

    def unpacked(self) -> Iterator[tuple[float, int, int, int, int, int]]:
        """(time_us, bytes, block, stream, op, pool) of every row."""
        return ROW.iter_unpack(self.rows)

    def bytes_column(self) -> array[int]:
        """Bytes of every alloc row, 0 for the others."""
        return array("Q", (row[1] if row[4] == ALLOC else 0 for row in self.unpacked()))


class TraceBuilder:
    """Builds a Trace row by row; names of blocks, streams and pools may be anything hashable."""

    def __init__(self, name: str, pools: Sequence[str] = ()) -> None:
        """pools: their names in the order of their numbers; more are added as they come."""
        self.trace = Trace(name)
        self._live: dict[object, tuple[int, int, int]] = {}  # id -> block number, bytes, pool
        self._streams: dict[object, int] = {0: 0}
        self.trace.pools = list(pools) or [DEFAULT_POOL]
        self._pools = {pool: number for number, pool in enumerate(self.trace.pools)}
        self._live_bytes = 0
        self._live_in = [0] * len(self._pools)
        self.trace.live_peaks = [0] * len(self._pools)
        self._time = 0.0

    def alloc(self, key: object, size: int, stream: object, time_us: float, pool: str = DEFAULT_POOL) -> None:
        if key in self._live:
            raise BenchError(f"block {key!r} is allocated twice without a free between")
        block = self.trace.blocks
        self.trace.blocks += 1
        number = self._pool(pool)
        self._live[key] = (block, size, number)
        self._live_bytes += size
        self._live_in[number] += size
        self.trace.live_peak = max(self.trace.live_peak, self._live_bytes)
        self.trace.live_peaks[number] = max(self.trace.live_peaks[number], self._live_in[number])
        self._add(ALLOC, block, size, self._stream(stream), time_us, number)

    def free(self, key: object, time_us: float) -> None:
        found = self._live.pop(key, None)
        if found is None:
            self.trace.ignored += 1
            return
        self._live_bytes -= found[1]
        self._live_in[found[2]] -= found[1]
        self._add(FREE, found[0], 0, 0, time_us)

    def record(self, key: object, stream: object, time_us: float) -> None:
        found = self._live.get(key)
        if found is None:
            self.trace.ignored += 1
            return
        self._add(RECORD, found[0], 0, self._stream(stream), time_us)

    def wait(self, stream: object, other: object, time_us: float) -> None:
        self._add(WAIT, self._stream(other), 0, self._stream(stream), time_us)

    def _stream(self, name: object) -> int:
        number = self._streams.setdefault(name, len(self._streams))
        if number >= MAX_STREAMS:
            raise BenchError(
                f"stream {name!r} is number {number + 1} of the trace; at most {MAX_STREAMS} are supported"
            )
        self.trace.streams = max(self.trace.streams, number + 1)
        return number

    def _pool(self, name: str) -> int:
        number = self._pools.get(name)
        if number is None:
            number = self._pools[name] = len(self._pools)
            if number > 255:
                raise BenchError(f"pool {name!r} is number {number + 1} of the trace; at most 256 are supported")
            self.trace.pools.append(name)
            self._live_in.append(0)
            self.trace.live_peaks.append(0)
        return number

    def _add(self, op: int, block: int, size: int, stream: int, time_us: float, pool: int = 0) -> None:
        self._time = max(self._time, time_us)
        self.trace.rows += ROW.pack(self._time, size, block, stream, op, pool)
        self.trace.count += 1


def purpose_of(tag: str) -> str:
    """The purpose pool of a row by its tag: what is not long-lived is workspace."""
    return _PURPOSES.get(tag, "workspace")


def read_trace(path: Path, by_tag: bool = False) -> Trace:
    """A trace of either format, recognised by its header. Raises BenchError with the file and line that is wrong.
    by_tag: pools are pyalloc's purposes, by the column `tag`, in the order of pyalloc's numbers.
    """
    try:
        with _open(path) as file:
            header = file.readline().rstrip("\n").split(",")
            builder = TraceBuilder(path.name.removesuffix(".gz").removesuffix(".csv"), PURPOSES if by_tag else ())
            if header[:3] == ["seq", "op", "id"]:
                _read_ours(file, header, builder, by_tag)
            elif by_tag:
                raise BenchError("line 1: only traces with a column tag can choose pools by it")
            elif [name.strip() for name in header[:6]] == RMM_HEADER:
                _read_rmm(file, builder)
            else:
                raise BenchError(
                    f"line 1: {','.join(header)[:80]!r} is no known header; expected {HEADER} or {','.join(RMM_HEADER)}"
                )
    except BenchError as error:
        raise BenchError(f"{path}: {error}") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error
    if builder.trace.count == 0:
        raise BenchError(f"{path} holds no operation")
    return builder.trace


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return open(path, encoding="utf-8")


def _read_ours(file: Iterable[str], header: list[str], builder: TraceBuilder, by_tag: bool) -> None:
    missing = [name for name in HEADER.split(",")[:7] if name not in header]
    if missing:
        raise BenchError(f"line 1: no column {', '.join(missing)}; expected {HEADER}")
    op_at, id_at, bytes_at, stream_at, pool_at, time_at = (
        header.index(name) for name in ("op", "id", "bytes", "stream", "pool", "time_us")
    )
    if by_tag:
        if "tag" not in header:
            raise BenchError("line 1: no column tag, by which pools are chosen")
        pool_at = header.index("tag")
    for number, line in enumerate(file, 2):
        columns = line.rstrip("\n").split(",")
        try:
            op, key, time_us = columns[op_at], columns[id_at], float(columns[time_at])
            if op == "alloc":
                size = int(columns[bytes_at])
                if size < 0:
                    raise BenchError(f"{size} bytes; expected 0 or more")
                builder.alloc(
                    key,
                    size,
                    int(columns[stream_at]),
                    time_us,
                    purpose_of(columns[pool_at]) if by_tag else columns[pool_at],
                )
            elif op == "free":
                builder.free(key, time_us)
            elif op == "record":
                builder.record(key, int(columns[stream_at]), time_us)
            elif op == "wait":
                builder.wait(int(columns[stream_at]), int(key), time_us)
            else:
                raise BenchError(f"unknown op {op!r}; expected {', '.join(OPERATIONS)}")
        except BenchError as error:
            raise BenchError(f"line {number}: {error}") from None
        except (IndexError, ValueError) as error:
            raise BenchError(f"line {number}: {line.strip()[:80]!r} does not fit the header ({error})") from None


def _read_rmm(file: Iterable[str], builder: TraceBuilder) -> None:
    first: float | None = None
    for number, line in enumerate(file, 2):
        columns = [column.strip() for column in line.split(",")]
        if columns == [""]:
            continue
        try:
            time_us = _rmm_time(columns[1])
            action, pointer, size, stream = columns[2], columns[3], int(columns[4]), int(columns[5], 0)
        except (IndexError, ValueError) as error:
            raise BenchError(f"line {number}: {line.strip()[:80]!r} is no line of RMM's log ({error})") from None
        first = time_us if first is None else first
        if time_us < first:
            time_us += 86400e6  # the log passed midnight
        if action == "allocate":
            builder.alloc(pointer, size, stream, time_us - first)
        elif action == "free":
            builder.free(pointer, time_us - first)
        elif action == "allocate failure":
            builder.trace.ignored += 1
        else:
            raise BenchError(f"line {number}: unknown action {action!r}; expected allocate, free, allocate failure")


def _rmm_time(text: str) -> float:
    """Microseconds of "11:18:32.023489" or "11:18:32:023489"."""
    hours, minutes, seconds, micros = text.replace(".", ":").split(":")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1e6 + float(f"0.{micros}") * 1e6
