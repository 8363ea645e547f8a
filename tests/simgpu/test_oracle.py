"""The ordering oracle: memory reused, unmapped or released before its last use is ordered is flagged, nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
from simulated_driver import GRANULE, SimulatedDriver

Start = Callable[..., SimulatedDriver]
MODES = pytest.mark.parametrize("mode", ["immediate", "deferred"])


def used_block(gpu: SimulatedDriver, stream: int, address: int, size: int = 4096) -> None:
    gpu.oracle("alloc", address, size, stream)
    gpu.write(stream, address, size)
    gpu.oracle("free", address, size, stream)


@MODES
def test_reuse_on_the_same_stream_is_ordered(start: Start, mode: str) -> None:
    gpu = start(f"oracle:on,streams:{mode}")
    address, stream = gpu.mapped(), gpu.stream()
    for _ in range(3):
        used_block(gpu, stream, address)


@MODES
def test_reuse_on_another_stream_without_order(start: Start, mode: str) -> None:
    gpu = start(f"oracle:on,streams:{mode}")
    address, first, second = gpu.mapped(), gpu.stream(), gpu.stream()
    used_block(gpu, first, address)
    gpu.oracle("alloc", address + 1024, 512, second)
    gpu.violated("reused", "before its last use")


def test_an_event_and_a_wait_order_streams(start: Start) -> None:
    gpu = start("oracle:on,streams:deferred")
    address, first, second, third = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.stream()
    event, next_event = gpu.event(), gpu.event()
    used_block(gpu, first, address)
    gpu.record(event, first)
    gpu.wait(second, event)
    gpu.record(next_event, second)
    gpu.wait(third, next_event)  # order is transitive
    gpu.oracle("alloc", address, 4096, third)


def test_an_event_recorded_before_the_free_does_not_cover_it(start: Start) -> None:
    gpu = start("oracle:on")
    address, first, second, event = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event()
    gpu.oracle("alloc", address, 4096, first)
    gpu.record(event, first)
    gpu.write(first, address, 4096)
    gpu.oracle("free", address, 4096, first)
    gpu.wait(second, event)
    gpu.oracle("alloc", address, 4096, second)
    gpu.violated("reused")


@pytest.mark.parametrize("how", ["stream", "event", "query", "context"])
def test_what_the_host_waited_for_is_ordered(start: Start, how: str) -> None:
    gpu = start("oracle:on")
    address, first, second, event = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event()
    used_block(gpu, first, address)
    gpu.record(event, first)
    steps: dict[str, Callable[[], None]] = {
        "stream": lambda: gpu.ok("cuStreamSynchronize", first),
        "event": lambda: gpu.ok("cuEventSynchronize", event),
        "query": lambda: gpu.ok("cuEventQuery", event),
        "context": lambda: gpu.ok("cuCtxSynchronize"),
    }
    steps[how]()
    gpu.oracle("alloc", address, 4096, second)


def test_being_complete_is_not_enough(start: Start) -> None:
    gpu = start("oracle:on,streams:immediate")
    address, first, second = gpu.mapped(), gpu.stream(), gpu.stream()
    used_block(gpu, first, address)
    assert gpu.control.pending() == 0
    gpu.oracle("alloc", address, 4096, second)
    gpu.violated("reused")


def test_recorded_streams_count_too(start: Start) -> None:
    gpu = start("oracle:on")
    address, first, second, event = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event()
    gpu.oracle("alloc", address, 4096, first)
    gpu.oracle("record", address, 4096, second)
    gpu.oracle("free", address, 4096, first)
    gpu.oracle("alloc", address, 4096, first)
    gpu.violated("reused")
    gpu.oracle("record", address, 4096, second)
    gpu.oracle("free", address, 4096, first)
    gpu.record(event, second)
    gpu.wait(first, event)
    gpu.oracle("alloc", address, 4096, first)


def test_reuse_through_an_alias(start: Start) -> None:
    gpu = start("oracle:on")
    first, second, event = gpu.stream(), gpu.stream(), gpu.event()
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.map(address + GRANULE, handle)
    gpu.set_access(address, 2 * GRANULE)
    used_block(gpu, first, address + 8192)
    gpu.oracle("alloc", address + GRANULE, 8192, second)  # other bytes of the granule
    gpu.oracle("free", address + GRANULE, 8192, second)
    gpu.oracle("alloc", address + GRANULE + 8192, 64, second)
    gpu.violated("reused")
    gpu.oracle("free", address + GRANULE + 8192, 64, second)
    used_block(gpu, first, address + 16384)
    gpu.record(event, first)
    gpu.wait(second, event)
    gpu.oracle("alloc", address + GRANULE + 16384, 4096, second)


def test_unmapping_before_the_last_use_is_complete(start: Start) -> None:
    gpu = start("oracle:on")
    address, stream = gpu.mapped(2), gpu.stream()
    used_block(gpu, stream, address)
    used_block(gpu, stream, address + GRANULE)
    gpu.ok("cuStreamSynchronize", stream)
    gpu.ok("cuMemUnmap", address, GRANULE)
    used_block(gpu, stream, address + GRANULE)
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    texts = gpu.take_violations()
    assert len(texts) == 2, texts
    assert "unmapped before the last use" in texts[0]
    assert "released before its last use" in texts[1]


def test_an_old_alias_is_unmapped_only_after_its_last_use(start: Start) -> None:
    gpu = start("oracle:on")
    first, second, event = gpu.stream(), gpu.stream(), gpu.event()
    address, handle = gpu.reserve(2 * GRANULE), gpu.create()
    gpu.map(address, handle)
    gpu.map(address + GRANULE, handle)
    gpu.set_access(address, 2 * GRANULE)
    used_block(gpu, first, address)
    gpu.record(event, first)
    gpu.wait(second, event)
    gpu.oracle("alloc", address + GRANULE, 4096, second)  # the new life, at the new address
    gpu.ok("cuEventSynchronize", event)
    gpu.ok("cuMemUnmap", address, GRANULE)  # the old use is known to be done
    gpu.oracle("free", address + GRANULE, 4096, second)
    gpu.ok("cuMemUnmap", address + GRANULE, GRANULE)
    gpu.violated("unmapped before the last use")


def test_live_blocks(start: Start) -> None:
    gpu = start("oracle:on")
    address, stream = gpu.mapped(), gpu.stream()
    gpu.oracle("alloc", address, 4096, stream)
    gpu.oracle("alloc", address + 2048, 64, stream)
    gpu.violated("over the live block")
    gpu.oracle("free", address + 9999, 64, stream)
    gpu.violated("no live block")
    gpu.ok("cuMemUnmap", address, GRANULE)
    texts = gpu.take_violations()
    assert len(texts) == 2
    assert all("under the live block" in text for text in texts)
    gpu.oracle("alloc", address, 64, stream)
    assert "not fully mapped" in gpu.take_violations()[-1]


def asleep(gpu: SimulatedDriver, address: int, on: bool) -> None:
    gpu.library.simgpu_oracle_sleep(ctypes.c_uint64(address), ctypes.c_size_t(GRANULE), on)


def test_memory_may_go_under_live_blocks_that_sleep_once_their_uses_are_complete(start: Start) -> None:
    gpu = start("oracle:on")
    address, stream = gpu.mapped(), gpu.stream()
    gpu.oracle("alloc", address, 4096, stream)
    gpu.ok("cuStreamSynchronize", stream)
    asleep(gpu, address, True)  # it was used until now
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.violated("asleep before the last use")


def test_a_free_of_what_sleeps_is_no_use(start: Start) -> None:
    gpu = start("oracle:on")
    address, stream = gpu.mapped(), gpu.stream()
    gpu.oracle("alloc", address, 4096, stream)
    gpu.oracle("alloc", address + 4096, 4096, stream)
    asleep(gpu, address, True)
    gpu.ok("cuStreamSynchronize", stream)
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.oracle("free", address, 4096, stream)
    handle = gpu.create()
    gpu.map(address, handle)  # a wake that is given up
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.map(address, handle)
    asleep(gpu, address, False)  # awake: from now on a free is a use
    gpu.oracle("free", address + 4096, 4096, stream)
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.violated("unmapped before the last use")


def test_a_block_may_be_told_of_after_it_fell_asleep(start: Start) -> None:
    gpu = start("oracle:on")
    address, handle = gpu.reserve(), gpu.create()
    gpu.map(address, handle)
    asleep(gpu, address, True)  # before the thread that was given a block there says so
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.oracle("alloc", address, 4096, 0)
    gpu.map(address, handle)
    asleep(gpu, address, False)
    gpu.oracle("free", address, 4096, 0)
    assert gpu.control.violations() == []
    gpu.ok("cuMemUnmap", address, GRANULE)
    gpu.violated("unmapped before the last use")


def test_freeing_plain_memory_waits_and_so_is_ordered(start: Start) -> None:
    gpu = start("oracle:on,streams:deferred")
    address, stream = gpu.alloc(), gpu.stream()
    used_block(gpu, stream, address)
    gpu.ok("cuMemFree_v2", address)
    again = gpu.alloc()
    gpu.oracle("alloc", again, 4096, gpu.stream())
    gpu.oracle("free", again, 4096, gpu.stream())


def test_the_legacy_stream_orders_blocking_streams(start: Start) -> None:
    gpu = start("oracle:on")
    address, blocking, free = gpu.mapped(), gpu.stream(0), gpu.stream()
    used_block(gpu, blocking, address)
    used_block(gpu, 0, address)
    used_block(gpu, blocking, address)
    used_block(gpu, free, address)
    gpu.violated("reused")


def test_off_means_nothing_is_kept(gpu: SimulatedDriver) -> None:
    assert gpu.library.simgpu_oracle_enabled() == 0
    address, first, second = gpu.mapped(), gpu.stream(), gpu.stream()
    used_block(gpu, first, address)
    gpu.oracle("alloc", address, 4096, second)
    assert gpu.control.violations() == []
