"""`pyalloc run`: enables pyalloc, then runs a program the way `python` itself runs it."""

import os
import runpy
import sys
import types
from pathlib import Path

from . import config
from .allocator import enable


def enable_for_program(options: str) -> bool:
    """Enables pyalloc here, and in children through PYALLOC_CONF, with `options` ("key:value,...") on top of that
    variable.

    Returns and raises as pyalloc.enable().
    """
    os.environ[config.VARIABLE] = config.joined(config.joined(config.environment_text(), options), "enable:True")
    return enable()


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
