"""`pyalloc run`: enables pyalloc, then runs a program the way `python` itself runs it."""

import contextlib
import importlib.util
import os
import pkgutil
import runpy
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

from . import _native, config, errors
from .allocator import enable


def enable_for_program(options: str, target: list[str]) -> None:
    """Enables pyalloc for the program here, and in children through PYALLOC_CONF, with `options` ("key:value,...") on
    top of that variable.

    Raises as pyalloc.enable(), and InvalidArgumentError when there is no such script or module.
    """
    if target[0] == "-m":
        sys.path[0:1] = [""]
        _module(target[1].partition(".")[0])
    elif target[0] != "-c":
        _need_script(target[0])
    with contextlib.suppress(errors.LibraryError):  # enable() says so
        config.configure(_native.library(), options)  # while what is the variable's can still be told from --conf's
    os.environ[config.VARIABLE] = config.joined(config.joined(config.environment_text(), options), "enable:True")
    enable()
    if target[0] == "-m":
        found = _module(target[1])  # imports the packages it is in, which may use CUDA
        if found.submodule_search_locations is not None:
            _module(f"{target[1]}.__main__")


def _need_script(path: str) -> None:
    if Path(path).is_dir():
        importer = pkgutil.get_importer(path)
        if importer is None or importer.find_spec("__main__") is None:
            raise errors.InvalidArgumentError(f"can't find '__main__' module in {path!r}")
        return
    try:
        open(path, "rb").close()
    except OSError as error:
        raise errors.InvalidArgumentError(
            f"can't open file {str(Path(path).absolute())!r}: [Errno {error.errno}] {error.strerror}"
        ) from error


def _module(name: str) -> ModuleSpec:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # of a package's own import
        found = None
    except ValueError:  # no name of a module
        found = None
    if found is None:
        raise errors.InvalidArgumentError(f"no module named {name}")
    return found


def run_target(target: list[str]) -> None:
    """Runs ["script.py", args...], ["-m", "module", args...] or ["-c", "code", args...] as __main__, with sys.argv
    as it expects.

    Raises ValueError for an empty target; what the program raises passes through.
    """
    if not target or (target[0] in ("-m", "-c") and len(target) < 2):
        raise ValueError("nothing to run; expected script.py, -m module or -c code")
    if target[0] == "-m":
        sys.argv = target[1:]
        sys.path[0:1] = [""]
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
    elif target[0] == "-c":
        sys.argv = ["-c", *target[2:]]
        sys.path[0:1] = [""]
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(target[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = target
        sys.path[0:1] = [str(Path(target[0]).resolve().parent)]
        runpy.run_path(target[0], run_name="__main__")
