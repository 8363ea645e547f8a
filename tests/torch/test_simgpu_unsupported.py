"""What is not simulated says so in one clear line and an exception: it neither crashes nor hangs."""

from __future__ import annotations

import pytest
from conftest import Run

PROGRAMS = {
    "cuFFT": "torch.fft.fft(torch.randn(64, device='cuda'))",
    "cuSOLVER": "torch.linalg.svd(torch.randn(8, 8, device='cuda'))",
    "cuSPARSE": "torch.eye(8).to_sparse_csr().cuda() @ torch.randn(8, 8, device='cuda')",
    "cuDNN": """
        torch.cuda.init()
        torch.backends.cudnn.enabled = True
        torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8, device="cuda"), torch.randn(4, 3, 3, 3, device="cuda"))
    """,
    "NCCL": """
        import os, torch.distributed as dist
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
        dist.all_reduce(torch.ones(4, device="cuda"))
    """,
}


@pytest.mark.parametrize("library", PROGRAMS)
def test_library_says_it_is_not_simulated(run_on_simgpu: Run, library: str) -> None:
    lines = [line.strip() for line in PROGRAMS[library].strip().splitlines()]
    body = "\n    ".join(lines)
    program = f"import torch\ntry:\n    {body}\nexcept RuntimeError as error:\n    print('raised', str(error)[:300])\n"
    done = run_on_simgpu(program)
    assert "raised" in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith(f"simgpu: {library} is not simulated")]
    assert len(said) == 1, done.stderr


def test_curand_host_library(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
        import ctypes, pathlib, torch
        place = pathlib.Path(torch.__file__).parents[1] / "nvidia" / "cu13" / "lib" / "libcurand.so.10"
        generator = ctypes.c_void_p()
        status = ctypes.CDLL(str(place)).curandCreateGenerator(ctypes.byref(generator), 100)
        print("status", status)
        """
    )
    assert done.stdout.split()[0] == "status"
    assert done.stdout.split()[1] != "0"
    assert "is not simulated" in done.stderr


def test_profiler_goes_without_kernels(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiled:
            torch.randn(100, device="cuda").add(1).cpu()
        assert any("aten::add" in event.key for event in profiled.key_averages())
        """
    )
