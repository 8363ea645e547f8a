"""The virtuals of torch's allocator that only C++ calls, through a small library compiled as an extension would be; and
the bridge compiled against the oldest torch supported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import Run
from cpp_calls import compile_calls, include_flags
from support import ROOT, need

OLD_TORCH = "2.11.0"

PROGRAM = """
import ctypes, sys
import pyalloc
assert pyalloc.enable(bridge="require")
import torch
calls = ctypes.CDLL(sys.argv[1])
for name in ("base_allocation", "identity", "share_ipc", "open_ipc"):
    getattr(calls, name).restype = ctypes.c_char_p
calls.largest_block.restype = ctypes.c_size_t

x = torch.empty(1 << 20, device="cuda")
assert calls.identity() is None, calls.identity()
assert torch.cuda.memory_allocated() == 4 << 20

base, size = ctypes.c_void_p(), ctypes.c_size_t()
for inside in (0, 4096):
    assert calls.base_allocation(ctypes.c_void_p(x.data_ptr() + inside), ctypes.byref(base), ctypes.byref(size)) is None
    assert base.value <= x.data_ptr() and base.value + size.value >= x.data_ptr() + (4 << 20)
    (segment,) = [s for s in torch.cuda.memory_snapshot() if s["address"] == base.value]
    assert segment["total_size"] == size.value
assert calls.base_allocation(ctypes.c_void_p(12345), ctypes.byref(base), ctypes.byref(size)) is not None

free, total = torch.cuda.mem_get_info()
assert free <= calls.largest_block(0) <= total
y = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
del y
# The cached two GiB can be had together with what the driver has free.
expected = torch.cuda.mem_get_info()[0] + (2 << 30)
assert calls.largest_block(0) >= expected
torch.cuda.set_per_process_memory_fraction((4 << 30) / total)
assert (3 << 30) < calls.largest_block(0) <= (4 << 30)
assert torch.empty(calls.largest_block(0), dtype=torch.uint8, device="cuda").data_ptr() != 0
torch.cuda.set_per_process_memory_fraction(1.0)

calls.hold(ctypes.c_size_t(total // 8 * 5))
assert calls.holds() == 1
assert torch.empty(total // 8 * 6, dtype=torch.uint8, device="cuda").data_ptr() != 0
assert calls.holds() == 0, "torch's free-memory callbacks were not asked"
assert pyalloc.device_stats(0)["rung_callbacks"] == 1 and pyalloc.device_stats(0)["rung_reclaimers"] == 0

assert calls.record_foreign() == 1
assert calls.share_ipc(ctypes.c_void_p(x.data_ptr())) is None
assert b"not inside a live pyalloc block" in calls.share_ipc(ctypes.c_void_p(12345))
assert b"does not use pyalloc" in calls.open_ipc()

if hasattr(calls, "observe_rejections"):
    calls.observe_rejections()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((2 << 30) / total)
    bytes_ = ctypes.c_long()
    try:
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    count = calls.rejected(ctypes.byref(bytes_))
    assert (count, bytes_.value) == (1, 3 << 30), (count, bytes_.value)
    calls.at_address.restype = ctypes.c_char_p
    assert b"not all of the memory there is free" in calls.at_address(ctypes.c_void_p(x.data_ptr()))
    address = x.data_ptr()
    del x
    assert calls.at_address(ctypes.c_void_p(address)) is None
    if hasattr(torch.UntypedStorage, "_resize_with_addr_"):
        storage = torch.empty(5 << 20, dtype=torch.uint8, device="cuda").untyped_storage()
        address = storage.data_ptr()
        storage.resize_(0)
        storage._resize_with_addr_(5 << 20, address)
        assert storage.data_ptr() == address and torch.cuda.memory_allocated() >= 5 << 20
"""


@pytest.mark.complaint(2)
def test_virtuals_that_only_cpp_calls(run_on_simgpu: Run, tmp_path: Path) -> None:
    import torch

    header = Path(torch.__file__).parent / "include/c10/cuda/CUDACachingAllocator.h"
    newer = "attachOomRejectionObserver" in header.read_text()
    library = compile_calls("virtual_calls", tmp_path, f"-DTORCH_HAS_REJECTION_OBSERVER={int(newer)}")
    run_on_simgpu(PROGRAM, args=[str(library)])


def test_every_virtual_of_this_torch_is_known() -> None:
    from pyalloc import doctor

    assert doctor._uncovered_virtuals() == []


def old_torch_include() -> Path:
    """The headers of the oldest supported torch: PYALLOC_OLD_TORCH names a folder with torch/include, or they are
    downloaded once into the cache when PYALLOC_TEST_ALL=1 (half a gigabyte).
    """
    given = os.environ.get("PYALLOC_OLD_TORCH")
    if given:
        return Path(given) / "torch" / "include"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "pyalloc-tests" / f"torch-{OLD_TORCH}"
    if not (folder / "complete").exists():
        if os.environ.get("PYALLOC_TEST_ALL") != "1":
            pytest.skip(
                f"the headers of torch {OLD_TORCH} are half a gigabyte; set PYALLOC_TEST_ALL=1 to download them"
            )
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"torch=={OLD_TORCH}"]
        subprocess.run([*command, "--dest", str(folder)], check=True)
        (wheel,) = folder.glob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith("torch/include/")])
        wheel.unlink()
        (folder / "complete").touch()
    return folder / "torch" / "include"


def test_the_bridge_compiles_against_the_oldest_torch() -> None:
    from pyalloc import doctor

    include = old_torch_include()
    need(shutil.which("c++"), "needs a C++ compiler")
    source = ROOT / "allocator_cpp" / "torch_bridge" / "bridge.cpp"
    command = ["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", '-DPYALLOC_BRIDGE_KEY="old"']
    command += [*include_flags(include), f"-I{ROOT / 'allocator_cpp' / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = (source.parent / "allocator.h").read_text()
    assert [name for name in doctor.torch_virtuals(include) if name not in known] == []
