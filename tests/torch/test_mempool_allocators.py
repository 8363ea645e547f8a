"""torch.cuda.MemPool with an allocator of its own: a foreign one under pyalloc, and pyalloc under either."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import NATIVE, PYALLOC, Run
from private_pool_program import PRELUDE
from support import need


@pytest.fixture
def foreign_library(tmp_path: Path) -> Path:
    need(shutil.which("c++"), "needs a C++ compiler")
    library = tmp_path / "libforeign.so"
    source = Path(__file__).with_name("foreign_allocator.cpp")
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    return library


def test_a_pool_of_a_foreign_allocator(run_on_simgpu: Run, foreign_library: Path) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import ctypes, sys
foreign = ctypes.CDLL(sys.argv[1])
foreign.foreign_bytes.restype = ctypes.c_size_t
functions = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "foreign_malloc", "foreign_free")
pool = torch.cuda.MemPool(functions.allocator())
with torch.cuda.use_mem_pool(pool):
    x = torch.arange(1000).cuda()
    y = new(3)
    y.record_stream(torch.cuda.Stream())
outside = new(3)
assert (foreign.foreign_live(), foreign.foreign_bytes()) == (2, 8000 + 3 * MIB)
assert torch.equal(x.cpu(), torch.arange(1000))
assert pools_of(x, y, outside) == [pool.id, pool.id, (0, 0)]
assert torch.cuda.memory_allocated() == 3 * MIB  # what is not pyalloc's is not in its figures
del y
assert foreign.foreign_live() == 1
del pool
assert foreign.foreign_live() == 1
del x
assert foreign.foreign_live() == 0
raises(RuntimeError, "is not from pyalloc", lambda: torch.cuda.caching_allocator_delete(8192))

# What is idle in pyalloc goes back to the driver when the foreign allocator finds no memory.
total = torch.cuda.mem_get_info()[1]
pool = torch.cuda.MemPool(functions.allocator())
x = new(total * 0.8 / MIB)
del x
with torch.cuda.use_mem_pool(pool):
    x = new(total * 0.5 / MIB)
    raises(torch.OutOfMemoryError, "CUDA out of memory. The allocator of pool", lambda: new(total / MIB))
    del x
assert foreign.foreign_live() == 0
""",
        args=[str(foreign_library)],
        env=PYALLOC,
    )


def test_pyalloc_itself_as_a_pools_allocator(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import pyalloc
current = torch.cuda.memory._get_current_allocator().allocator()
functions = torch.cuda.memory.CUDAPluggableAllocator(pyalloc.library_path(), "pyalloc_malloc", "pyalloc_free")
for allocator in (current, functions.allocator()):
    pool = torch.cuda.MemPool(allocator)
    with torch.cuda.use_mem_pool(pool):
        x, y = new(3), torch.arange(100).cuda()
    assert torch.cuda.memory_allocated() == 3 * MIB + 1024 and torch.equal(y.cpu(), torch.arange(100))
    del pool
    del x, y
    assert torch.cuda.memory_allocated() == 0
""",
        env=PYALLOC,
    )


def test_pyalloc_behind_a_native_pool(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import pyalloc
functions = torch.cuda.memory.CUDAPluggableAllocator(pyalloc.library_path(), "pyalloc_malloc", "pyalloc_free")
assert torch.cuda.get_allocator_backend() == "native"
pool = torch.cuda.MemPool(functions.allocator())
with torch.cuda.use_mem_pool(pool):
    held = [torch.arange(1000).cuda(), new(3), new(30)]
outside = new(3)
allocated = pyalloc.device_stats(0)["allocated_bytes"]["all"]["current"]
assert allocated == sum(s["total_size"] for s in pool.snapshot()) >= 33 * MIB, allocated
assert torch.equal(held[0].cpu(), torch.arange(1000))
held.clear()
del pool
torch.cuda.empty_cache()
assert pyalloc.device_stats(0)["allocated_bytes"]["all"]["current"] == 0
""",
        env=NATIVE,
    )
