"""The wheel: its tag, what it holds, and that the core exports only pyalloc_* and links nothing of CUDA or torch."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import ROOT, need

# What every Linux has.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(shutil.which("c++"), "building the wheel needs a C++ compiler")
    folder = tmp_path_factory.mktemp("wheel")
    need(find_spec("scikit_build_core"), "building the wheel needs scikit-build-core")
    # Without isolation, so that what tools/test compiled is not compiled again.
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    build = subprocess.run([*command, "--wheel-dir", folder, ROOT], capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def readelf(option: str, library: Path) -> str:
    need(shutil.which("readelf"), "reading a library's dynamic section needs readelf (Debian: binutils)")
    return subprocess.run(["readelf", "-W", option, library], capture_output=True, text=True, check=True).stdout


def exported(library: Path) -> set[str]:
    """Names of the defined symbols of the dynamic symbol table."""
    names = set()
    for line in readelf("--dyn-syms", library).splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[4] in ("GLOBAL", "WEAK") and columns[6] != "UND":
            names.add(columns[7].split("@")[0])
    return names


def dynamic(library: Path, tag: str) -> set[str]:
    return set(re.findall(rf"\({tag}\).*\[(.+)\]", readelf("--dynamic", library)))


def declared_functions() -> set[str]:
    """Every function of the C ABI, from the public header."""
    text = (ROOT / "allocator_cpp" / "include" / "pyalloc" / "pyalloc.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"typedef struct (\w+) \{.*?\} \1;", "", text, flags=re.DOTALL)
    return set(re.findall(r"^[\w *]+\b(pyalloc_\w+)\(", text, re.MULTILINE))


def test_one_wheel_for_every_python(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")


def test_what_the_wheel_holds(unpacked: Path) -> None:
    assert {path.name.split("-")[0] for path in unpacked.iterdir()} == {"pyalloc"}
    package = unpacked / "pyalloc"
    for name in ("libpyalloc.so", "py.typed", "_autoload.py", "simgpu.py", "snapshots/page_files/page.html"):
        assert (package / name).is_file(), name
    assert (package / "simgpu_libs" / "libcuda.so.1").is_file()
    headers = package / "torch_bridge" / "include" / "pyalloc"
    own = ROOT / "allocator_cpp" / "include" / "pyalloc"
    assert {path.name for path in headers.iterdir()} == {path.name for path in own.iterdir()}  # the bridge needs all
    assert list((package / "torch_bridge").glob("*.cpp"))
    (entry_points,) = unpacked.glob("*.dist-info/entry_points.txt")
    parser = configparser.ConfigParser()
    parser.read(entry_points)
    scripts = {"pyalloc": "pyalloc.__main__:main", "pyalloc-top": "pyalloc.top.cli:main"}
    assert dict(parser["console_scripts"]) == scripts
    assert dict(parser["torch.backends"]) == {"pyalloc": "pyalloc._autoload:autoload"}


def test_the_core_exports_the_c_abi_and_nothing_else(unpacked: Path) -> None:
    declared = declared_functions()
    assert {"pyalloc_allocate", "pyalloc_malloc", "pyalloc_get_api", "pyalloc_last_error"} <= declared
    assert exported(unpacked / "pyalloc" / "libpyalloc.so") == declared


def test_the_core_links_only_the_system(unpacked: Path) -> None:
    assert dynamic(unpacked / "pyalloc" / "libpyalloc.so", "NEEDED") <= SYSTEM_LIBRARIES


def test_the_stand_ins_take_the_names_of_the_real_libraries(unpacked: Path) -> None:
    libraries = sorted((unpacked / "pyalloc" / "simgpu_libs").glob("*.so*"))
    sonames = {name for library in libraries for name in dynamic(library, "SONAME")}
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= sonames
    for library in libraries:
        assert dynamic(library, "NEEDED") <= SYSTEM_LIBRARIES | {"libcuda.so.1"}, library.name
