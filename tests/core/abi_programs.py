"""What the C ABI promises beyond blocks, one function each; test_c_abi.py runs each in a fresh process."""

from __future__ import annotations

import ctypes
import sys
import threading

from core_abi import BAD_CONFIG, INVALID_ARGUMENT, MIB, OUT_OF_MEMORY, WRONG_STATE, Core


def the_table_is_for_one_version() -> None:
    core = Core("memory:64MiB")
    address = core.dll.pyalloc_get_api(1)
    assert core.dll.pyalloc_get_api(2) is None
    assert core.dll.pyalloc_get_api(0) is None
    size, version = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32))[0:2]
    assert version == 1
    assert size >= 8 * 18
    pointers = ctypes.cast(address + 8, ctypes.POINTER(ctypes.c_void_p))[0 : size // 8 - 1]
    assert all(pointers)
    assert pointers[0] == ctypes.cast(core.dll.pyalloc_last_error, ctypes.c_void_p).value
    core.close()


def errors_are_kept_per_thread() -> None:
    core = Core("memory:64MiB")
    assert core.dll.pyalloc_configure(b"limti:1", b"test") == BAD_CONFIG
    mine = core.error()
    assert "limti" in mine
    assert "limit" in mine
    theirs: list[str] = []

    def other() -> None:
        theirs.append(core.error())
        pointer = ctypes.c_void_p()
        assert core.dll.pyalloc_allocate(9, None, 0, 512, ctypes.byref(pointer)) == INVALID_ARGUMENT
        theirs.append(core.error())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert theirs[0] == ""
    assert "device 9" in theirs[1]
    assert core.error() == mine
    core.close()


def json_is_well_formed() -> None:
    core = Core("memory:64MiB", "maintenance:off,limit:1.5GiB")
    options = {option["key"]: option for option in core.json("config_json")}
    assert options["limit"]["value"] == str(3 << 29)
    assert options["limit"]["origin"] == "test"
    assert options["decay"]["origin"] == "default"
    assert options["decay"]["unit"] == "ms"
    for option in options.values():
        assert set(option) == {"key", "value", "default", "origin", "type", "unit", "expected", "help"}
    driver = core.json("driver_json")
    assert driver["simulated"] is True
    assert driver["missing"] == []
    assert driver["error"] is None
    assert driver["library"].endswith("libcuda.so.1")
    assert driver["driver_version"] >= 12000
    fields = core.json("stat_fields_json")
    assert len({field["name"] for field in fields}) == len(fields) > 25
    assert {field["kind"] for field in fields} == {"history", "counter", "gauge"}
    rows = core.json("snapshot_fields_json")
    assert list(rows) == ["segment", "block"]
    assert all(set(field) == {"name", "unit", "help"} for fields in rows.values() for field in fields)
    core.close()


def plain_registration() -> None:
    core = Core("memory:64MiB", "maintenance:off,limit:32MiB")
    dll = core.dll
    dll.pyalloc_malloc.restype = ctypes.c_void_p
    dll.pyalloc_malloc.argtypes = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    dll.pyalloc_free.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    dll.pyalloc_plain_base_alloc.restype = ctypes.c_void_p
    dll.pyalloc_plain_base_alloc.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t))
    dll.pyalloc_plain_record_stream.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    dll.pyalloc_plain_set_memory_fraction.argtypes = (ctypes.c_double, ctypes.c_int)
    dll.pyalloc_plain_init(1)
    stream = core.stream()
    block = dll.pyalloc_malloc(3 * MIB, 0, stream)
    segment = ctypes.c_size_t()
    assert dll.pyalloc_plain_base_alloc(block + 100, ctypes.byref(segment)) <= block
    assert segment.value >= 3 * MIB
    dll.pyalloc_plain_record_stream(block, core.stream())
    dll.pyalloc_free(block, 3 * MIB, 0, stream)
    assert core.stats()["pending_frees"] == 1
    assert dll.pyalloc_malloc(0, 0, stream) is None
    assert dll.pyalloc_malloc(-5, 0, stream) is None
    assert dll.pyalloc_malloc(40 * MIB, 0, stream) is None
    assert core.error().startswith("CUDA out of memory")
    dll.pyalloc_plain_set_memory_fraction(0.125, 0)
    assert dll.pyalloc_malloc(12 * MIB, 0, stream) is None
    dll.pyalloc_plain_reset()
    assert core.gpu.simgpu_used(0) == 0
    dll.pyalloc_free(0x1234, 8, 0, stream)  # one line on stderr, nothing else
    core.close()


def wrong_states_change_nothing() -> None:
    core = Core("memory:64MiB")
    assert core.dll.pyalloc_init(-1) == INVALID_ARGUMENT
    assert core.dll.pyalloc_init(65) == INVALID_ARGUMENT
    assert core.dll.pyalloc_device_count() == 1
    block = core.allocate(512)
    assert core.dll.pyalloc_configure(b"limit:1GiB", b"test") == WRONG_STATE
    assert core.dll.pyalloc_configure(b"limti:1GiB", b"test") == BAD_CONFIG
    core.ok(core.dll.pyalloc_configure(b"slack:0.050, maintenance:False", b"test"))  # the same, written differently
    assert block is not None
    core.free(block)
    assert core.allocate(1 << 60) is None
    assert core.error().startswith("CUDA out of memory")
    core.close()


def reclaimers_from_python_may_use_the_library() -> None:
    core = Core("memory:16MiB")
    blocks = [core.allocate(4 * MIB) for _ in range(4)]
    seen: list[tuple[int, int]] = []
    reclaim_type = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

    @reclaim_type
    def reclaim(_: int, device: int, wanted: int) -> int:
        seen.append((device, wanted))
        block = blocks.pop()
        return core.free(block).allocated if block else 0

    core.ok(core.dll.pyalloc_add_reclaimer(reclaim, None, 3))
    again = core.allocate(4 * MIB)
    assert again
    assert seen == [(0, 4 * MIB)]
    stats = core.stats()
    assert stats["num_ooms"] == 0
    assert stats["num_alloc_retries"] == 0
    pointer = ctypes.c_void_p(7)
    assert core.dll.pyalloc_allocate(0, None, 1, 32 * MIB, ctypes.byref(pointer)) == OUT_OF_MEMORY
    assert pointer.value == 7
    for block in [*blocks, again]:
        assert block
        core.free(block)
    core.close()


PROGRAMS = (
    the_table_is_for_one_version,
    errors_are_kept_per_thread,
    json_is_well_formed,
    plain_registration,
    wrong_states_change_nothing,
    reclaimers_from_python_may_use_the_library,
)

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
