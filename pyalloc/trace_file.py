"""Writes allocation traces in the format that tools/bench reads: one line per allocation, free, use or wait.

`seq,op,id,bytes,stream,pool,time_us,tag`, compressed when the file's name ends in .gz. op is
  alloc   a block `id` of `bytes`, as requested, for `stream` (a small integer, 0 the default stream)
  free    its end
  record  the block is also used on `stream`, as torch's record_stream says
  wait    `stream` waits for everything enqueued so far on the stream whose number stands in `id`
"""

import gzip
import io
from pathlib import Path
from typing import Final, TextIO

HEADER: Final = "seq,op,id,bytes,stream,pool,time_us,tag"
DEFAULT_POOL: Final = "default"


class TraceWriter:
    """Writes rows to an open text file. Keys of blocks are integers; times in microseconds since the start, in order.

    Not thread-safe: the caller orders the rows.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.rows = 0
        self._live: dict[object, tuple[int, object, str]] = {}  # bytes, stream, pool
        file.write(HEADER + "\n")

    def alloc(
        self, key: object, size: int, stream: object, time_us: float, pool: str = DEFAULT_POOL, tag: str = ""
    ) -> None:
        self._live[key] = (size, stream, pool)
        self._row("alloc", key, size, stream, pool, time_us, tag)

    def free(self, key: object, time_us: float) -> None:
        """The block must have been allocated here; KeyError else."""
        size, stream, pool = self._live.pop(key)
        self._row("free", key, size, stream, pool, time_us)

    def record(self, key: object, stream: object, time_us: float) -> None:
        """The block must be live here; KeyError else."""
        size, _, pool = self._live[key]
        self._row("record", key, size, stream, pool, time_us)

    def wait(self, stream: object, other: object, time_us: float) -> None:
        self._row("wait", other, 0, stream, DEFAULT_POOL, time_us)

    def _row(self, op: str, key: object, size: int, stream: object, pool: str, time_us: float, tag: str = "") -> None:
        self._file.write(f"{self.rows},{op},{key},{size},{stream},{pool},{time_us:.0f},{tag}\n")
        self.rows += 1


def open_for_writing(path: Path) -> TextIO:
    """A text file, compressed when the name ends in .gz; the same rows give the same bytes. Raises OSError."""
    if path.suffix != ".gz":
        return open(path, "w", encoding="utf-8")
    return io.TextIOWrapper(gzip.GzipFile(path, "wb", mtime=0), encoding="utf-8")
