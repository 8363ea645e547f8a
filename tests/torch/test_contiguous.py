"""Contiguous pools from torch: one piece of physical memory behind every tensor.

Registering such a tensor with NCCL or a network card needs one; here the driver's own answer stands in, which is what
registration looks at: the range of one mapping.
"""

from __future__ import annotations

import pytest
from bridge_program import program
from conftest import Run


@pytest.mark.complaint(57)
def test_a_tensor_lies_in_one_piece(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import ctypes
            driver = ctypes.CDLL("libcuda.so.1")

            def piece(tensor):
                start, size = ctypes.c_uint64(), ctypes.c_size_t()
                status = driver.cuMemGetAddressRange_v2(
                    ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(tensor.data_ptr()))
                assert status == 0, status
                return start.value, size.value

            assert pyalloc.create_pool("network", contiguous=True, limit="4GiB") == "network"
            with pyalloc.pool("network"):
                large = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (2 << 20, 33 << 20, (700 << 20) + 1)]
                small = [torch.empty(300 << 10, dtype=torch.uint8, device="cuda") for _ in range(20)]
            for tensor in large:
                size = -(-tensor.nbytes // (2 << 20)) * (2 << 20)
                assert piece(tensor) == (tensor.data_ptr(), size), (piece(tensor), size)
            for tensor in small:
                start, size = piece(tensor)
                assert size == 2 << 20 and start <= tensor.data_ptr()
                assert tensor.data_ptr() + tensor.nbytes <= start + size
            calls = pyalloc.device_stats(0)["num_device_alloc"]
            for _ in range(10):                       # a freed piece serves the next tensor of its size
                del large[1]
                with pyalloc.pool("network"):
                    large.insert(1, torch.empty(33 << 20, dtype=torch.uint8, device="cuda"))
            assert pyalloc.device_stats(0)["num_device_alloc"] == calls
            raises(pyalloc.InvalidArgumentError, "another layout", lambda: pyalloc.create_pool("kv", contiguous=True))
            raises(pyalloc.InvalidArgumentError, "one handle",
                   lambda: pyalloc.create_pool("x", contiguous=True, slab="16MiB"))
            del large, small
            everything = torch.empty(7900 << 20, dtype=torch.uint8, device="cuda")   # what it held serves the others
            """
        )
    )


@pytest.mark.complaint(17)
def test_a_large_block_comes_back_after_small_ones_took_its_place(run_on_simgpu: Run) -> None:
    """11.64 GB freed, the memory in use by tensors of 11 to 18 MB, and wanted again: an eighth, on an eighth of the
    device.
    """
    run_on_simgpu(
        program(
            """
            size = int(11.64e9) // 8
            for _ in range(5):
                big = torch.empty(size, dtype=torch.uint8, device="cuda")
                del big
                small = [torch.empty(int(n * 1e6), dtype=torch.uint8, device="cuda") for n in (16.5, 11.4, 18.2) * 11]
                kept = small[::2]
                del small
                big = torch.empty(size, dtype=torch.uint8, device="cuda")
                del big, kept
            assert pyalloc.device_stats(0)["num_ooms"] == 0
            """
        ),
        memory="1900MiB",
    )


@pytest.mark.complaint(22)
def test_weights_leave_no_holes_behind(run_on_simgpu: Run) -> None:
    """Weights loaded with temporaries between them, then 2.5 % of the device."""
    run_on_simgpu(
        program(
            """
            weights = []
            for i in range(300):
                with pyalloc.pool("weights"):
                    weights.append(torch.empty((5 << 20) + i * 4096, dtype=torch.uint8, device="cuda"))
                temporary = [torch.empty((7 << 20) - i * 512, dtype=torch.uint8, device="cuda") for _ in range(4)]
                del temporary
            held = torch.cuda.memory_reserved()
            live = sum(one.nbytes for one in weights)
            assert held <= 1.06 * live + (32 << 20), (held, live)
            torch.empty(int(0.025 * (2 << 30)), dtype=torch.uint8, device="cuda")
            assert pyalloc.device_stats(0)["num_ooms"] == 0
            """
        ),
        memory="2GiB",
    )
