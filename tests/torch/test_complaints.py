"""Complaints about other allocators (tools/complaints.py) that belong to no other file."""

from __future__ import annotations

import textwrap

import pytest
from bridge_program import program
from conftest import Run


@pytest.mark.complaint(2)
def test_cudnn_benchmark(run_on_simgpu: Run) -> None:
    # The simulated GPU has no cuDNN: there test_bridge_virtuals.py asks as cuDNN does, and this runs beside it.
    run_on_simgpu(
        program(
            """
            torch.backends.cudnn.benchmark = True
            layer = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
            images = torch.randn(8, 16, 64, 64, device="cuda")
            for _ in range(3):
                assert layer(images).shape == (8, 32, 64, 64)
            layer(images).mean().backward()
            assert layer.weight.grad.shape == layer.weight.shape
            torch.cuda.synchronize()
            """
        )
    )


@pytest.mark.complaint(3)
def test_out_of_memory_is_torch_s_own_error(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            free, total = torch.cuda.mem_get_info()
            kept = torch.empty(total // 2, dtype=torch.uint8, device="cuda")
            for size in (total, total // 2 + (1 << 30)):
                try:
                    torch.empty(size, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError as error:
                    assert isinstance(error, torch.cuda.OutOfMemoryError) and isinstance(error, RuntimeError)
                    assert "CUDA out of memory. Tried to allocate" in str(error), error
                else:
                    raise AssertionError("more than there is")
            # A handler that halves its batch goes on.
            assert torch.empty(1 << 20, device="cuda").data_ptr() != 0
            assert torch.empty(total // 4, dtype=torch.uint8, device="cuda").data_ptr() != 0
            """
        )
    )


# Which calls initialise CUDA, and with it torch's allocator, is torch's own affair; these do in 2.11 to 2.14.
BLOCKING = (
    "torch.cuda.init()",
    "torch.cuda.get_device_name()",
    "torch.cuda.get_device_capability()",
    "torch.cuda.mem_get_info()",
    "torch.cuda.current_device()",
    "torch.empty(0, device='cuda')",
    "torch.zeros(1).pin_memory()",
    "torch.cuda.memory._record_memory_history()",
)
HARMLESS = (
    "torch.cuda.is_available()",
    "torch.cuda.device_count()",
    "torch.manual_seed(1)",
    "torch.cuda.manual_seed_all(1)",
    "torch.cuda.memory_allocated()",
    "torch.cuda.get_allocator_backend()",
    "torch.cuda.graph_pool_handle()",
)


@pytest.mark.complaint(5)
def test_enabling_after_other_calls(run_on_simgpu: Run) -> None:
    body = """
        import os, torch, pyalloc
        from pyalloc import bridge_build
        bridge_build.ensure_bridge()

        def in_child(call, expected):
            child = os.fork()
            if child == 0:
                exec(call)
                try:
                    result = pyalloc.enable(bridge="require")
                    torch.empty(1, device="cuda")
                    found = torch.cuda.get_allocator_backend()
                except pyalloc.StateError as error:
                    text = str(error)
                    assert "CUDA is already initialised" in text and "before the first use of CUDA" in text, text
                    assert "PYALLOC_CONF=enable:True" in text and 'mode="pools"' in text, text
                    assert torch.empty(1, device="cuda").is_cuda, "torch goes on with its own"
                    assert pyalloc.enable(mode="pools")     # the remedy that works now
                    with pyalloc.pool("kv"):
                        cache = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
                    assert pyalloc.pools()[2].requested == 30 << 20
                    found = "refused"
                if found != expected:
                    print(f"after {call}: {found}, not {expected}", flush=True)
                os._exit(found != expected)
            assert os.waitpid(child, 0)[1] == 0, call
        """
    calls = "".join(f"\nin_child({call!r}, 'refused')" for call in BLOCKING)
    calls += "".join(f"\nin_child({call!r}, 'pyalloc')" for call in HARMLESS)
    run_on_simgpu(textwrap.dedent(body) + calls)


@pytest.mark.complaint(49)
def test_adapters_beside_a_model_that_fills_the_device(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(bridge="require")
        import torch
        MIB = 1 << 20
        first = torch.empty(1, device="cuda")                 # the reserve is mapped with the device's first block
        free, total = torch.cuda.mem_get_info()
        with pyalloc.pool("weights"):
            model = [torch.empty(1 << 24, device="cuda") for _ in range(int(free * 0.95) // (64 * MIB))]
        with pyalloc.pool("kv"):
            rest = torch.cuda.mem_get_info()[0] // (2 * MIB) * (2 * MIB)
            cache = torch.empty(rest, dtype=torch.uint8, device="cuda")
        assert torch.cuda.mem_get_info()[0] < 2 * MIB, "the device is full"

        def load(rank):
            with pyalloc.pool("lora"):
                return [torch.empty(2 * 4096 * rank, dtype=torch.bfloat16, device="cuda") for _ in range(2 * 32)]

        before = pyalloc.device_stats(0)
        resident = {}
        for turn in range(36):                                 # twelve adapters of 24 MiB in turns, two resident
            adapter = turn % 12
            if len(resident) == 2:
                del resident[min(resident, key=lambda one: resident[one][0])]
            resident[adapter] = (turn, load(24))
        assert len(resident) == 2
        after = pyalloc.device_stats(0)
        assert after["num_device_alloc"] == before["num_device_alloc"], "loads took memory from the driver"
        assert after["lora_overflows"] == 0
        # One more than the reserve holds is an error, and what is loaded stays.
        try:
            load(24)
        except torch.OutOfMemoryError as error:
            assert "lora" in str(error), error
        else:
            raise AssertionError("three adapters of 24 MiB in a reserve of 64")
        assert pyalloc.pools()[4].requested == 2 * 24 * MIB
        """
    )


@pytest.mark.complaint(50)
def test_a_long_request_beside_a_full_kv_cache(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(bridge="require", kv_limit="6GiB")
        import torch
        MIB = 1 << 20
        with pyalloc.pool("weights"):
            model = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        cache = []
        try:
            while True:                                        # an engine that takes whatever it gets
                with pyalloc.pool("kv"):
                    cache.append(torch.empty(128 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            assert "kv" in str(error) and "limit" in str(error), error
        assert len(cache) * 128 * MIB == 6 << 30, "the cache has its limit, and no more"

        tokens, width, rank = 16384, 4096, 64
        @pyalloc.pool("workspace")
        def request():
            hidden = torch.empty(tokens, width, dtype=torch.bfloat16, device="cuda")
            down = torch.empty(width, rank, dtype=torch.bfloat16, device="cuda")
            shrunk = hidden @ down
            return (hidden + shrunk @ down.T).shape

        for _ in range(3):
            assert request() == (tokens, width)
        """
    )


@pytest.mark.complaint(37)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["allocator", "pools"])
def test_memory_stays_mapped_under_running_kernels(run_on_simgpu: Run, mode: str, seed: int) -> None:
    run_on_simgpu(
        f"""
        import pyalloc
        assert pyalloc.enable(mode="{mode}", lora_reserve=0, decay=0)
        import torch
        streams = [torch.cuda.Stream() for _ in range(3)]
        for turn in range(200):                      # nothing waits; memory is short, and goes back time and again
            with pyalloc.pool("kv"), torch.cuda.stream(streams[turn % 3]):
                x = torch.randn(2048, 7168, dtype=torch.bfloat16, device="cuda")
                y = x + x
                x.record_stream(streams[(turn + 1) % 3])
            del x, y
            if turn % 7 == 0:
                pyalloc.empty_cache()
        torch.cuda.synchronize()
        """,
        memory="256MiB",
        streams="deferred",
        seed=seed,
        oracle=True,
    )


@pytest.mark.complaint(43)
def test_libraries_that_share_memory_by_themselves(run_on_simgpu: Run) -> None:
    # cudaIpcGetMemHandle takes no mapped memory: refused, and nothing breaks. Such a library's buffers can come from a
    # MemPool of an allocator that calls cudaMalloc.
    run_on_simgpu(
        program(
            """
            import ctypes
            driver = ctypes.CDLL("libcuda.so.1")
            handle = ctypes.create_string_buffer(64)

            def share(tensor):
                return driver.cuIpcGetMemHandle(handle, ctypes.c_uint64(tensor.data_ptr()))

            @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
            def allocate(size, device, stream):
                address = ctypes.c_uint64()
                assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
                return address.value

            @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
            def free(pointer, size, device, stream):
                assert driver.cuMemFree_v2(ctypes.c_uint64(pointer)) == 0

            ours = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
            assert share(ours) != 0
            assert torch.arange(1000).cuda().sum().is_cuda
            torch.cuda.synchronize()
            addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in (allocate, free)]
            pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(*addresses))
            with torch.cuda.use_mem_pool(pool):
                theirs = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
            assert share(theirs) == 0 and bytes(handle) != bytes(64)
            del theirs, pool
            """
        )
    )
