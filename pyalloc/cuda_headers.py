"""Finds the CUDA headers that torch's own headers include: in a toolkit, or in the pip packages that torch depends
on.
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import errors


@dataclass(frozen=True)
class CudaHeaders:
    """An include folder with cuda_runtime_api.h. `version` is cuda.h's CUDA_VERSION: 13000 is CUDA 13.0."""

    include: Path
    version: int

    @property
    def needs_shim(self) -> bool:
        """Whether crt/ is missing, as in the pip packages, so that the bridge's own stand-ins are needed."""
        return not (self.include / "crt" / "host_defines.h").is_file()


def find_cuda_headers(torch_cuda: str, torch_folder: Path) -> CudaHeaders:
    """The best headers for a torch built with CUDA `torch_cuda` ("13.0"): the same version, else the same major
    version.

    Raises BridgeError that says where it looked.
    """
    major, minor = (int(part) for part in torch_cuda.split(".")[:2])
    looked: list[str] = []
    close: CudaHeaders | None = None
    for include in _candidates(torch_cuda, major, torch_folder):
        looked.append(str(include))
        version = _cuda_version(include)
        if version is None or version // 1000 != major:
            continue
        found = CudaHeaders(include, version)
        if version == major * 1000 + minor * 10:
            return found
        close = close or found
    if close is not None:
        return close
    raise errors.BridgeError(
        f"no CUDA {major} headers (cuda_runtime_api.h and cuda.h) found; set CUDA_HOME, or install nvidia-cuda-runtime "
        f"with pip (looked in {', '.join(looked)})"
    )


def _candidates(torch_cuda: str, major: int, torch_folder: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for folder in _all_candidates(torch_cuda, major, torch_folder):
        if folder not in seen:
            seen.add(folder)
            yield folder


def _all_candidates(torch_cuda: str, major: int, torch_folder: Path) -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable], "include")
    packages = torch_folder.parent / "nvidia"  # pip's layout: cu13/ for CUDA 13, one folder per library before
    yield packages / f"cu{major}" / "include"
    yield packages / "cuda_runtime" / "include"
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path(f"/usr/local/cuda-{torch_cuda}/include")
    yield Path("/usr/local/cuda/include")


def _cuda_version(include: Path) -> int | None:
    if not (include / "cuda_runtime_api.h").is_file():
        return None
    try:
        text = (include / "cuda.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", text, re.MULTILINE)
    return int(match.group(1)) if match else None
