"""The C types of the core's C ABI (pyalloc/pyalloc.h): structs, callbacks, signatures that ctypes would guess wrong."""

import contextlib
import ctypes
from typing import Any, Final

from . import errors

ABI_VERSION: Final = 1
KINDS: Final = ("all", "small_pool", "large_pool")  # torch's names, in the order of PYALLOC_KIND_*

RECLAIM: Final = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


class MappingEvent(ctypes.Structure):
    """pyalloc_mapping_event: a run of addresses that got memory or is to lose it."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("pool", ctypes.c_int),
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    )


MAPPING_OBSERVER: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(MappingEvent))
PROGRESS: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)


class Stat(ctypes.Structure):
    """pyalloc_stat: one number with its history."""

    _fields_ = (
        ("current", ctypes.c_int64),
        ("peak", ctypes.c_int64),
        ("allocated", ctypes.c_int64),
        ("freed", ctypes.c_int64),
    )


def int64_struct(name: str, fields: list[dict[str, str]]) -> type[ctypes.Structure]:
    """A struct of the C ABI that is its size, its version and a table's fields."""
    columns: list[tuple[str, Any]] = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32)]
    columns += [(field["name"], ctypes.c_int64) for field in fields]
    return type(name, (ctypes.Structure,), {"_fields_": columns})


def values_of(struct: ctypes.Structure, fields: list[dict[str, str]]) -> dict[str, int]:
    return {field["name"]: int(getattr(struct, field["name"])) for field in fields}


def c_text(text: object, what: str) -> bytes:
    """Text as the C ABI takes it. InvalidArgumentError for what is no text, or could not be told from other text."""
    if isinstance(text, str) and "\0" not in text:
        with contextlib.suppress(UnicodeEncodeError):  # half a surrogate pair
            return text.encode()
    raise errors.InvalidArgumentError(f"the {what} {text!r}; expected text, without NUL")


def declare(dll: ctypes.CDLL) -> None:
    """Tells ctypes the types of the functions that return, or take, what is no int."""
    dll.pyalloc_version.restype = ctypes.c_char_p
    dll.pyalloc_last_error.restype = ctypes.c_char_p
    dll.pyalloc_get_api.restype = ctypes.c_void_p
    dll.pyalloc_get_api.argtypes = (ctypes.c_uint32,)
    dll.pyalloc_configure.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    dll.pyalloc_get_stats.argtypes = (ctypes.c_int, ctypes.c_void_p)
    dll.pyalloc_pool_name.restype = ctypes.c_char_p
    dll.pyalloc_find_pool.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int))
    dll.pyalloc_parse_size.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))
    dll.pyalloc_lora_prepare.argtypes = (ctypes.c_int, ctypes.c_uint64)
    dll.pyalloc_add_reclaimer.argtypes = (RECLAIM, ctypes.c_void_p, ctypes.c_int)
    dll.pyalloc_remove_reclaimer.argtypes = (RECLAIM, ctypes.c_void_p)
    dll.pyalloc_await_reclaimers.argtypes = (ctypes.c_int64,)
    dll.pyalloc_add_mapping_observer.argtypes = (MAPPING_OBSERVER, ctypes.c_void_p, ctypes.c_uint32)
    dll.pyalloc_remove_mapping_observer.argtypes = (MAPPING_OBSERVER, ctypes.c_void_p)
    dll.pyalloc_set_pool_limit.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_uint64)
    dll.pyalloc_segment_malloc.restype = ctypes.c_void_p
    dll.pyalloc_trim.argtypes = (ctypes.c_int, ctypes.c_void_p)
    dll.pyalloc_escapes_json.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    dll.pyalloc_escapes_json.restype = ctypes.c_size_t
    for name in (
        "config_json",
        "driver_json",
        "stat_fields_json",
        "pool_fields_json",
        "ledger_fields_json",
        "oom_json",
        "tag_fields_json",
        "bills_json",
        "snapshot_fields_json",
        "page_fields_json",
        "stats_page_path",
    ):
        function = getattr(dll, f"pyalloc_{name}")
        function.restype = ctypes.c_size_t
        function.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
