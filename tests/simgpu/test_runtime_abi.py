"""The runtime stand-in's own declarations against NVIDIA's headers, and its exports against what torch imports."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, need

from pyalloc.errors import LibraryError
from pyalloc.simgpu import LIBRARIES, library_directory

SIMGPU = ROOT / "allocator_cpp" / "simgpu"
TOOLKIT = Path("/usr/local/cuda/include")

CHECK = """
#include <cuda.h>
#include <cuda_runtime_api.h>
#include "runtime/runtime_types.h"
#include "driver_copy.h"
#include <cstddef>
namespace r = simgpu::runtime;
#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, member, theirs, other) static_assert(offsetof(ours, member) == offsetof(theirs, other), #other)
SAME_SIZE(r::DeviceProp, cudaDeviceProp);
SAME_SIZE(r::PointerAttributes, cudaPointerAttributes);
SAME_SIZE(r::FuncAttributes, cudaFuncAttributes);
SAME_SIZE(r::LaunchConfig, cudaLaunchConfig_t);
SAME_SIZE(r::IpcHandle, cudaIpcMemHandle_t);
SAME_SIZE(r::GraphEdgeData, cudaGraphEdgeData);
SAME_SIZE(r::AccessDesc, cudaMemAccessDesc);
SAME_SIZE(r::Dim3, dim3);
SAME_SIZE(simgpu::DriverCopy2D, CUDA_MEMCPY2D);
SAME_PLACE(simgpu::DriverCopy2D, target_device, CUDA_MEMCPY2D, dstDevice);
SAME_PLACE(simgpu::DriverCopy2D, height, CUDA_MEMCPY2D, Height);
SAME_PLACE(r::LaunchConfig, stream, cudaLaunchConfig_t, stream);
SAME_PLACE(r::LaunchConfig, dynamic_shared_bytes, cudaLaunchConfig_t, dynamicSmemBytes);
SAME_PLACE(r::FuncAttributes, binary_version, cudaFuncAttributes, binaryVersion);
SAME_PLACE(r::FuncAttributes, max_dynamic_shared_size_bytes, cudaFuncAttributes, maxDynamicSharedSizeBytes);
SAME_PLACE(r::PointerAttributes, host_pointer, cudaPointerAttributes, hostPointer);
static_assert(int(r::kMemoryHost) == cudaMemoryTypeHost && int(r::kMemoryDevice) == cudaMemoryTypeDevice);
static_assert(r::kNoDeviceOrdinal == cudaInvalidDeviceId);
static_assert(int(r::kCopyHostToHost) == cudaMemcpyHostToHost && int(r::kCopyDefault) == cudaMemcpyDefault);
static_assert(int(r::kInvalidConfiguration) == cudaErrorInvalidConfiguration);
static_assert(int(r::kInvalidSymbol) == cudaErrorInvalidSymbol);
static_assert(int(r::kInvalidContext) == CUDA_ERROR_INVALID_CONTEXT);
static_assert(r::kRuntimeVersion / 1000 == CUDART_VERSION / 1000);
#define RUNTIME_ERROR(value, name, text) static_assert(int(name) == value, #name);
#include "runtime/errors.def"
"""


def test_types_are_nvidias(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    need(compiler, "no C++ compiler")
    need((TOOLKIT / "cuda_runtime_api.h").exists(), f"{TOOLKIT} has no CUDA headers")
    header = (TOOLKIT / "driver_types.h").read_text()
    theirs = re.search(r"struct __device_builtin__ cudaDeviceProp\s*\{(.*?)\n\};", header, re.DOTALL)
    assert theirs is not None
    names = {match.lower(): match for match in re.findall(r"(\w+)(?:\[\d+\])?;", theirs.group(1))}
    ours = re.findall(r"PROPERTY\((\w+)(?:\[\d\])?, \d+\)", (SIMGPU / "runtime" / "device_properties.def").read_text())
    assert len(ours) > 50
    places = "".join(
        f"SAME_PLACE(r::DeviceProp, {name}, cudaDeviceProp, {names[name.replace('_', '')]});\n"
        for name in sorted({*ours})
    )
    source = tmp_path / "check.cpp"
    source.write_text(CHECK + places)
    includes = [f"-I{SIMGPU}", f"-I{SIMGPU.parent / 'src'}", f"-I{TOOLKIT}"]
    done = subprocess.run(
        [str(compiler), "-std=c++17", "-fsyntax-only", *includes, str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def symbols(library: Path, kind: str) -> set[str]:
    done = subprocess.run(["nm", "-D", kind, str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}


def test_torch_finds_every_symbol() -> None:
    torch = find_spec("torch")
    need(torch is not None and torch.origin, "torch is not installed")
    need(shutil.which("nm"), "nm (binutils) is not installed")
    try:
        place = library_directory()
    except LibraryError as error:
        need(False, str(error))
    assert torch is not None
    assert torch.origin is not None
    wanted: set[str] = set()
    for library in (Path(torch.origin).parent / "lib").glob("lib*.so"):
        wanted |= {
            name for name in symbols(library, "--undefined-only") if re.match(r"(__cuda|cuda[A-Z]|cublas)", name)
        }
    need(len(wanted) > 100, "this torch is not a CUDA build")
    offered = symbols(place / "libsimgpu_runtime.so", "--defined-only") | symbols(
        place / "libsimgpu_libraries.so", "--defined-only"
    )
    assert wanted <= offered, sorted(wanted - offered)


@pytest.mark.parametrize("library", LIBRARIES)
def test_stand_ins_export_nothing_of_their_own(library: str) -> None:
    """They are preloaded: a C++ library in them that others could see would stand in for the program's."""
    try:
        offered = symbols(library_directory() / library, "--defined-only")
    except LibraryError as error:
        need(False, str(error))
    assert offered
    assert not {name for name in offered if not re.match("cu|__cuda|nvml|nccl|nvshmem|simgpu_", name)}


@pytest.mark.parametrize("library", ["libsimgpu_runtime.so", "libsimgpu_libraries.so", "libnvidia-ml.so.1"])
def test_stand_ins_need_no_cuda(library: str) -> None:
    need(shutil.which("readelf"), "readelf (binutils) is not installed")
    try:
        place = library_directory()
    except LibraryError as error:
        need(False, str(error))
    done = subprocess.run(["readelf", "-d", str(place / library)], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", done.stdout))
    assert not {name for name in needed if re.search("cudart|cublas|torch", name)}, needed
