"""One attribute replaced by a wrapper, and put back."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .table import Target


class Patch(NamedTuple):
    """owner.name was `original`, as the owner's dictionary has it (INHERITED: it has none), and is `replacement`."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    @property
    def label(self) -> str:
        return label(self.owner, self.name)


INHERITED = object()


def label(owner: Any, name: str) -> str:
    """The whole name of an attribute, as doctor and messages show it."""
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}.{name}"
    return f"{owner.__module__}.{owner.__qualname__}.{name}"


def find(target: Target, module: ModuleType) -> list[tuple[Any, str]]:
    """The attributes that a row of the table names. LookupError when there is none."""
    holder, _, name = target.attribute.rpartition(".")
    owners: list[Any]
    if holder == "*":
        owners = [
            one
            for one in vars(module).values()
            if isinstance(one, type) and one.__module__ == module.__name__ and _is_own(one, name, target.takes)
        ]
    else:
        owners = [getattr(module, holder, None)] if holder else [module]
    found = [(owner, name) for owner in owners if owner is not None and callable(getattr(owner, name, None))]
    if not found:
        raise LookupError(f"{module.__name__} has no {target.attribute}")
    return found


def _is_own(owner: type, name: str, takes: str) -> bool:
    """Whether the class itself defines the function, and no abstract one, and with the parameter that is asked for."""
    function = vars(owner).get(name)
    if function is None or getattr(function, "__isabstractmethod__", False):
        return False
    return not takes or takes in inspect.signature(function).parameters


def apply(target: Target, module: ModuleType) -> list[Patch]:
    """Wraps what the row names: all of it, or nothing and an exception."""
    made = []
    for owner, name in find(target, module):
        original = vars(owner).get(name, INHERITED)
        current = inspect.getattr_static(owner, name)
        replacement: Any
        if isinstance(current, classmethod | staticmethod):
            replacement = type(current)(target.wrap(current.__func__, target.pool))
        elif isinstance(current, FunctionType | type):
            replacement = target.wrap(current, target.pool)
        else:
            raise LookupError(f"{label(owner, name)} is no function but {type(current).__name__}")
        made.append(Patch(owner, name, original, replacement))
    for patch in made:
        setattr(patch.owner, patch.name, patch.replacement)
    return made


def restore(patch: Patch) -> bool:
    """Puts the original back. False, and nothing happens, where the attribute is no longer our wrapper."""
    if vars(patch.owner).get(patch.name) is not patch.replacement:
        return False
    if patch.original is INHERITED:
        delattr(patch.owner, patch.name)
    else:
        setattr(patch.owner, patch.name, patch.original)
    return True
