"""Wrappers for torch's modules: which of the tensors a module moves or makes are weights.

Gradients move with a module and are none; a LoRA adapter moves with its model and stays one.

The user's classes may define anything under any name, so the guess reads what torch itself keeps (a module's
dictionaries, a class's own __init__), calls nothing of the user's, and looks at no frame's locals: up to Python 3.12
reading f_locals keeps every tensor among them alive until the frame returns.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .scopes import core, pop, report_open_scope, suggest, suggested

_log = logging.getLogger("pyalloc")
_DEEPEST = 16  # frames between a module's __init__ and the function that makes its tensor
_GENERAL = core.find_pool("general")


def moved(apply: Callable[..., Any], pool: str) -> Callable[..., Any]:
    """torch.nn.Module._apply(self, fn, ...), with each tensor that `fn` makes in the pool it belongs to. It calls
    itself for every submodule; the outermost call looks at all their tensors once.
    """
    weights, lora = core.find_pool(pool), core.find_pool("lora")

    def placing(fn: Callable[[Any], Any], gradients: set[int], adapters: set[int]) -> Callable[[Any], Any]:
        """`fn` of one outermost call. Holds numbers of tensors, not tensors: one that moves is to be freed at once."""

        def placed(tensor: Any) -> Any:
            if id(tensor) in gradients:
                return fn(tensor)
            number = lora if id(tensor) in adapters else weights
            if not suggest(number):
                return fn(tensor)
            try:
                return fn(tensor)
            finally:
                if pop(number):
                    report_open_scope()

        return functools.update_wrapper(placed, fn)

    placed_code = placing(lambda tensor: tensor, set(), set()).__code__

    @functools.wraps(apply)
    def call(self: torch.nn.Module, fn: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or (type(fn) is FunctionType and fn.__code__ is placed_code):
            return apply(self, fn, *args, **kwargs)
        try:
            modules = list(all_modules(self))
            adapters = {id(one) for one in adapter_tensors(modules)}
            placed = placing(fn, {id(one) for one in gradients(modules)}, adapters)
        except Exception:
            _log.debug("what %s moves stays in the current pool", type(self).__qualname__, exc_info=True)
            return apply(self, fn, *args, **kwargs)
        if not adapters or core.current_pool() == lora:
            return apply(self, placed, *args, **kwargs)
        # One lora scope around all of them: what lora_prepare() set aside ends with a scope, not with its first tensor.
        # The general one inside of it lets a weight be one again, which within a lora scope it is not.
        with suggested(lora) as taken, suggested(_GENERAL if taken else -1):
            return apply(self, placed, *args, **kwargs)

    return call


def all_modules(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module and all below it, each once."""
    seen, ahead = {id(module)}, [module]
    while ahead:
        one = ahead.pop()
        yield one
        for child in one._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)


def gradients(modules: list[torch.nn.Module]) -> Iterator[torch.Tensor]:
    """The gradients of the modules' parameters. torch warns of reading one that a tensor cannot have."""
    for module in modules:
        for one in module._parameters.values():
            if one is not None and (one.is_leaf or one.retains_grad) and one.grad is not None:
                yield one.grad


def adapter_tensors(modules: list[torch.nn.Module]) -> Iterator[torch.Tensor]:
    """The parameters and buffers that are adapters': peft's layers name the attributes that hold theirs."""
    for layer in modules:
        named = names(layer, "adapter_layer_names")
        for path in (*named, *(names(layer, "other_param_names") if named else ())):
            held: Any = layer
            for name in path.split("."):
                held = registered(held, name)
            if isinstance(held, torch.Tensor):
                yield held
            elif held is not None:
                for module in all_modules(held):
                    yield from (one for one in module._parameters.values() if one is not None)
                    yield from (one for one in module._buffers.values() if one is not None)


def registered(holder: Any, name: str) -> Any:
    """The submodule, parameter or buffer of this name that torch has in its dictionaries, or None."""
    if isinstance(holder, torch.nn.Module):
        for kept in (holder._modules, holder._parameters, holder._buffers):
            if name in kept:
                return kept[name]
    return None


def names(layer: torch.nn.Module, attribute: str) -> tuple[str, ...]:
    """The names that an attribute of peft's layers lists: none where it is something else under the same name."""
    listed = inspect.getattr_static(layer, attribute, ())
    if type(listed) not in (tuple, list):
        return ()
    return tuple(name for name in listed if type(name) is str)


def built_under_a_device(function: Callable[..., Any], pool: str) -> Callable[..., Any]:
    """DeviceContext.__torch_function__, which gives torch.empty() and its like the device of `with
    torch.device("cuda")` or set_default_device(): those that a module's __init__ calls make weights. A module of the
    user's own has no other place to hook: what becomes its parameter is allocated before torch hears of a parameter.
    """
    from torch.utils._device import _device_constructors  # torch imports it when it is first used

    number = core.find_pool(pool)
    constructors = _device_constructors()

    @functools.wraps(function)
    def call(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            is_dynamo_compiling()
            or self.device.type != "cuda"
            or func not in constructors
            or not builds_a_module(sys._getframe(1))
            or not suggest(number)
        ):
            return function(self, func, *args, **kwargs)
        try:
            return function(self, func, *args, **kwargs)
        finally:
            if pop(number):
                report_open_scope()

    return call


def builds_a_module(frame: FrameType | None) -> bool:
    """Whether a torch.nn.Module's __init__ is being run, and no forward pass inside of it."""
    for _ in range(_DEEPEST):
        if frame is None:
            return False
        code = frame.f_code
        if code.co_name == "_call_impl":
            return False
        if code.co_name == "__init__" and makes_modules(code):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=4096)
def makes_modules(code: CodeType) -> bool:
    """Whether this is the __init__ of a class of modules, or one that such a class inherits from a mixin."""
    modules: set[type] = set()
    ahead: list[type] = [torch.nn.Module]
    while ahead:
        one = ahead.pop()
        if one not in modules:
            modules.add(one)
            ahead.extend(type.__subclasses__(one))
    classes = {base for one in modules for base in one.__mro__}
    return any(runs(vars(base).get("__init__"), code) for base in classes)


def runs(function: Any, code: CodeType) -> bool:
    """Whether a function has this code, or what it wraps has."""
    for _ in range(_DEEPEST):
        if type(function) is not FunctionType:
            return False
        if function.__code__ is code:
            return True
        function = vars(function).get("__wrapped__")
    return False
