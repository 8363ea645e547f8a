"""What scopes of pools and of tags have in common as decorators."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from . import errors

F = TypeVar("F", bound=Callable[..., Any])


class ThreadScope(contextlib.ContextDecorator):
    """A scope of the thread that enters it, also around every call of a function."""

    def __call__(self, function: F) -> F:
        """Raises InvalidArgumentError for a function that goes on after its call has returned."""
        if (
            inspect.isgeneratorfunction(function)
            or inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise errors.InvalidArgumentError(
                f"{function.__qualname__} runs after its call has returned, so outside of a scope around the call; "
                "enter the scope inside of it, around what allocates, and hold it over no yield or await"
            )
        return super().__call__(function)
