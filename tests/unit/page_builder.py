"""Makes stats pages as a program would, with figures of the test's choice: for tests of what reads them."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

from pyalloc.stats_page import MAGIC, VERSION
from pyalloc.user_folder import user_folder

HEADER = struct.Struct("<8sIIQQIIII")
LARGEST = {"device": 2, "tag": 4, "event": 8, "pool": 16}
DEVICE = {
    "device": 0,
    "name": "GPU of a test",
    "uuid": "GPU-0",
    "total": 8 << 30,
    "free": 5 << 30,
    "limit": 8 << 30,
    "reserved": 2 << 30,
    "allocated": 1 << 30,
    "requested": 1 << 30,
    "used": 3 << 29,
    "idle": 1 << 29,
    "shelf": 0,
    "set_aside": 0,
    "largest_free": 1 << 28,
    "largest_remapped": 1 << 29,
}
POOL = {
    "device": 0,
    "pool": 0,
    "name": "general",
    "blocks": 12,
    "reserved": 2 << 30,
    "allocated": 1 << 30,
    "requested": 1 << 30,
    "used": 3 << 29,
    "limit": 0,
    "peak": 2 << 30,
    "reserve": 0,
    "largest_free": 1 << 28,
    "largest_remapped": 1 << 29,
    "cells": 4,
    "cell_bytes": 1 << 29,
    "live_cells": bytes([255, 128, 1, 0]),
    "idle_cells": bytes([0, 0, 0, 255]),
}


class PageBuilder:
    """A page file, locked as by a living process until die() or end()."""

    def __init__(self, pid: int = 4711, pid_namespace: int | None = None, **process: Any) -> None:
        namespace = os.stat("/proc/self/ns/pid").st_ino if pid_namespace is None else pid_namespace
        self.process: dict[str, Any] = {
            "pid": pid,
            "pid_namespace": namespace,
            "start_time": 99,
            "program": "python serve.py",
            "version": "0.1.0",
            "opened_ms": time.time_ns() // 1_000_000,
            "published_ms": time.time_ns() // 1_000_000,
            "published_ns": time.monotonic_ns(),
            "oom_capacity": 0,
            "oom_limit": 0,
            "last_oom": "",
            **process,
        }
        self.devices: list[dict[str, Any]] = [dict(DEVICE)]
        self.pools: list[dict[str, Any]] = [dict(POOL)]
        self.tags: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.described: dict[str, tuple[str, str]] = {}  # kind and unit of a field; others are gauges without one
        folder = user_folder(os.geteuid())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{namespace}-{pid}-99"
        self._file = -1

    def content(self, sequence: int = 2, version: int = VERSION) -> bytes:
        """The whole file."""
        tables = {"device": self.devices, "tag": self.tags, "event": self.events, "pool": self.pools}
        process = {**self.process, **{f"{name}s": len(rows) for name, rows in tables.items()}}
        described, body = [], bytearray()
        for name, rows in {"process": [process], **tables}.items():
            fields, stride = _fields(rows or [{"name": "", "kind": ""}], self.described)
            capacity = LARGEST.get(name, 1)
            described.append(
                {"name": name, "offset": len(body), "stride": stride, "capacity": capacity, "fields": fields}
            )
            table = bytearray(stride * capacity)
            for index, row in enumerate(rows):
                for field in fields:
                    value = _packed(row[field["name"]], field)
                    at = index * stride + field["offset"]
                    table[at : at + len(value)] = value
            body += table
        description = json.dumps({"tables": described}).encode()
        at = HEADER.size + len(description)
        head = HEADER.pack(
            MAGIC, version, HEADER.size, at + len(body), sequence, HEADER.size, len(description), at, len(body)
        )
        return head + description + bytes(body)

    def write(self, content: bytes | None = None) -> Path:
        """Makes the file, or writes it anew, as a living owner does."""
        if self._file < 0:
            self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        content = self.content() if content is None else content
        os.ftruncate(self._file, len(content))
        os.pwrite(self._file, content, 0)
        return self.path

    def advance(self, seconds: float = 1.0) -> None:
        """The next publish is so much later."""
        self.process["published_ns"] += int(seconds * 1e9)

    def die(self) -> None:
        """The owner is killed: its file stays."""
        os.close(self._file)
        self._file = -1

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def end(self) -> None:
        """The owner ends and takes its file along."""
        self.path.unlink()
        self.die()


def _fields(rows: list[dict[str, Any]], described: dict[str, tuple[str, str]]) -> tuple[list[dict[str, Any]], int]:
    fields, stride = [], 0
    for name, value in rows[0].items():
        if isinstance(value, list):
            kind, size = "stat", 96
        elif isinstance(value, bytes):
            kind, size = "cells", 128
        elif isinstance(value, str):
            kind, size = "text", 256
        else:
            kind, size = "int64", 8
        place = {"name": name, "type": kind, "offset": stride, "bytes": size, "help": ""}
        of_kind, unit = described.get(name, ("gauge", ""))
        fields.append({**place, "kind": of_kind, "unit": unit})
        stride += size
    return fields, stride


def _packed(value: Any, field: dict[str, Any]) -> bytes:
    if field["type"] == "int64":
        return struct.pack("<q", value)
    if field["type"] == "stat":
        return struct.pack("<12q", *value)
    return (value.encode() if isinstance(value, str) else value)[: field["bytes"]]
