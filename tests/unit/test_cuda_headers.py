"""Which CUDA headers the bridge is compiled with."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyalloc
from pyalloc.cuda_headers import find_cuda_headers


def headers(include: Path, version: int, crt: bool = False) -> Path:
    include.mkdir(parents=True)
    (include / "cuda_runtime_api.h").write_text("")
    (include / "cuda.h").write_text(f"#pragma once\n#define CUDA_VERSION {version}\n")
    if crt:
        (include / "crt").mkdir()
        (include / "crt" / "host_defines.h").write_text("")
    return include


@pytest.fixture
def torch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "site" / "torch"
    folder.mkdir(parents=True)
    return folder


def test_pip_s_headers_need_the_shim(torch_folder: Path) -> None:
    include = headers(torch_folder.parent / "nvidia" / "cu17" / "include", 17010)
    found = find_cuda_headers("17.1", torch_folder)
    assert (found.include, found.version, found.needs_shim) == (include, 17010, True)


def test_the_layout_of_older_packages(torch_folder: Path) -> None:
    include = headers(torch_folder.parent / "nvidia" / "cuda_runtime" / "include", 17010, crt=True)
    found = find_cuda_headers("17.1", torch_folder)
    assert found.include == include
    assert not found.needs_shim


def test_the_same_version_beats_the_order(torch_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers(tmp_path / "toolkit" / "include", 17030, crt=True)
    exact = headers(torch_folder.parent / "nvidia" / "cu17" / "include", 17010)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert find_cuda_headers("17.1", torch_folder).include == exact
    assert find_cuda_headers("17.2", torch_folder).include == tmp_path / "toolkit" / "include"


def test_another_major_version_is_no_use(torch_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers(tmp_path / "toolkit" / "include", 16000)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    with pytest.raises(pyalloc.BridgeError, match="no CUDA 17 headers") as caught:
        find_cuda_headers("17.0", torch_folder)
    assert str(tmp_path / "toolkit" / "include") in str(caught.value)
