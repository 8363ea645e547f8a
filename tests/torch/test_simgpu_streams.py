"""Streams whose work is done later: order, and bytes, are what a real device guarantees."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from conftest import Run


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_streams_and_record_stream(run_on_simgpu: Run, allocator: Mapping[str, str], seed: int) -> None:
    run_on_simgpu(
        """
        import torch
        import pyalloc.simgpu

        simulation = pyalloc.simgpu.simulation()
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        results = []
        for step in range(20):
            host = torch.full((1 << 18,), step, dtype=torch.uint8).pin_memory()
            first = torch.empty(1 << 18, dtype=torch.uint8, device="cuda")
            first.copy_(host, non_blocking=True)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                second = torch.empty_like(first)
                second.copy_(first, non_blocking=True)
                first.record_stream(side)
                out = torch.empty(1 << 18, dtype=torch.uint8, pin_memory=True)
                out.copy_(second, non_blocking=True)
            results.append((step, out, host))
            del first, second
            simulation.step(step % 3)
        torch.cuda.synchronize()
        assert simulation.pending() == 0
        for step, out, _ in results:
            assert bool((out == step).all()), step
        assert not simulation.violations(), simulation.violations()
        """,
        streams="deferred",
        seed=seed,
        env=allocator,
    )


def test_work_waits_until_it_is_asked_for(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch
        import pyalloc.simgpu

        simulation = pyalloc.simgpu.simulation()
        device = torch.zeros(1000, device="cuda")
        torch.cuda.synchronize()
        event = torch.cuda.Event()
        for _ in range(5):
            device.add_(1)
        event.record()
        assert simulation.pending() >= 5, "kernels are work on their stream"
        event.synchronize()
        assert event.query() and simulation.pending() == 0
        torch.cuda.synchronize()
        # bytes of pageable memory are taken when the copy is enqueued
        host = torch.ones(1000)
        device.copy_(host, non_blocking=True)
        host.zero_()
        torch.cuda.synchronize()
        assert device.cpu().sum() == 1000
        simulation.launch(torch.cuda.current_stream().cuda_stream, writes=[(device.data_ptr(), 4000)], value=255)
        torch.cuda.synchronize()
        assert simulation.read(device.data_ptr(), 4) == b"\\xff" * 4
        """,
        streams="deferred",
    )


def test_elapsed_time_and_streams_api(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.ones(10, device="cuda").add_(1)
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 0
        low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
        assert high.priority < low.priority
        high.wait_stream(low)
        high.synchronize()
        assert high.query()
        """,
    )
