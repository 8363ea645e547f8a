"""Graphs: built by hand, cloned, updated, launched; and the objects they keep alive."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from simulated_driver import (
    CAPTURED_EVENT,
    GRANULE,
    HOST_FUNCTION,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    NOT_READY,
    NOT_SUPPORTED,
    SUCCESS,
    SimulatedDriver,
    handles,
)

Start = Callable[..., SimulatedDriver]
UPDATE_FAILURE = 910


class MemsetParams(ctypes.Structure):
    _fields_ = (
        ("target", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def memset_node(gpu: SimulatedDriver, graph: int, address: int, value: int, after: list[int], size: int = 16) -> int:
    context = gpu.use_device(0)
    params = MemsetParams(address, 0, value, 1, size, 1)
    node = ctypes.c_uint64()
    gpu.ok(
        "cuGraphAddMemsetNode",
        ctypes.byref(node),
        graph,
        handles(after),
        len(after),
        ctypes.byref(params),
        context,
    )
    return node.value


def test_nodes_run_after_their_dependencies(gpu: SimulatedDriver) -> None:
    address, graph = gpu.mapped(), gpu.out("cuGraphCreate", 0)
    first = memset_node(gpu, graph, address, 1, [])
    second = memset_node(gpu, graph, address, 2, [])
    memset_node(gpu, graph, address, 3, [first])
    gpu.ok("cuGraphAddDependencies", graph, handles([second]), handles([first]), 1)  # second, first, third
    gpu.ok("cuGraphLaunch", gpu.instantiate(graph), 0)
    assert gpu.control.read(address, 1) == b"\x03"
    gpu.ok("cuGraphAddDependencies", graph, handles([first]), handles([second]), 1)
    out = ctypes.c_uint64()
    assert gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(out), graph, 0) == INVALID_VALUE  # a cycle


def test_a_launch_takes_its_place_in_the_stream(start: Start) -> None:
    gpu = start("streams:deferred")
    address, stream, event = gpu.mapped(), gpu.stream(), gpu.event()
    gpu.begin_capture(stream)
    gpu.ok("cuMemcpyDtoDAsync_v2", address + 64, address, 16, stream)
    executable = gpu.instantiate(gpu.end_capture(stream))
    gpu.write(stream, address, value=1)
    gpu.ok("cuGraphLaunch", executable, stream)
    gpu.write(stream, address, value=2)
    gpu.record(event, stream)
    assert gpu.call("cuEventQuery", event) == NOT_READY
    gpu.ok("cuStreamSynchronize", stream)
    assert gpu.control.read(address + 64, 1) == b"\x01"
    gpu.ok("cuGraphLaunch", executable, stream)
    gpu.ok("cuGraphExecDestroy", executable)  # what was launched goes on
    gpu.ok("cuStreamSynchronize", stream)
    assert gpu.control.read(address + 64, 1) == b"\x02"


def test_a_launch_reads_the_memory_of_its_time(gpu: SimulatedDriver) -> None:
    address, stream, pinned = gpu.mapped(), gpu.stream(), gpu.pinned(8)
    gpu.begin_capture(stream)
    gpu.ok("cuMemcpyHtoDAsync_v2", address, ctypes.addressof(pinned), 8, stream)
    executable = gpu.instantiate(gpu.end_capture(stream))
    for text in (b"first...", b"second.."):
        pinned[:] = text
        gpu.ok("cuGraphLaunch", executable, stream)
        assert gpu.control.read(address, 8) == text


def test_a_launch_after_its_memory_was_unmapped_is_a_fault(gpu: SimulatedDriver) -> None:
    address, stream = gpu.mapped(), gpu.stream()
    gpu.begin_capture(stream)
    gpu.ok("cuMemsetD8Async", address, 1, 16, stream)
    executable = gpu.instantiate(gpu.end_capture(stream))
    gpu.ok("cuGraphLaunch", executable, stream)
    gpu.ok("cuMemUnmap", address, GRANULE)
    assert gpu.call("cuGraphLaunch", executable, stream) == ILLEGAL_ADDRESS
    gpu.violated("not mapped")


def test_a_clone_is_independent(gpu: SimulatedDriver) -> None:
    address, graph = gpu.mapped(), gpu.out("cuGraphCreate", 0)
    memset_node(gpu, graph, address, 1, [])
    clone = gpu.out("cuGraphClone", graph)
    memset_node(gpu, graph, address, 2, [])
    assert len(gpu.node_types(clone)) == 1
    gpu.ok("cuGraphDestroy", graph)
    gpu.ok("cuGraphLaunch", gpu.instantiate(clone), 0)
    assert gpu.control.read(address, 1) == b"\x01"
    assert gpu.call("cuGraphDestroy", graph) == INVALID_VALUE


def test_a_child_graph_runs_inside_its_parent(gpu: SimulatedDriver) -> None:
    address, child, graph = gpu.mapped(), gpu.out("cuGraphCreate", 0), gpu.out("cuGraphCreate", 0)
    memset_node(gpu, child, address, 7, [])
    node = gpu.out("cuGraphAddChildGraphNode", graph, None, 0, child)
    memset_node(gpu, graph, address + 1, 9, [node], size=1)
    gpu.ok("cuGraphDestroy", child)
    assert gpu.node_types(graph) == [4, 2]
    gpu.ok("cuGraphLaunch", gpu.instantiate(graph), 0)
    assert gpu.control.read(address, 3) == b"\x07\x09\x07"


def test_launching_into_a_capture(gpu: SimulatedDriver) -> None:
    address, stream, graph = gpu.mapped(), gpu.stream(), gpu.out("cuGraphCreate", 0)
    memset_node(gpu, graph, address, 4, [])
    inner = gpu.instantiate(graph)
    gpu.begin_capture(stream)
    gpu.ok("cuGraphLaunch", inner, stream)
    outer = gpu.instantiate(gpu.end_capture(stream))
    assert gpu.control.read(address, 1) == b"\x00"
    gpu.ok("cuGraphLaunch", outer, stream)
    assert gpu.control.read(address, 1) == b"\x04"


def test_update_needs_the_same_shape(gpu: SimulatedDriver) -> None:
    address, graphs = gpu.mapped(), [gpu.out("cuGraphCreate", 0) for _ in range(3)]
    memset_node(gpu, graphs[0], address, 1, [])
    memset_node(gpu, graphs[1], address, 2, [])
    executable = gpu.instantiate(graphs[0])
    info = (ctypes.c_uint64 * 3)()
    gpu.ok("cuGraphExecUpdate_v2", executable, graphs[1], info)
    gpu.ok("cuGraphLaunch", executable, 0)
    assert gpu.control.read(address, 1) == b"\x02"
    assert gpu.call("cuGraphExecUpdate_v2", executable, graphs[2], info) == UPDATE_FAILURE


def test_event_nodes_record_at_launch(start: Start) -> None:
    gpu = start("streams:deferred")
    stream, event = gpu.stream(), gpu.event()
    gpu.begin_capture(stream)
    gpu.ok("cuEventRecordWithFlags", event, stream, 1)  # external: a node, and no captured event
    executable = gpu.instantiate(gpu.end_capture(stream))
    assert gpu.call("cuEventQuery", event) == SUCCESS
    for _ in range(8):
        gpu.host_function(stream, lambda _: None)
    gpu.ok("cuGraphLaunch", executable, stream)
    assert gpu.call("cuEventQuery", event) in (NOT_READY, CAPTURED_EVENT)
    gpu.ok("cuEventSynchronize", event)
    assert gpu.control.pending() == 0


def test_user_objects_live_as_long_as_a_graph_needs_them(gpu: SimulatedDriver) -> None:
    destroyed: list[int] = []
    destroy = HOST_FUNCTION(lambda pointer: destroyed.append(pointer or 0))
    out = ctypes.c_uint64()
    gpu.ok("cuUserObjectCreate", ctypes.byref(out), ctypes.c_void_p(42), destroy, 1, 1)
    graph = gpu.out("cuGraphCreate", 0)
    gpu.ok("cuGraphRetainUserObject", graph, out.value, 1, 1)  # moves the caller's reference
    executable = gpu.instantiate(graph)
    gpu.ok("cuGraphDestroy", graph)
    assert destroyed == []
    gpu.ok("cuGraphExecDestroy", executable)
    assert destroyed == [42]
    assert gpu.call("cuUserObjectRelease", out.value, 1) == INVALID_VALUE


def test_dot_text(gpu: SimulatedDriver, tmp_path: Path) -> None:
    address, graph = gpu.mapped(), gpu.out("cuGraphCreate", 0)
    memset_node(gpu, graph, address, 1, [memset_node(gpu, graph, address, 2, [])])
    gpu.ok("cuGraphDebugDotPrint", graph, str(tmp_path / "graph.dot").encode(), 0)
    assert "n0 -> n1" in (tmp_path / "graph.dot").read_text()


def test_wrong_graph_handles(gpu: SimulatedDriver) -> None:
    graph, other = gpu.out("cuGraphCreate", 0), gpu.out("cuGraphCreate", 0)
    node = memset_node(gpu, other, gpu.mapped(), 1, [])
    out = ctypes.c_uint64()
    assert gpu.call("cuGraphAddEmptyNode", ctypes.byref(out), graph, handles([node]), 1) == INVALID_VALUE
    assert gpu.call("cuGraphLaunch", graph, 0) == INVALID_VALUE
    assert gpu.call("cuGraphDestroy", 1234) == INVALID_VALUE
    params = (ctypes.c_int * 64)()
    params[0] = 13  # a conditional node
    assert gpu.call("cuGraphAddNode_v2", ctypes.byref(out), graph, None, None, 0, params) == NOT_SUPPORTED
    gpu.ok("cuGraphDestroyNode", node)
    assert gpu.node_types(other) == []
