"""tools/check_layers.py: each rule refuses what it should, and names the file, the line and the reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT


@pytest.fixture(scope="module")
def check_layers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repo(tmp_path: Path, check_layers: ModuleType) -> Path:
    """A repository that passes: one header a layer, each including the one below."""
    for name in check_layers.TOP_LEVEL_FOLDERS:
        (tmp_path / name).mkdir()
    for name in check_layers.TOP_LEVEL - check_layers.TOP_LEVEL_FOLDERS:
        (tmp_path / name).write_text("")
    below = None
    for layer in check_layers.LAYERS:
        write(
            tmp_path, f"src/{layer}/{layer}.h", f'#include "{below}/{below}.h"\n' if below else "#include <cstdint>\n"
        )
        below = layer
    write(tmp_path, "src/driver/cuda_abi.h", "")
    write(tmp_path, "include/pyalloc/pyalloc.h", '#include "pyalloc/stat_fields.def"\n')
    write(tmp_path, "include/pyalloc/stat_fields.def", "")
    write(tmp_path, "simgpu/simgpu.h", "")
    write(
        tmp_path,
        "simgpu/driver/memory.cpp",
        '#include "simgpu.h"\n#include "driver/cuda_abi.h"\n#include "base/base.h"\n',
    )
    write(tmp_path, "torch_bridge/bridge.cpp", '#include "pyalloc/pyalloc.h"\n#include <torch/csrc/x.h>\n')
    for name in ("pyalloc", "tests", "examples", "tools"):
        (tmp_path / name / "kept.py").write_text("")
    return tmp_path


def write(repo: Path, name: str, text: str) -> None:
    path = repo / "allocator_cpp" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_clean_repository_passes(check_layers: ModuleType, repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_layers.main(repo) == 0
    assert "0 errors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("src/vm/up.h", '\n#include "heap/heap.h"\n', "src/vm/up.h:2: includes heap/heap.h: vm is below heap"),
        ("src/base/up.cpp", '  #  include "facts/facts.h"\n', "base is below facts"),
        ("src/facts/up.h", '#include "driver/driver.h"\n', "facts is below driver"),
        ("src/cache/new.h", '#include "base/base.h"\n', "src/cache is no layer"),
        ("src/vm/sim.cpp", '#include "simgpu.h"\n', "the core includes nothing of simgpu"),
        ("src/driver/real.cpp", "#include <cuda.h>\n", "no CUDA, torch or Python header"),
        ("src/api/torch.cpp", "#include <c10/core/Device.h>\n", "no CUDA, torch or Python header"),
        ("simgpu/runtime/r.cpp", '#include "driver/driver.h"\n', "simgpu may include only"),
        ("simgpu/runtime/r.cpp", "#include <cuda_runtime.h>\n", "no CUDA, torch or Python header"),
        ("torch_bridge/b.cpp", '#include "heap/heap.h"\n', "torch_bridge may include only"),
        ("include/pyalloc/p.h", '#include "base/base.h"\n', "a public header may include only public headers"),
        ("src/vm/gone.cpp", '#include "vm/gone.h"\n', "no such file"),
    ],
)
def test_a_wrong_include_is_named(
    check_layers: ModuleType, repo: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, reason: str
) -> None:
    write(repo, file, text)
    assert check_layers.main(repo) == 1
    captured = capsys.readouterr()
    assert reason in captured.err
    assert "1 error " in captured.out


def test_the_top_level_is_closed(check_layers: ModuleType, repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repo / "notes.txt").write_text("")
    (repo / "CHANGELOG.md").unlink()
    (repo / ".editorconfig").write_text("")
    (repo / "build").mkdir()
    (repo / "build" / "left.txt").write_text("")
    assert check_layers.main(repo) == 1
    captured = capsys.readouterr()
    assert "notes.txt: does not belong at the top level" in captured.err
    assert "CHANGELOG.md: missing at the top level" in captured.err
    assert "2 errors" in captured.out


def test_long_files_without_a_reason_are_a_warning(
    check_layers: ModuleType, repo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repo / "tools" / "long.py").write_text("x = 1\n" * 401)
    (repo / "tools" / "fits.py").write_text("x = 1\n" * 400)
    assert check_layers.main(repo) == 0
    out = capsys.readouterr().out
    assert "tools/long.py: 401 lines (over 400 needs a reason" in out
    assert "fits.py" not in out
    monkeypatch.setattr(check_layers, "LONG_FILES", {"tools/long.py": "one table", "tools/fits.py": "it was longer"})
    assert check_layers.main(repo) == 0
    out = capsys.readouterr().out
    assert "long.py" not in out
    assert "tools/fits.py: 400 lines, so it needs no reason" in out


def test_this_repository_is_clean(check_layers: ModuleType) -> None:
    assert check_layers.main(ROOT) == 0
    assert set(check_layers.LONG_FILES) <= set(check_layers.tracked(ROOT))


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by their names: in one run the second would be an error.
    names = [path.name for path in (ROOT / "tests").glob("*/test_*.py")]
    assert sorted(names) == sorted(set(names))
