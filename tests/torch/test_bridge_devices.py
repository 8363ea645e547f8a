"""Several devices and streams through the bridge: every block on the device and stream torch means."""

from __future__ import annotations

import pytest
from bridge_program import program
from conftest import Run


@pytest.mark.parametrize("streams", ["immediate", "deferred"])
def test_two_devices(run_on_simgpu: Run, streams: str) -> None:
    run_on_simgpu(
        program(
            """
            data = torch.arange(1 << 20, dtype=torch.int32)
            first = data.to("cuda:0")
            second = first.to("cuda:1")             # memcpyAsync between devices
            third = torch.empty_like(first).copy_(second)
            assert torch.equal(second.cpu(), data) and torch.equal(third.cpu(), data)
            assert [torch.cuda.memory_allocated(device) for device in (0, 1)] == [8 << 20, 4 << 20]

            with torch.cuda.device(1):
                other = torch.empty(1000, dtype=torch.uint8, device="cuda")
                empty = torch.empty(0, device="cuda")
            assert (other.get_device(), empty.get_device()) == (1, 1)
            pointer = M.caching_allocator_alloc(1 << 20, device=1)
            assert torch.cuda.memory_allocated(1) == (4 << 20) + 1024 + (1 << 20)
            M.caching_allocator_delete(pointer)     # freed with another device current
            del first, third
            assert [torch.cuda.memory_allocated(device) for device in (0, 1)] == [0, (4 << 20) + 1024]
            assert {segment["device"] for segment in torch.cuda.memory_snapshot()} <= {0, 1}
            assert [len(M._snapshot()["device_traces"])] == [2]

            side = torch.cuda.Stream(device=1)
            second.record_stream(side)
            del second, other
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            torch.cuda.set_per_process_memory_fraction(0.5, 1)
            assert [M.get_per_process_memory_fraction(device) for device in (0, 1)] == [1.0, 0.5]
            raises(Exception, "", lambda: torch.cuda.memory_stats(7))
            """
        ),
        devices=2,
        streams=streams,
    )


def test_two_devices_that_cannot_reach_each_other_by_kernel(run_on_simgpu: Run) -> None:
    """Copies that convert, and copies of views, run a kernel on peer memory or go through temporaries."""
    run_on_simgpu(
        program(
            """
            data = torch.arange(4096, dtype=torch.float32).reshape(64, 64)
            first = data.to("cuda:0")
            moved = first.to("cuda:1")
            assert torch.equal(moved.cpu(), data)
            assert torch.cuda.can_device_access_peer(0, 1) in (True, False)
            for target in (first.t(), first[::2], first.half()):
                assert target.to("cuda:1").shape == target.shape
            """
        ),
        devices=2,
    )


def test_blocks_belong_to_the_stream_they_were_made_on(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
            (segment,) = [s for s in torch.cuda.memory_snapshot() if s["allocated_size"]]
            assert segment["stream"] == 0, "all streams share the segments of large blocks"
            place = x.data_ptr()
            del x
            with torch.cuda.stream(side):
                y = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
            assert y.data_ptr() == place, "reused at once on its own stream"
            counts = []
            for _ in range(100):
                with torch.cuda.stream(side):
                    z = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
                    del z
                stats = torch.cuda.memory_stats()
                counts.append((stats["num_device_alloc"], stats["num_device_free"]))
            assert len(set(counts)) == 1, "after the first, a warm loop makes no driver call"
            """
        )
    )


def test_a_stream_torch_does_not_own(run_on_simgpu: Run) -> None:
    """torch may not outlive it: the bridge says so, and the memory can be had again after the stream is destroyed."""
    run_on_simgpu(
        program(
            """
            import ctypes
            torch.cuda.init()
            runtime = ctypes.CDLL(None)             # the simulated one is there, the real one a dependency of torch
            if not hasattr(runtime, "cudaStreamCreateWithFlags"):
                runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
            handle = ctypes.c_void_p()
            assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
            stream = torch.cuda.ExternalStream(handle.value)
            with torch.cuda.stream(stream):
                x = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
                x.zero_()
                y = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
                y.record_stream(torch.cuda.default_stream())
            del x, y
            assert runtime.cudaStreamDestroy(handle) == 0
            z = torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
            assert z.data_ptr() != 0
            """
        ),
        streams="deferred",
    )


def test_eight_threads(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import random, threading
            torch.empty(1, device="cuda")
            failures = []

            def work(seed):
                try:
                    choose = random.Random(seed)
                    stream = torch.cuda.Stream() if seed % 2 else torch.cuda.default_stream()
                    held = []
                    with torch.cuda.stream(stream):
                        for _ in range(300):
                            size = choose.choice([1, 600, 70_000, 1 << 20, 5 << 20])
                            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                            if choose.random() < 0.3:
                                held[-1].record_stream(torch.cuda.default_stream())
                            if len(held) > 20:
                                held.pop(choose.randrange(len(held)))
                except Exception as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == 0
            stats = torch.cuda.memory_stats()
            assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 8 * 300 + 1
            """
        ),
        streams="deferred",
    )
