"""Wrappers that suggest a pool for what a function allocates.

They run in forward passes, once per layer and step, so a wrapper costs two calls into the core and no more. While
torch.compile traces, a wrapper is the function itself: a compiled graph has no scopes. So the core's functions are
globals here and not in the wrappers' closures, which torch.compile would look into.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.compiler import is_dynamo_compiling

from .._native import library

_log = logging.getLogger("pyalloc")
core = library()
suggest = core.quick_suggest_pool  # suggest(number): whether it was taken; then pop(number)
pop = core.quick_pop_pool


def scoped(function: Callable[..., Any], pool: str) -> Callable[..., Any]:
    """`function`, with what it allocates on this thread in `pool`, where no scope of the user's says otherwise."""
    number = core.find_pool(pool)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not suggest(number):
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            if pop(number):
                report_open_scope()

    return call


@contextmanager
def suggested(number: int) -> Iterator[bool]:
    """A block of code whose allocations go to a pool, as scoped() has it for a function. Gives whether it was taken."""
    taken = bool(suggest(number))
    try:
        yield taken
    finally:
        if taken and pop(number):
            report_open_scope()


def report_open_scope() -> None:
    """The core refused to leave our scope: one of the user's is open inside of it, say in a suspended generator."""
    _log.warning("a function that pyalloc instruments left a pool scope open that was entered in it: its pool goes on")


def inheriting_workers(executor: Any, pool: str) -> Any:
    """A ThreadPoolExecutor whose threads allocate from the pool of the thread that makes it: scopes are per thread."""

    class InheritingExecutor(executor):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            current = core.current_pool()
            if current and len(args) < 3 and "initializer" not in kwargs:
                kwargs.update(initializer=suggest, initargs=(current,))
            super().__init__(*args, **kwargs)

    functools.update_wrapper(InheritingExecutor, executor, updated=())
    return InheritingExecutor
