"""Streams and events: order, the three modes, what a query and a wait mean."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_driver import (
    GRANULE,
    INVALID_HANDLE,
    INVALID_VALUE,
    LEGACY,
    NOT_PERMITTED,
    NOT_READY,
    PER_THREAD,
    SUCCESS,
    SimulatedDriver,
    load_driver,
)

Start = Callable[..., SimulatedDriver]


def test_immediate_work_is_done_when_the_call_returns(gpu: SimulatedDriver) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    gpu.write(stream, address, value=9)
    assert gpu.control.read(address, 1) == b"\x09"
    assert gpu.call("cuStreamQuery", stream) == SUCCESS
    assert gpu.control.pending() == 0


def test_deferred_work_waits_for_a_synchronise(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream = gpu.mapped(), gpu.stream()
    gpu.write(stream, address, value=1)
    gpu.write(stream, address, value=2)
    assert gpu.control.pending() == 2
    assert gpu.control.read(address, 1) == b"\x00"
    gpu.ok("cuStreamSynchronize", stream)
    assert gpu.control.read(address, 1) == b"\x02"


def test_a_query_lets_deferred_work_go_on(start: Start) -> None:
    gpu = start("streams:deferred,seed:3")
    address, stream = gpu.mapped(), gpu.stream()
    for value in range(20):
        gpu.write(stream, address, value=value)
    answers = [gpu.call("cuStreamQuery", stream) for _ in range(200)]
    assert answers[0] == NOT_READY
    assert answers[-1] == SUCCESS
    assert answers == sorted(answers, reverse=True)


def test_step_completes_that_many(start: Start) -> None:
    gpu = start("streams:deferred")
    address = gpu.mapped()
    streams = [gpu.stream() for _ in range(3)]
    for stream in streams:
        for _ in range(4):
            gpu.write(stream, address)
    assert gpu.control.step(5) == 5
    assert gpu.control.pending() == 7
    assert gpu.control.step(-1) == 7


@given(seed=st.integers(0, 2**32), steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
def test_each_stream_is_first_in_first_out(seed: int, steps: list[tuple[int, bool]]) -> None:
    gpu = load_driver()
    gpu.reset(f"memory:64MiB,streams:deferred,seed:{seed}")
    gpu.ok("cuInit", 0)
    gpu.use_device(0)
    streams = [gpu.stream() for _ in range(3)]
    order: list[list[int]] = [[], [], []]
    sent = [0, 0, 0]
    for which, step in steps:
        number = sent[which]
        sent[which] += 1
        assert gpu.host_function(streams[which], lambda _, w=which, n=number: order[w].append(n)) == SUCCESS
        if step:
            gpu.control.step(1)
    gpu.ok("cuCtxSynchronize")
    assert order == [list(range(n)) for n in sent]
    gpu.keep.clear()


def test_the_seed_decides_the_order_between_streams(start: Start) -> None:
    def order(seed: int) -> list[int]:
        gpu = start(f"streams:deferred,seed:{seed}")
        done: list[int] = []
        for index in range(6):
            gpu.host_function(gpu.stream(), lambda _, i=index: done.append(i))
        gpu.control.step(-1)
        return done

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_synchronise_does_no_more_than_it_must(start: Start) -> None:
    gpu = start("streams:deferred")
    address = gpu.mapped()
    first, second = gpu.stream(), gpu.stream()
    gpu.write(first, address)
    gpu.write(second, address + 64)
    gpu.ok("cuStreamSynchronize", first)
    assert gpu.control.pending() == 1


def test_an_event_is_ready_when_the_work_before_it_is(start: Start) -> None:
    gpu = start("streams:deferred")
    gpu.control.set_stream_mode("deferred", 1)
    address, stream, event = gpu.mapped(), gpu.stream(), gpu.event()
    assert gpu.call("cuEventQuery", event) == SUCCESS  # never recorded
    for _ in range(8):
        gpu.write(stream, address)
    gpu.record(event, stream)
    assert gpu.call("cuEventQuery", event) == NOT_READY
    gpu.write(stream, address)
    gpu.ok("cuEventSynchronize", event)
    assert gpu.call("cuEventQuery", event) == SUCCESS


def test_recording_again_moves_the_event(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream, event = gpu.mapped(), gpu.stream(), gpu.event()
    gpu.record(event, stream)
    gpu.ok("cuEventSynchronize", event)
    for _ in range(8):
        gpu.write(stream, address)
    gpu.record(event, stream)
    assert gpu.call("cuEventQuery", event) == NOT_READY


def test_a_wait_orders_streams(start: Start) -> None:
    for seed in range(10):
        gpu = start(f"streams:deferred,seed:{seed}")
        address, first, second, event = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event()
        gpu.write(first, address, value=1)
        gpu.record(event, first)
        gpu.write(first, address + 64, value=1)
        gpu.wait(second, event)
        gpu.write(second, address, value=2)
        gpu.ok("cuStreamSynchronize", second)
        assert gpu.control.read(address, 1) == b"\x02"
        assert gpu.control.pending() == 1  # what first did after the record was not waited for


def test_waiting_on_a_never_recorded_event_is_no_wait(start: Start) -> None:
    gpu = start("streams:deferred")
    stream, event = gpu.stream(), gpu.event()
    gpu.wait(stream, event)
    assert gpu.control.pending() == 0


def test_a_wait_is_for_the_record_made_before_it(start: Start) -> None:
    gpu = start("streams:deferred")
    address, first, second, event = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event()
    gpu.record(event, first)
    gpu.wait(second, event)
    gpu.write(first, address)
    gpu.record(event, first)
    gpu.ok("cuEventDestroy_v2", event)
    gpu.ok("cuStreamSynchronize", second)
    assert gpu.control.pending() == 2


def test_a_long_chain_of_waits(start: Start) -> None:
    gpu = start("streams:deferred")
    streams = [gpu.stream() for _ in range(2)]
    event = gpu.event()
    for i in range(5000):
        gpu.record(event, streams[i % 2])
        gpu.wait(streams[1 - i % 2], event)
    gpu.ok("cuStreamSynchronize", streams[0])
    assert gpu.control.pending() <= 2


@pytest.mark.parametrize("flags", [0, 1])
def test_the_legacy_stream_waits_for_blocking_streams_only(start: Start, flags: int) -> None:
    gpu = start("streams:deferred")
    address, stream = gpu.mapped(), gpu.stream(flags)
    gpu.write(stream, address)
    gpu.write(0, address + 64)
    gpu.write(LEGACY, address + 64)
    gpu.ok("cuStreamSynchronize", 0)
    assert gpu.control.pending() == flags
    gpu.write(0, address)
    gpu.write(stream, address)
    gpu.ok("cuStreamSynchronize", stream)
    assert gpu.control.pending() == flags


def test_each_thread_has_its_own_default_stream(start: Start) -> None:
    gpu = start("streams:deferred")
    address = gpu.mapped()
    gpu.write(PER_THREAD, address)
    result: list[int] = []

    def other() -> None:
        gpu.use_device(0)
        gpu.ok("cuStreamSynchronize", PER_THREAD)
        result.append(gpu.control.pending())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert result == [1]
    gpu.ok("cuStreamSynchronize", PER_THREAD)
    assert gpu.control.pending() == 0


def test_a_destroyed_stream_finishes_its_work(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream, event = gpu.mapped(), gpu.stream(), gpu.event()
    gpu.write(stream, address, value=5)
    gpu.record(event, stream)
    gpu.ok("cuStreamDestroy_v2", stream)
    assert gpu.call("cuStreamQuery", stream) == INVALID_HANDLE
    gpu.ok("cuEventSynchronize", event)
    assert gpu.control.read(address, 1) == b"\x05"
    for _ in range(100):  # its place is taken by new streams; the event still holds
        gpu.ok("cuStreamDestroy_v2", gpu.stream())
        assert gpu.call("cuEventQuery", event) == SUCCESS


def test_wrong_handles_are_refused(gpu: SimulatedDriver) -> None:
    stream, event = gpu.stream(), gpu.event()
    gpu.ok("cuEventDestroy_v2", event)
    for bad in (event, stream, 0, 12345, 1 << 63):
        assert gpu.call("cuEventQuery", bad) == INVALID_HANDLE
        assert gpu.call("cuEventRecord", bad, stream) == INVALID_HANDLE
        assert gpu.call("cuEventDestroy_v2", bad) == INVALID_HANDLE
    for bad in (event, 12345, 1 << 63):
        assert gpu.call("cuStreamSynchronize", bad) == INVALID_HANDLE
        assert gpu.call("cuStreamDestroy_v2", bad) == INVALID_HANDLE
    out = ctypes.c_uint64()
    assert gpu.call("cuStreamCreate", ctypes.byref(out), 8) == INVALID_VALUE
    assert gpu.call("cuEventCreate", ctypes.byref(out), 64) == INVALID_VALUE


def test_host_functions_run_in_order_and_may_not_call_the_driver(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream = gpu.mapped(), gpu.stream()
    seen: list[object] = []
    gpu.write(stream, address, value=1)
    gpu.host_function(stream, lambda _: seen.append(gpu.call("cuStreamQuery", stream)))
    gpu.host_function(stream, lambda _: seen.append(gpu.control.read(address, 1)))
    gpu.write(stream, address, value=2)
    assert seen == []
    gpu.ok("cuStreamSynchronize", stream)
    assert seen == [NOT_PERMITTED, b"\x01"]


def test_threads_wait_for_a_host_function_in_another(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream, event = gpu.mapped(), gpu.stream(), gpu.event()
    entered, leave = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        leave.wait(30)

    gpu.host_function(stream, hold)
    gpu.write(stream, address, value=4)
    gpu.record(event, stream)
    results: list[int] = []

    def synchronise() -> None:
        gpu.use_device(0)
        results.append(gpu.call("cuStreamSynchronize", stream))

    runner = threading.Thread(target=synchronise)
    runner.start()
    assert entered.wait(30)
    assert gpu.call("cuEventQuery", event) == NOT_READY
    waiter = threading.Thread(target=synchronise)
    waiter.start()
    leave.set()
    for thread in (runner, waiter):
        thread.join(30)
        assert not thread.is_alive()
    assert results == [SUCCESS, SUCCESS]
    assert gpu.control.read(address, 1) == b"\x04"


def test_timed_work_ends_when_the_virtual_clock_says(start: Start) -> None:
    gpu = start("streams:timed")
    gpu.control.set_work_time(100.0)
    address, first, second, event = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event(0)
    begin, end = gpu.event(0), gpu.event(0)
    gpu.record(begin, first)
    gpu.write(first, address, value=1)
    gpu.write(first, address, value=2)
    gpu.record(event, first)
    gpu.wait(second, event)
    gpu.write(second, address, value=3)
    gpu.record(end, second)
    gpu.control.advance(150.0)
    assert gpu.control.read(address, 1) == b"\x01"
    assert gpu.call("cuEventQuery", event) == NOT_READY
    gpu.control.advance(50.0)
    assert gpu.control.read(address, 1) == b"\x02"
    assert gpu.call("cuEventQuery", event) == SUCCESS
    gpu.ok("cuStreamSynchronize", second)  # moves the clock to the end of the work
    assert gpu.control.clock() == pytest.approx(300.0)
    milliseconds = ctypes.c_float()
    gpu.ok("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
    assert milliseconds.value == pytest.approx(0.3)


def test_timed_streams_run_side_by_side(start: Start) -> None:
    gpu = start("streams:timed")
    gpu.control.set_work_time(50.0)
    address = gpu.mapped()
    streams = [gpu.stream() for _ in range(4)]
    for stream in streams:
        for _ in range(3):
            gpu.write(stream, address)
    gpu.ok("cuCtxSynchronize")
    assert gpu.control.clock() == pytest.approx(150.0)


def test_elapsed_time_needs_timing_and_completion(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream = gpu.mapped(), gpu.stream()
    first, second, untimed = gpu.event(0), gpu.event(0), gpu.event()
    out = ctypes.c_float()
    assert gpu.call("cuEventElapsedTime", ctypes.byref(out), first, second) == INVALID_HANDLE  # never recorded
    gpu.record(first, stream)
    gpu.write(stream, address)
    gpu.record(second, stream)
    gpu.record(untimed, stream)
    assert gpu.call("cuEventElapsedTime", ctypes.byref(out), first, second) == NOT_READY
    gpu.ok("cuStreamSynchronize", stream)
    gpu.ok("cuEventElapsedTime_v2", ctypes.byref(out), first, second)
    assert out.value >= 0
    assert gpu.call("cuEventElapsedTime", ctypes.byref(out), first, untimed) == INVALID_HANDLE


def test_free_waits_for_the_device(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream = gpu.alloc(), gpu.stream()
    gpu.write(stream, address)
    gpu.ok("cuMemFree_v2", address)
    assert gpu.control.pending() == 0


def test_stream_ordered_memory_is_freed_in_stream_order(start: Start) -> None:
    gpu = start("streams:deferred")
    stream = gpu.stream()
    address = gpu.out("cuMemAllocAsync", GRANULE, stream)
    gpu.write(stream, address)
    gpu.ok("cuMemFreeAsync", address, stream)
    assert gpu.control.used() == GRANULE
    gpu.ok("cuStreamSynchronize", stream)
    assert gpu.control.used() == 0


def test_many_threads_on_their_own_streams(gpu: SimulatedDriver) -> None:
    address = gpu.mapped(8)
    failures: list[str] = []

    def work(index: int) -> None:
        gpu.use_device(0)
        stream, event = gpu.stream(), gpu.event()
        at = address + index * GRANULE
        for value in range(100):
            gpu.write(stream, at, 64, value)
            gpu.record(event, stream)
            if gpu.call("cuEventSynchronize", event) != SUCCESS or gpu.control.read(at, 64) != bytes([value]) * 64:
                failures.append(f"thread {index} value {value}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_a_handle_may_come_back_an_identity_does_not(gpu: SimulatedDriver) -> None:
    first = gpu.stream()
    identity = ctypes.c_ulonglong()
    gpu.ok("cuStreamGetId", first, ctypes.byref(identity))
    gpu.ok("cuStreamDestroy_v2", first)
    second, other = gpu.stream(), ctypes.c_ulonglong()
    gpu.ok("cuStreamGetId", second, ctypes.byref(other))
    assert second == first
    assert other.value != identity.value
