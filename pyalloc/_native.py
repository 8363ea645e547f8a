"""ctypes binding of the core's C ABI (pyalloc/pyalloc.h): the library, its calls with statuses as exceptions, its
tables.

The one module that knows the library's file; _abi has its C types. The structs that grow are built from the library's
own tables, so that their fields are written down once, in stat_fields.def.
"""

import ctypes
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from . import errors
from ._abi import ABI_VERSION, KINDS, PROGRESS, Stat, c_text, declare, int64_struct, values_of
from ._reclaimers import Function, Reclaimers

_ERRORS: Final[dict[int, type[errors.PyallocError]]] = {
    1: errors.OutOfMemoryError,
    2: errors.InvalidArgumentError,
    3: errors.UnknownPointerError,
    4: errors.DriverError,
    5: errors.DriverError,
    6: errors.DriverError,
    7: errors.ConfigError,
    8: errors.StateError,
}


def package_file(*parts: str) -> Path | None:
    """A file or folder installed inside the package: an editable install spreads the package over several folders."""
    import pyalloc

    for folder in pyalloc.__path__:
        path = Path(folder, *parts)
        if path.exists():
            return path
    return None


def library_path() -> str:
    """Absolute path of libpyalloc.so. Raises LibraryError when there is none."""
    override = os.environ.get("PYALLOC_LIBRARY")
    if override:
        if not Path(override).is_file():
            raise errors.LibraryError(f"PYALLOC_LIBRARY names {override!r}, which is not a file")
        return os.path.abspath(override)
    path = package_file("libpyalloc.so")
    if path is None:
        raise errors.LibraryError(
            f"libpyalloc.so is not in the package: {errors.how_to_install()}, or set PYALLOC_LIBRARY to a built one"
        )
    return str(path.absolute())


