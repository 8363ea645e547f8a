"""Stream capture: what becomes a node, forks and joins, and every way to break a capture."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
from simulated_driver import (
    CAPTURE_IMPLICIT,
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURE_MERGE,
    CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED,
    CAPTURE_UNSUPPORTED,
    CAPTURE_WRONG_THREAD,
    CAPTURED_EVENT,
    GLOBAL,
    ILLEGAL_STATE,
    LEGACY,
    RELAXED,
    SUCCESS,
    THREAD_LOCAL,
    SimulatedDriver,
)

Start = Callable[..., SimulatedDriver]
NONE, ACTIVE, INVALIDATED = 0, 1, 2


def elsewhere(gpu: SimulatedDriver, function: Callable[[], object]) -> object:
    """What the function returns on another thread."""
    results: list[object] = []

    def run() -> None:
        gpu.use_device(0)
        results.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return results[0]


def invalid_end(gpu: SimulatedDriver, stream: int) -> None:
    """The capture was invalidated: ending it says so and gives no graph."""
    assert gpu.capture_status(stream) == INVALIDATED
    graph = ctypes.c_uint64(5)
    assert gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph)) == CAPTURE_INVALIDATED
    assert graph.value == 0
    assert gpu.capture_status(stream) == NONE


def exchange_mode(gpu: SimulatedDriver, mode: int) -> int:
    value = ctypes.c_int(mode)
    gpu.ok("cuThreadExchangeStreamCaptureMode", ctypes.byref(value))
    return value.value


def test_captured_work_is_recorded_not_done(gpu: SimulatedDriver) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    assert gpu.capture_status(stream) == NONE
    gpu.begin_capture(stream)
    assert gpu.capture_status(stream) == ACTIVE
    gpu.write(stream, address, value=1)
    gpu.ok("cuMemsetD8Async", address, 2, 16, stream)
    gpu.ok("cuMemcpyDtoDAsync_v2", address + 64, address, 16, stream)
    graph = gpu.end_capture(stream)
    assert gpu.capture_status(stream) == NONE
    assert gpu.node_types(graph) == [0, 2, 1]
    assert gpu.control.read(address, 80) == bytes(80)
    executable = gpu.instantiate(graph)
    gpu.ok("cuGraphLaunch", executable, stream)
    assert gpu.control.read(address + 64, 16) == b"\x02" * 16


def test_begin_and_end_in_the_wrong_state(gpu: SimulatedDriver) -> None:
    stream, graph = gpu.stream(), ctypes.c_uint64()
    assert gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph)) == ILLEGAL_STATE
    assert gpu.call("cuStreamBeginCapture_v2", 0, GLOBAL) == CAPTURE_UNSUPPORTED
    gpu.begin_capture(stream)
    assert gpu.call("cuStreamBeginCapture_v2", stream, GLOBAL) == ILLEGAL_STATE
    gpu.end_capture(stream)


def test_fork_and_join_through_events(gpu: SimulatedDriver) -> None:
    address, origin, side = gpu.mapped(), gpu.stream(), gpu.stream()
    fork, join = gpu.event(), gpu.event()
    gpu.begin_capture(origin)
    gpu.write(origin, address, value=1)
    gpu.record(fork, origin)
    gpu.wait(side, fork)
    assert gpu.capture_status(side) == ACTIVE
    gpu.write(side, address + 64, value=2)
    gpu.write(origin, address + 128, value=3)
    gpu.record(join, side)
    gpu.wait(origin, join)
    gpu.ok("cuMemcpyDtoDAsync_v2", address + 192, address + 64, 16, origin)
    graph = gpu.end_capture(origin)
    assert gpu.capture_status(side) == NONE
    count = ctypes.c_size_t()
    gpu.ok("cuGraphGetEdges", graph, None, None, ctypes.byref(count))
    assert count.value == 4
    roots = ctypes.c_size_t()
    gpu.ok("cuGraphGetRootNodes", graph, None, ctypes.byref(roots))
    assert roots.value == 1
    gpu.ok("cuGraphLaunch", gpu.instantiate(graph), side)
    assert gpu.control.read(address + 192, 1) == b"\x02"


def test_a_fork_that_is_not_joined(gpu: SimulatedDriver) -> None:
    address, origin, side, fork = gpu.mapped(), gpu.stream(), gpu.stream(), gpu.event()
    gpu.begin_capture(origin)
    gpu.record(fork, origin)
    gpu.wait(side, fork)
    gpu.write(side, address)
    graph = ctypes.c_uint64(5)
    assert gpu.call("cuStreamEndCapture", origin, ctypes.byref(graph)) == CAPTURE_UNJOINED
    assert graph.value == 0
    assert gpu.capture_status(side) == NONE


def test_ending_on_another_stream(gpu: SimulatedDriver) -> None:
    origin, side, fork, graph = gpu.stream(), gpu.stream(), gpu.event(), ctypes.c_uint64()
    gpu.begin_capture(origin)
    gpu.record(fork, origin)
    gpu.wait(side, fork)
    assert gpu.call("cuStreamEndCapture", side, ctypes.byref(graph)) == CAPTURE_UNMATCHED
    invalid_end(gpu, origin)


@pytest.mark.parametrize(
    ("mode", "result"), [(GLOBAL, CAPTURE_WRONG_THREAD), (THREAD_LOCAL, CAPTURE_WRONG_THREAD), (RELAXED, SUCCESS)]
)
def test_ending_on_another_thread(gpu: SimulatedDriver, mode: int, result: int) -> None:
    stream, graph = gpu.stream(), ctypes.c_uint64()
    gpu.begin_capture(stream, mode)
    assert elsewhere(gpu, lambda: gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph))) == result
    if result != SUCCESS:
        gpu.end_capture(stream)


def test_recording_on_a_capturing_stream_makes_a_captured_event(gpu: SimulatedDriver) -> None:
    stream, event = gpu.stream(), gpu.event()
    gpu.begin_capture(stream)
    gpu.record(event, stream)
    exchange_mode(gpu, RELAXED)
    assert gpu.call("cuEventQuery", event) == CAPTURED_EVENT
    exchange_mode(gpu, GLOBAL)
    invalid_end(gpu, stream)
    assert gpu.call("cuEventSynchronize", event) == CAPTURED_EVENT  # until it is recorded outside
    gpu.record(event, stream)
    assert gpu.call("cuEventSynchronize", event) == SUCCESS


@pytest.mark.parametrize("function", ["cuStreamQuery", "cuStreamSynchronize"])
def test_querying_a_capturing_stream_invalidates(gpu: SimulatedDriver, function: str) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    gpu.begin_capture(stream, RELAXED)
    assert gpu.call(function, stream) == CAPTURE_UNSUPPORTED
    assert gpu.call("cuMemsetD8Async", address, 0, 1, stream) == CAPTURE_INVALIDATED
    assert gpu.call("cuEventRecord", gpu.event(), stream) == CAPTURE_INVALIDATED
    invalid_end(gpu, stream)


def test_waiting_on_an_event_recorded_outside(gpu: SimulatedDriver) -> None:
    stream, outside, event = gpu.stream(), gpu.stream(), gpu.event()
    gpu.record(event, outside)
    gpu.begin_capture(stream)
    gpu.wait(stream, gpu.event())  # never recorded: no wait
    assert gpu.call("cuStreamWaitEvent", stream, event, 0) == CAPTURE_ISOLATION
    invalid_end(gpu, stream)


def test_two_captures_may_not_meet(gpu: SimulatedDriver) -> None:
    first, second, event = gpu.stream(), gpu.stream(), gpu.event()
    gpu.begin_capture(first)
    gpu.begin_capture(second)
    gpu.record(event, first)
    assert gpu.call("cuStreamWaitEvent", second, event, 0) == CAPTURE_MERGE
    invalid_end(gpu, first)
    invalid_end(gpu, second)


UNSAFE: list[tuple[str, Callable[[SimulatedDriver], int]]] = [
    ("event query", lambda gpu: gpu.call("cuEventQuery", gpu.event())),
    ("event synchronise", lambda gpu: gpu.call("cuEventSynchronize", gpu.event())),
    ("allocation", lambda gpu: gpu.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 512)),
    ("pinned allocation", lambda gpu: gpu.call("cuMemHostAlloc", ctypes.byref(ctypes.c_uint64()), 512, 0)),
    ("context synchronise", lambda gpu: gpu.call("cuCtxSynchronize")),
    ("stream synchronise", lambda gpu: gpu.call("cuStreamSynchronize", gpu.stream())),
    ("blocking copy", lambda gpu: gpu.call("cuMemcpyDtoD_v2", 0, 0, 0)),
]


@pytest.mark.parametrize(("name", "unsafe"), UNSAFE, ids=[name for name, _ in UNSAFE])
def test_unsafe_calls_fail_in_global_mode_unless_relaxed(
    gpu: SimulatedDriver, name: str, unsafe: Callable[[SimulatedDriver], int]
) -> None:
    stream = gpu.stream()
    gpu.begin_capture(stream, GLOBAL)
    assert exchange_mode(gpu, RELAXED) == GLOBAL
    assert unsafe(gpu) == SUCCESS
    assert exchange_mode(gpu, GLOBAL) == RELAXED
    assert gpu.capture_status(stream) == ACTIVE
    assert unsafe(gpu) == CAPTURE_UNSUPPORTED
    invalid_end(gpu, stream)
    gpu.begin_capture(stream, GLOBAL)
    assert elsewhere(gpu, lambda: unsafe(gpu)) == CAPTURE_UNSUPPORTED  # any thread
    invalid_end(gpu, stream)


def test_other_threads_are_free_in_thread_local_mode(gpu: SimulatedDriver) -> None:
    stream = gpu.stream()
    gpu.begin_capture(stream, THREAD_LOCAL)
    assert elsewhere(gpu, lambda: gpu.call("cuCtxSynchronize")) == SUCCESS
    assert gpu.capture_status(stream) == ACTIVE
    assert gpu.call("cuCtxSynchronize") == CAPTURE_UNSUPPORTED
    invalid_end(gpu, stream)


def test_everything_is_allowed_in_relaxed_mode(gpu: SimulatedDriver) -> None:
    stream = gpu.stream()
    gpu.begin_capture(stream, RELAXED)
    for _, unsafe in UNSAFE:
        assert unsafe(gpu) == SUCCESS
    gpu.end_capture(stream)


def test_mapping_memory_does_not_disturb_a_capture(gpu: SimulatedDriver) -> None:
    stream = gpu.stream()
    gpu.begin_capture(stream)
    gpu.mapped(2)
    assert gpu.capture_status(stream) == ACTIVE
    gpu.end_capture(stream)


def test_legacy_work_beside_a_capturing_blocking_stream(gpu: SimulatedDriver) -> None:
    address, blocking, free = gpu.mapped(), gpu.stream(0), gpu.stream()
    gpu.begin_capture(free)
    gpu.ok("cuMemsetD8Async", address, 0, 1, LEGACY)  # a non-blocking stream is not disturbed
    gpu.end_capture(free)
    for attempt in (
        lambda: gpu.call("cuMemsetD8Async", address, 0, 1, LEGACY),
        lambda: gpu.call("cuMemsetD8Async", address, 0, 1, 0),
        lambda: gpu.call("cuEventRecord", gpu.event(), LEGACY),
        lambda: gpu.call("cuStreamWaitEvent", LEGACY, gpu.event(), 0),
    ):
        gpu.begin_capture(blocking)
        assert attempt() == CAPTURE_IMPLICIT
        invalid_end(gpu, blocking)


def test_asking_the_legacy_stream_disturbs_nothing(gpu: SimulatedDriver) -> None:
    blocking, status = gpu.stream(0), ctypes.c_int()
    gpu.begin_capture(blocking)
    assert gpu.call("cuStreamIsCapturing", LEGACY, ctypes.byref(status)) == CAPTURE_IMPLICIT
    assert gpu.capture_status(blocking) == ACTIVE
    gpu.end_capture(blocking)


def test_capture_information(gpu: SimulatedDriver) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    nodes, edges, count = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_void_p(), ctypes.c_size_t()

    def info() -> tuple[int, int, int]:
        gpu.ok(
            "cuStreamGetCaptureInfo_v3",
            stream,
            *(ctypes.byref(out) for out in (status, number, graph, nodes, edges, count)),
        )
        return status.value, number.value, count.value

    assert info() == (NONE, 0, 0)
    gpu.begin_capture(stream)
    first = info()
    assert first[0] == ACTIVE
    assert first[1] > 0
    assert first[2] == 0
    gpu.write(stream, address)
    assert info() == (ACTIVE, first[1], 1)
    kind = ctypes.c_int(-1)
    gpu.ok("cuGraphNodeGetType", nodes[0], ctypes.byref(kind))
    assert kind.value == 0
    in_capture = graph.value
    assert gpu.end_capture(stream) == in_capture
    gpu.begin_capture(stream)
    assert info()[1] != first[1]
    gpu.end_capture(stream)


def test_dependencies_can_be_set_by_hand(gpu: SimulatedDriver) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    gpu.begin_capture(stream)
    gpu.write(stream, address)
    gpu.ok("cuStreamUpdateCaptureDependencies_v2", stream, None, None, 0, 1)
    gpu.write(stream, address)
    graph, count = gpu.end_capture(stream), ctypes.c_size_t()
    gpu.ok("cuGraphGetRootNodes", graph, None, ctypes.byref(count))
    assert count.value == 2
    assert gpu.call("cuStreamUpdateCaptureDependencies_v2", stream, None, None, 0, 1) == ILLEGAL_STATE


def test_capturing_into_a_graph(gpu: SimulatedDriver) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    graph = gpu.out("cuGraphCreate", 0)
    for _ in range(2):
        gpu.ok("cuStreamBeginCaptureToGraph", stream, graph, None, None, 0, GLOBAL)
        gpu.write(stream, address)
        assert gpu.end_capture(stream) == graph
    assert gpu.node_types(graph) == [0, 0]


def test_a_callback_cannot_be_captured_a_host_function_can(gpu: SimulatedDriver) -> None:
    stream, calls = gpu.stream(), []
    gpu.begin_capture(stream)
    assert gpu.host_function(stream, lambda _: calls.append(1)) == SUCCESS
    graph = gpu.end_capture(stream)
    executable = gpu.instantiate(graph)
    gpu.ok("cuGraphDestroy", graph)
    for _ in range(3):
        gpu.ok("cuGraphLaunch", executable, stream)
    assert calls == [1, 1, 1]
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)
    gpu.begin_capture(stream)
    assert gpu.call("cuStreamAddCallback", stream, callback, None, 0) == CAPTURE_UNSUPPORTED
    invalid_end(gpu, stream)
    gpu.ok("cuStreamAddCallback", stream, callback, None, 0)
