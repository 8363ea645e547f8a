"""In a job's process: the packing model over a trace's rows. No device and no allocator is involved."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any


class _Result(ctypes.Structure):
    _fields_ = (
        ("live_peak", ctypes.c_uint64),
        ("reserved_peak", ctypes.c_uint64),
        ("created", ctypes.c_uint64),
        ("stolen", ctypes.c_uint64),
        ("runs", ctypes.c_uint64),
    )


def run(_: str, options: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """options: rows (path), row_count, blocks, streams, slack."""
    rows = bytearray(Path(options["rows"]).read_bytes())
    result = _Result()
    library.bench_packing_model(
        ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(rows))),
        ctypes.c_uint64(options["row_count"]),
        ctypes.c_uint32(options["blocks"]),
        ctypes.c_uint32(options["streams"]),
        ctypes.c_double(options["slack"]),
        ctypes.byref(result),
    )
    return {name: getattr(result, name) for name, _ in _Result._fields_}
