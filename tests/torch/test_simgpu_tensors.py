"""Tensors, copies and memory figures on the simulated GPU."""

from __future__ import annotations

from collections.abc import Mapping

from conftest import Run


def test_copies_keep_their_bytes(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch

        for dtype in (torch.uint8, torch.float32, torch.bfloat16, torch.int64):
            for count in (1, 1000, 1 << 20):
                source = torch.arange(count).to(dtype)
                device = source.cuda()
                assert device.is_cuda and torch.equal(device.cpu(), source), (dtype, count)
                assert torch.equal(device.clone().cpu(), source), "device to device"
                device.zero_()
        wide = torch.arange(12.0).reshape(3, 4).cuda()
        assert wide[1].cpu().tolist() == [4.0, 5.0, 6.0, 7.0]
        filled = torch.zeros(1000, dtype=torch.uint8, device="cuda")
        pinned = torch.arange(1000, dtype=torch.uint8).pin_memory()
        filled.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(filled.cpu(), pinned)
        """,
        env=allocator,
    )


def test_modules_run(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch
        import torch.nn.functional as F
        import pyalloc.simgpu

        x = torch.randn(4, 16, 64, device="cuda", dtype=torch.bfloat16)
        assert F.layer_norm(x, (64,)).shape == x.shape
        assert F.softmax(x, -1).shape == x.shape
        shape = (2, 8, 128, 64)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.sum().backward()
        assert q.grad.shape == q.shape
        images = torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32, device="cuda"))
        assert images.shape == (2, 8, 30, 30) and torch.backends.cudnn.enabled != pyalloc.simgpu.active()
        rnn = torch.nn.LSTM(32, 64, 2).cuda()
        assert rnn(torch.randn(5, 2, 32, device="cuda"))[0].shape == (5, 2, 64)
        table = torch.nn.Embedding(1000, 64).cuda()
        assert table(torch.randint(1000, (2, 7), device="cuda")).shape == (2, 7, 64)
        for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
            optimizer = make(model.parameters(), lr=1e-3)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(16, 64, device="cuda")).square().mean().backward()
                optimizer.step()
        a, b = torch.randn(64, 32, device="cuda"), torch.randn(32, 16, device="cuda")
        assert (a @ b).shape == (64, 16) and torch.bmm(a[None], b[None]).shape == (1, 64, 16)
        """,
        env=allocator,
    )


def test_mem_get_info_is_true_to_use(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch
        import pyalloc.simgpu

        simulation = pyalloc.simgpu.simulation()
        assert torch.cuda.mem_get_info() == ((1 << 30), 1 << 30)
        x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        free, total = torch.cuda.mem_get_info()
        assert total == 1 << 30 and total - free == simulation.used() >= 256 << 20, (free, total, simulation.used())
        assert torch.cuda.memory_allocated() == 256 << 20
        del x
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        assert total - free == simulation.used() < 256 << 20
        assert torch.cuda.get_device_properties(0).total_memory == 1 << 30
        """,
        memory="1GiB",
        env=allocator,
    )


def test_out_of_memory_is_torchs(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch

        kept = torch.ones(64 << 20, dtype=torch.uint8).cuda()
        too_much = 2 * torch.cuda.mem_get_info()[1]
        for _ in range(3):
            try:
                torch.empty(too_much, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                assert "out of memory" in str(error), error
            else:
                raise AssertionError("twice the device's memory fitted into it")
            torch.empty(1 << 20, device="cuda")
        assert kept.cpu().sum().item() == 64 << 20
        """,
        memory="1GiB",
        env=allocator,
    )


def test_pinned_memory_and_data_loader(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset


        def main():
            plain = torch.arange(1 << 16, dtype=torch.float32)
            assert not plain.is_pinned()
            pinned = plain.pin_memory()
            assert pinned.is_pinned() and pinned[100:].is_pinned()
            assert not torch.empty(10, device="cuda").is_pinned()
            assert torch.cuda.cudart().cudaHostRegister(plain.data_ptr(), plain.nbytes, 0) == 0
            assert plain.is_pinned()
            assert torch.cuda.cudart().cudaHostUnregister(plain.data_ptr()) == 0
            assert not plain.is_pinned()
            rows = torch.arange(640, dtype=torch.float32).reshape(64, 10)
            seen = []
            for context in ("fork", "spawn"):
                options = {"num_workers": 2, "pin_memory": True, "multiprocessing_context": context}
                for (batch,) in DataLoader(TensorDataset(rows), 16, **options):
                    assert batch.is_pinned()
                    seen.append(batch.cuda(non_blocking=True).cpu())
            assert torch.equal(torch.cat(seen), torch.cat([rows, rows]))


        if __name__ == "__main__":
            main()
        """,
        env=allocator,
    )


def test_device_properties(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch

        assert torch.cuda.is_available() and torch.cuda.device_count() == 2
        for index in range(2):
            properties = torch.cuda.get_device_properties(index)
            assert (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 132)
            assert properties.warp_size == 32 and properties.max_threads_per_multi_processor == 2048
            assert properties.shared_memory_per_block_optin == 227 << 10 and properties.regs_per_multiprocessor == 65536
            assert properties.total_memory == 8 << 30
            assert torch.cuda.get_device_name(index)
        assert torch.cuda.get_device_properties(0).uuid != torch.cuda.get_device_properties(1).uuid
        assert torch.cuda.is_bf16_supported() and torch.cuda.can_device_access_peer(0, 1)
        """,
        devices=2,
    )


def test_visible_devices(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        "import torch; print(torch.cuda.device_count(), torch.cuda.is_available())",
        devices=4,
        env={"CUDA_VISIBLE_DEVICES": "1,3"},
    )
    assert done.stdout.split() == ["2", "True"]


def test_nvml_tells_the_same(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import ctypes
        import torch
        import pyalloc.simgpu

        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        assert nvml.nvmlInit_v2() == 0
        count = ctypes.c_uint()
        assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value == 2
        x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1")
        device = ctypes.c_void_p()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)) == 0
        memory = (ctypes.c_ulonglong * 3)()
        assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
        free, total = torch.cuda.mem_get_info(1)
        assert list(memory) == [total, free, total - free] and total - free >= 100 << 20
        pids = (ctypes.c_ulonglong * 64)()
        found = ctypes.c_uint(32)
        assert nvml.nvmlDeviceGetComputeRunningProcesses(device, ctypes.byref(found), pids) == 0
        import os
        assert found.value == 1 and pids[0] & 0xFFFFFFFF == os.getpid() and pids[1] == total - free
        assert torch.cuda.device_count() == 2
        """,
        devices=2,
    )


def test_devices_copy_across(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch

        source = torch.arange(1 << 20, dtype=torch.float32)
        first = source.to("cuda:0")
        second = first.to("cuda:1")
        assert second.device.index == 1 and torch.equal(second.cpu(), source)
        back = second.to("cuda:0", non_blocking=True)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        assert torch.equal(back.cpu(), source)
        with torch.cuda.device(1):
            assert torch.empty(1, device="cuda").device.index == 1
        assert torch.cuda.memory_allocated(1) >= source.nbytes
        """,
        devices=2,
        env=allocator,
    )
