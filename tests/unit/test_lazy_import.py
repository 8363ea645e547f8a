"""Importing the package, and torch's hook without its variable, load nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
from support import ROOT

import pyalloc

HOOK = """
import sys, os
before = set(sys.modules)
from pyalloc._autoload import autoload
autoload()
print(sorted(name for name in set(sys.modules) - before))
"""


def modules_after(code: str, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYALLOC_CONF"} | variables
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    names: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return names


def test_the_hook_imports_only_itself() -> None:
    loaded = [name for name in modules_after(HOOK) if name.split(".")[0] == "pyalloc"]
    assert loaded == ["pyalloc", "pyalloc._autoload"]


def test_the_package_imports_neither_torch_nor_the_library() -> None:
    unwanted = ("torch", "ctypes", "pyalloc._native")
    code = f"import sys, pyalloc; dir(pyalloc); print([name for name in {unwanted} if name in sys.modules])"
    assert modules_after(code) == []


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse((ROOT / "pyalloc" / "__init__.py").read_text())
    (guard,) = (node for node in tree.body if isinstance(node, ast.If))
    for_checkers = {
        (node.module or alias.name, alias.name)
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    at_run_time = {(module, name) for module, names in pyalloc._PUBLIC.items() for name in names}
    at_run_time |= {(name, name) for name in pyalloc._MODULES}
    assert for_checkers == at_run_time


def test_every_public_name_exists() -> None:
    for names in pyalloc._PUBLIC.values():
        for name in names:
            assert getattr(pyalloc, name) is not None
            assert name in dir(pyalloc)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pyalloc.nonsense  # noqa: B018


def test_dir_and_star_show_what_is_public_and_nothing_else() -> None:
    code = """import pyalloc, pyalloc.torch_pools, pyalloc.errors
assert pyalloc.torch_pools and pyalloc.errors
star = {}
exec('from pyalloc import *', star)
print([sorted(star.keys() - {'__builtins__'}), [name for name in dir(pyalloc) if not name.startswith('__')]])"""
    public = {name for names in pyalloc._PUBLIC.values() for name in names} | set(pyalloc._MODULES)
    assert modules_after(code) == [sorted(public - {"__version__"})] * 2
    assert "__version__" in dir(pyalloc)
    assert "__doc__" in dir(pyalloc)


@pytest.mark.parametrize("name", pyalloc._MODULES)
def test_a_public_module_is_there_before_it_is_imported(name: str) -> None:
    code = f"import pyalloc; assert '{name}' in dir(pyalloc); print([pyalloc.{name}.__name__])"
    assert modules_after(code) == [f"pyalloc.{name}"]


def test_no_public_name_is_a_modules_too() -> None:
    """Importing the module would put it in the place of the name."""
    import pkgutil

    import pyalloc

    names = {name for group in pyalloc._PUBLIC.values() for name in group}
    assert names.isdisjoint(one.name for one in pkgutil.iter_modules(pyalloc.__path__))
