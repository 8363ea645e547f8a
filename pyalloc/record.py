"""`pyalloc record`: runs a program on pyalloc and writes what it allocates as a trace, for tools/bench to replay.

Torch reports each allocation, free, event record and event wait (its GPU trace, which the CUDA sanitizer uses); sizes
and streams come from the core. record_stream is seen where Python calls it, not inside C++ libraries; waits are those
through events, which is how torch makes one stream wait for another.
"""

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _native, config, errors
from .trace_file import TraceWriter, open_for_writing


class _BlockInfo(ctypes.Structure):
    """pyalloc_block_info."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("device", ctypes.c_int),
        ("block", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("requested", ctypes.c_size_t),
        ("allocated", ctypes.c_size_t),
        ("segment", ctypes.c_void_p),
        ("segment_bytes", ctypes.c_size_t),
    )


class Recorder:
    """Turns torch's reports about one device into rows. Thread-safe: reports come from every thread that allocates."""

    def __init__(self, writer: TraceWriter, device: int) -> None:
        self._writer = writer
        self._device = device
        self._lock = threading.RLock()  # a garbage collection inside a report frees blocks, which is a report
        self._started = time.perf_counter()
        self._find = ctypes.CDLL(_native.library_path()).pyalloc_find_block
        self._blocks: dict[int, int] = {}  # address -> number
        self._next = 0
        self._streams: dict[int, int] = {0: 0}  # handle -> number
        self._recorded: dict[int, int] = {}  # event -> the stream it was last recorded on
        self._open = True

    def allocated(self, address: int) -> None:
        info = _BlockInfo(size=ctypes.sizeof(_BlockInfo))
        if self._find(ctypes.c_void_p(address), ctypes.byref(info)) != 0 or info.device != self._device:
            return
        with self._lock:
            if not self._open:
                return
            self._blocks[address] = self._next
            self._writer.alloc(self._next, info.requested, self._stream(info.stream or 0), self._now())
            self._next += 1

    def freed(self, address: int) -> None:
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is not None and self._open:
                self._writer.free(block, self._now())

    def used(self, address: int, stream: int) -> None:
        """record_stream."""
        with self._lock:
            block = self._blocks.get(address)
            if block is not None and self._open:
                self._writer.record(block, self._stream(stream), self._now())

    def event_recorded(self, event: int, stream: int) -> None:
        with self._lock:
            self._recorded[event] = stream

    def event_deleted(self, event: int) -> None:
        with self._lock:
            self._recorded.pop(event, None)

    def event_waited(self, event: int, stream: int) -> None:
        with self._lock:
            other = self._recorded.get(event)
            if other is not None and other != stream and self._open:
                self._writer.wait(self._stream(stream), self._stream(other), self._now())

    def close(self) -> None:
        """Reports that still come, at the interpreter's end, are dropped."""
        with self._lock:
            self._open = False

    def _stream(self, handle: int) -> int:
        return self._streams.setdefault(handle, len(self._streams))

    def _now(self) -> float:
        return (time.perf_counter() - self._started) * 1e6


def options_for_recording(options: str) -> str:
    """`options` of the command line, with what recording needs. Raises ConfigError when they, or PYALLOC_CONF, ask for
    what cannot be recorded.
    """
    library = _native.library()
    config.configure(library, options)
    chosen = config.values(library)
    for key, value in (("bridge", "off"), ("mode", "pools")):
        if chosen[key] == value:
            raise errors.ConfigError(
                f"{key}:{value} cannot be recorded, which needs the torch bridge: "
                f"take it out of --conf or {config.VARIABLE}"
            )
    return config.joined(options, "bridge:require")


@contextlib.contextmanager
def recording(path: Path, device: int = 0) -> Iterator[TraceWriter]:
    """Writes a trace of `device` to `path` while the block runs; pyalloc must be enabled with its bridge.

    Yields the writer, whose `rows` counts. Raises StateError without the bridge, InvalidArgumentError when there is no
    such device or the file cannot be written.
    """
    from .allocator import enabled_state

    state = enabled_state()
    if state is None or state.mode != "bridge":
        raise errors.StateError("recording needs pyalloc with its bridge: call pyalloc.enable(bridge='require') before")
    if device != 0:  # to count devices may open the driver, which the program may have its own say in
        import torch

        count = torch.cuda.device_count()
        if not 0 <= device < count:
            raise errors.InvalidArgumentError(f"device {device}; expected 0 to {count - 1}")
    try:
        file = open_for_writing(path)
    except OSError as error:
        raise errors.InvalidArgumentError(f"the trace cannot be written to {path}: {error.strerror}") from error
    with file:
        writer = TraceWriter(file)
        recorder = Recorder(writer, device)
        original = _listen(recorder)
        try:
            yield writer
        finally:
            import torch

            torch.Tensor.record_stream = original  # type: ignore[method-assign]
            recorder.close()


def _listen(recorder: Recorder) -> Any:
    """Registers the recorder with torch, for good: torch has no way back. Returns Tensor.record_stream as it was."""
    import torch
    from torch.cuda import _gpu_trace

    _gpu_trace.register_callback_for_memory_allocation(recorder.allocated)
    _gpu_trace.register_callback_for_memory_deallocation(recorder.freed)
    _gpu_trace.register_callback_for_event_record(recorder.event_recorded)
    _gpu_trace.register_callback_for_event_wait(recorder.event_waited)
    _gpu_trace.register_callback_for_event_deletion(recorder.event_deleted)
    torch._C._activate_gpu_trace()
    original = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        original(self, stream)
        recorder.used(self.untyped_storage().data_ptr(), int(stream.cuda_stream))

    torch.Tensor.record_stream = record_stream  # type: ignore[assignment, method-assign]
    return original


def output_argument(target: list[str]) -> tuple[list[str], str | None]:
    """The program without a trailing `-o FILE`, and that file: `record script.py -o trace.csv.gz` reads naturally."""
    if len(target) > 2 and target[-2] in ("-o", "--output"):
        return target[:-2], target[-1]
    return target, None