class Library:
    """The loaded core. Calls that fail raise the error of their status with the core's message."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        try:
            self._dll = ctypes.CDLL(path)
            self._dll.pyalloc_abi_version.restype = ctypes.c_uint32
            abi = int(self._dll.pyalloc_abi_version())
        except (OSError, AttributeError) as error:
            raise errors.LibraryError(f"cannot load {path}: {error}") from error
        if abi != ABI_VERSION:
            raise errors.LibraryError(
                f"{path} has C ABI {abi}, this package expects {ABI_VERSION}: install both from one version"
            )
        declare(self._dll)
        self._reclaimers: Final = Reclaimers(self._dll)
        # For wrappers that run in every forward pass: arguments and statuses as they are, and the GIL kept, which costs
        # less than giving it up and waiting for it.
        held = ctypes.PyDLL(path)
        self.current_pool: Final[Callable[[], int]] = held.pyalloc_current_pool
        self.quick_suggest_pool: Final[Callable[[int], int]] = held.pyalloc_suggest_pool
        self.quick_pop_pool: Final[Callable[[int], int]] = held.pyalloc_pop_pool

    def _check(self, status: int) -> None:
        if status != 0:
            message = self._dll.pyalloc_last_error()
            raise _ERRORS.get(status, errors.PyallocError)(message.decode(errors="replace"))

    def _text(self, function: Callable[[Any, int], int]) -> bytes:
        """Calls a function that fills a buffer with text and returns the length it needs, until the buffer holds it."""
        capacity = 4096
        while True:
            buffer = ctypes.create_string_buffer(capacity)
            needed = int(function(buffer, capacity))
            if needed < capacity:
                return buffer.value
            capacity = needed + 1

    def _json(self, function: Callable[[Any, int], int]) -> Any:
        return json.loads(self._text(function).decode())

    def version(self) -> str:
        """The library's version, as the package's."""
        return str(self._dll.pyalloc_version().decode())

    def api(self) -> int:
        """Address of the function table for the bridge."""
        address = self._dll.pyalloc_get_api(ABI_VERSION)
        if not address:
            raise errors.LibraryError(f"{self.path} has no function table of version {ABI_VERSION}")
        return int(address)

    def address(self, symbol: str) -> int:
        """Address of an exported function, for torch's hook setters."""
        return int(ctypes.cast(getattr(self._dll, symbol), ctypes.c_void_p).value or 0)

    def configure(self, text: str, origin: str) -> None:
        """Replaces the configuration. ConfigError lists every error of the text and changes nothing."""
        self._check(self._dll.pyalloc_configure(text.encode(), origin.encode()))

    def config(self) -> list[dict[str, str]]:
        """Every option with key, value, default, origin, type, unit, expected and help."""
        table: list[dict[str, str]] = self._json(self._dll.pyalloc_config_json)
        return table

    def probe(self) -> None:
        """Opens the driver's library, without initialising CUDA. Raises DriverError."""
        self._check(self._dll.pyalloc_probe())

    def driver(self) -> dict[str, Any]:
        """library, simulated, driver_version and missing symbols, as found so far."""
        facts: dict[str, Any] = self._json(self._dll.pyalloc_driver_json)
        return facts

    def device_count(self) -> int:
        """Devices known to the core; 0 before torch initialised CUDA."""
        return int(self._dll.pyalloc_device_count())

    def init(self, device_count: int) -> None:
        """Tells the core how many devices there are; repeating it is harmless."""
        self._check(self._dll.pyalloc_init(device_count))

    def trim(self) -> None:
        """Gives idle memory of every device back to the driver."""
        self._check(self._dll.pyalloc_trim(-1, None))

    def segment_functions(self, number: int) -> tuple[int, int]:
        """Addresses of the two functions from which the allocator of a torch.cuda.MemPool has a pool's segments."""
        return int(self._dll.pyalloc_segment_malloc(number) or 0), self.address("pyalloc_segment_free")

    @functools.cached_property
    def stat_fields(self) -> list[dict[str, Any]]:
        """The table of statistics: name, group (true for a pyalloc_stat per kind), kind, unit and help."""
        fields: list[dict[str, Any]] = self._json(self._dll.pyalloc_stat_fields_json)
        return fields

    @functools.cached_property
    def _stats_type(self) -> type[ctypes.Structure]:
        columns: list[tuple[str, Any]] = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32)]
        for field in self.stat_fields:
            columns.append((field["name"], Stat * len(KINDS) if field["group"] else ctypes.c_int64))
        return type("DeviceStats", (ctypes.Structure,), {"_fields_": columns})

    def stats(self, device: int) -> ctypes.Structure:
        """pyalloc_device_stats of one device, with the fields of `stat_fields`."""
        stats = self._stats_type()
        stats.size = ctypes.sizeof(stats)
        self._check(self._dll.pyalloc_get_stats(device, ctypes.byref(stats)))
        return stats

    def parse_size(self, text: int | str) -> int:
        """Bytes of a size as options have it, "20GiB". InvalidArgumentError names what was expected."""
        if isinstance(text, bool) or not isinstance(text, int | str):
            raise errors.InvalidArgumentError(f'size {text!r}; expected bytes, or text such as "20GiB"')
        size = ctypes.c_uint64()
        self._check(self._dll.pyalloc_parse_size(c_text(str(text), "size"), ctypes.byref(size)))
        return size.value

    def find_pool(self, name: str, create: bool = False) -> int:
        """The number of a pool. InvalidArgumentError when there is none and none is to be made, or for a bad name."""
        number = ctypes.c_int()
        self._check(self._dll.pyalloc_find_pool(c_text(name, "pool"), create, ctypes.byref(number)))
        return number.value

    def create_pool(self, name: str, like: int, slab: int | None, contiguous: bool = False) -> int:
        """The number of a pool, made if there is none with the layout of pool `like` (-1: any) and slabs of `slab`
        bytes (None: those of `like`), or with a handle for every block. InvalidArgumentError for one that has another
        layout.
        """
        number = ctypes.c_int()
        slabs = ctypes.c_uint64(-1 if slab is None else slab)
        self._check(self._dll.pyalloc_create_pool(c_text(name, "pool"), like, slabs, contiguous, ctypes.byref(number)))
        return number.value

    def pool_names(self) -> list[str]:
        """Every pool's name; its place is its number."""
        return [self._dll.pyalloc_pool_name(i).decode() for i in range(self._dll.pyalloc_pool_count())]

    def push_pool(self, number: int) -> None:
        """This thread's blocks go to the pool until the matching pop_pool()."""
        self._check(self._dll.pyalloc_push_pool(number))

    def pop_pool(self, number: int) -> None:
        """Leaves the scope pushed last; StateError for any other."""
        self._check(self._dll.pyalloc_pop_pool(number))

    def set_pool_limit(self, device: int, number: int, limit: int) -> None:
        """0: none. InvalidArgumentError below what the pool uses."""
        self._check(self._dll.pyalloc_set_pool_limit(device, number, limit))

    def lora_prepare(self, device: int, size: int) -> None:
        """Maps `size` bytes more for the lora pool, in place of what was prepared before; 0 only ends that."""
        self._check(self._dll.pyalloc_lora_prepare(device, size))

    def escapes(self, device: int) -> dict[str, int]:
        """Blocks that outlived their workspace step, by bytes asked for."""
        sizes: dict[str, int] = self._json(lambda buffer, size: self._dll.pyalloc_escapes_json(device, buffer, size))
        return sizes

    def add_reclaimer(self, function: Function, priority: int) -> None:
        """Called until the program's exit handlers run, by threads of any kind."""
        self._check(self._reclaimers.add(function, priority))

    def remove_reclaimer(self, function: Function) -> None:
        """InvalidArgumentError when it is not registered."""
        self._check(self._reclaimers.remove(function))

    def add_mapping_observer(self, function: Any, kinds: int) -> None:
        """`function` is a MAPPING_OBSERVER that must stay alive; kinds: 1 mapped, 2 about to be unmapped, 3 both."""
        self._check(self._dll.pyalloc_add_mapping_observer(function, None, kinds))

    def remove_mapping_observer(self, function: Any) -> None:
        """Returns when no other thread is in it. InvalidArgumentError when it is not registered."""
        self._check(self._dll.pyalloc_remove_mapping_observer(function, None))

    def sleep(self, pools: list[int], offload: list[bool], progress: Any) -> int:
        """Puts pools to sleep, on every device, and returns the bytes that the driver got; `progress` is a PROGRESS or
        None.
        """
        released = ctypes.c_uint64()
        flags = (ctypes.c_int * len(pools))(*offload)
        numbers = (ctypes.c_int * len(pools))(*pools)
        function = progress or PROGRESS()
        self._check(self._dll.pyalloc_sleep(numbers, flags, len(pools), function, None, ctypes.byref(released)))
        return released.value

    def wake(self, pools: list[int], progress: Any) -> None:
        """Brings their memory back, on every device; all or nothing."""
        numbers = (ctypes.c_int * len(pools))(*pools)
        self._check(self._dll.pyalloc_wake(numbers, len(pools), progress or PROGRESS(), None))

    def oom(self) -> dict[str, Any]:
        """What was refused: counts by reason and the last refusals."""
        report: dict[str, Any] = self._json(self._dll.pyalloc_oom_json)
        return report

    def reset_pool_peak(self, device: int, number: int) -> None:
        """Starts the pool's peak again from what it uses now."""
        self._check(self._dll.pyalloc_reset_pool_peak(device, number))

    @functools.cached_property
    def pool_fields(self) -> list[dict[str, str]]:
        """The table of a pool's figures: name, unit and help."""
        fields: list[dict[str, str]] = self._json(self._dll.pyalloc_pool_fields_json)
        return fields

    @functools.cached_property
    def _pool_stats_type(self) -> type[ctypes.Structure]:
        return int64_struct("PoolStats", self.pool_fields)

    def pool_stats(self, device: int, number: int) -> dict[str, int]:
        """A pool's figures on one device, by the names of `pool_fields`."""
        stats = self._pool_stats_type()
        stats.size = ctypes.sizeof(stats)
        self._check(self._dll.pyalloc_get_pool_stats(device, number, ctypes.byref(stats)))
        return values_of(stats, self.pool_fields)

    @functools.cached_property
    def ledger_fields(self) -> list[dict[str, str]]:
        """The table of a device's ledger: name, unit and help."""
        fields: list[dict[str, str]] = self._json(self._dll.pyalloc_ledger_fields_json)
        return fields

    @functools.cached_property
    def _ledger_type(self) -> type[ctypes.Structure]:
        return int64_struct("Ledger", self.ledger_fields)

    def ledger(self, device: int) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        """A device's figures by the names of `ledger_fields`, and its pools' by name, all of one moment. Torch's
        private pools are "private", if they have memory, asleep or not; their peak is None.
        """
        ledger = self._ledger_type()
        ledger.size = ctypes.sizeof(ledger)
        names = self.pool_names()
        pools = (self._pool_stats_type * len(names))()
        of_private = self._pool_stats_type()
        for pool in (*pools, of_private):
            pool.size = ctypes.sizeof(self._pool_stats_type)
        self._check(
            self._dll.pyalloc_get_ledger(device, ctypes.byref(ledger), pools, len(names), ctypes.byref(of_private))
        )
        of_pools: dict[str, dict[str, Any]] = {
            name: values_of(pool, self.pool_fields) for name, pool in zip(names, pools, strict=True)
        }
        if of_private.reserved or of_private.asleep:
            of_pools["private"] = {**values_of(of_private, self.pool_fields), "peak": None}
        return values_of(ledger, self.ledger_fields), of_pools

    def push_tag(self, name: str) -> int:
        """This thread's blocks are charged to the tag until the matching pop_tag() of the number returned."""
        number = ctypes.c_uint32()
        self._check(self._dll.pyalloc_push_tag(c_text(name, "tag"), ctypes.byref(number)))
        return number.value

    def pop_tag(self, number: int) -> None:
        """Leaves the tag pushed last; StateError for any other."""
        self._check(self._dll.pyalloc_pop_tag(number))

    @functools.cached_property
    def tag_fields(self) -> list[dict[str, str]]:
        """The table of a bill's figures: name, unit and help."""
        fields: list[dict[str, str]] = self._json(self._dll.pyalloc_tag_fields_json)
        return fields

    @functools.cached_property
    def _bill_type(self) -> type[ctypes.Structure]:
        return int64_struct("Bill", self.tag_fields)

    def bill(self, name: str) -> dict[str, int]:
        """A tag's figures, by the names of `tag_fields`. InvalidArgumentError for one that is not known."""
        bill = self._bill_type()
        bill.size = ctypes.sizeof(bill)
        self._check(self._dll.pyalloc_get_bill(c_text(name, "tag"), ctypes.byref(bill)))
        return values_of(bill, self.tag_fields)

    def bills(self) -> list[dict[str, Any]]:
        """Every known tag's figures, with `tag`, its name."""
        known: list[dict[str, Any]] = self._json(self._dll.pyalloc_bills_json)
        return known

    def tag_name(self, number: int) -> str:
        """The name of a tag that a row of snapshot_rows() has; empty for 0, and for one no longer known."""
        buffer = ctypes.create_string_buffer(256)
        self._dll.pyalloc_tag_name(ctypes.c_uint32(number), buffer, ctypes.c_size_t(len(buffer)))
        return buffer.value.decode(errors="replace")

    @functools.cached_property
    def snapshot_fields(self) -> dict[str, list[dict[str, str]]]:
        """The columns of the rows of a "segment" and of a "block": name, unit and help."""
        fields: dict[str, list[dict[str, str]]] = self._json(self._dll.pyalloc_snapshot_fields_json)
        return fields

    def snapshot_rows(self, device: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """A device's segments and the blocks of all of them, in address order: a list for each column."""
        widths = [len(self.snapshot_fields[kind]) for kind in ("segment", "block")]
        room = [0, 0]
        while True:
            arrays = [(ctypes.c_int64 * (count * width))() for count, width in zip(room, widths, strict=True)]
            found = [ctypes.c_size_t(count) for count in room]
            (segments, blocks), counts = arrays, [ctypes.byref(one) for one in found]
            self._check(self._dll.pyalloc_snapshot_rows(device, segments, counts[0], blocks, counts[1]))
            if all(one.value <= count for one, count in zip(found, room, strict=True)):
                break
            room = [one.value + one.value // 8 + 16 for one in found]  # the program goes on allocating
        columns = []
        for array, count, fields in zip(arrays, found, self.snapshot_fields.values(), strict=True):
            words = memoryview(array).cast("B").cast("q")[: count.value * len(fields)]
            columns.append({field["name"]: words[at :: len(fields)].tolist() for at, field in enumerate(fields)})
        return columns[0], columns[1]

    def stats_page_path(self) -> str | None:
        """The file of this process's stats page, or None: before the first allocation, or where it writes none."""
        return os.fsdecode(self._text(self._dll.pyalloc_stats_page_path)) or None

    @functools.cached_property
    def page_fields(self) -> list[dict[str, Any]]:
        """The tables of a stats page, each with its fields: name, type, kind, unit, help and place."""
        described: dict[str, list[dict[str, Any]]] = self._json(self._dll.pyalloc_page_fields_json)
        return described["tables"]

    def reset_peak_stats(self, device: int) -> None:
        """Starts every peak again from the current value."""
        self._check(self._dll.pyalloc_reset_peak_stats(device))

    def reset_accumulated_stats(self, device: int) -> None:
        """Starts the totals of allocated and freed, and the counters, again from zero."""
        self._check(self._dll.pyalloc_reset_accumulated_stats(device))


@functools.cache
def library() -> Library:
    """The core, loaded once. Raises LibraryError."""
    return Library(library_path())
