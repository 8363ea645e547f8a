"""Wrappers for torch's modules: which of the tensors a module moves or makes are weights.

Gradients move with a module and are none; a LoRA adapter moves with its model and stays one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .scopes import core, pop, report_open_scope, suggest

_DEEPEST = 16  # frames between a module's __init__ and the function that makes its tensor


def moved(apply: Callable[..., Any], pool: str) -> Callable[..., Any]:
    """torch.nn.Module._apply(self, fn, ...), with each tensor that `fn` makes in the pool it belongs to. It calls
    itself for every submodule; the outermost call looks at all their tensors once.
    """
    weights, lora = core.find_pool(pool), core.find_pool("lora")

    class Placed:
        """`fn` of one outermost call. Holds numbers of tensors, not tensors: one that moves is to be freed at once."""

        def __init__(self, fn: Callable[[Any], Any], module: torch.nn.Module) -> None:
            self.fn = fn
            self.gradients = {id(one.grad) for one in module.parameters() if one.grad is not None}
            self.adapters = {id(one) for one in adapter_tensors(module)}

        def __call__(self, tensor: Any) -> Any:
            if id(tensor) in self.gradients:
                return self.fn(tensor)
            number = lora if id(tensor) in self.adapters else weights
            if not suggest(number):
                return self.fn(tensor)
            try:
                return self.fn(tensor)
            finally:
                if pop(number):
                    report_open_scope()

    @functools.wraps(apply)
    def call(self: torch.nn.Module, fn: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or type(fn) is Placed:
            return apply(self, fn, *args, **kwargs)
        return apply(self, Placed(fn, self), *args, **kwargs)

    return call


def adapter_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers that are adapters': peft's layers name the attributes that hold theirs."""
    layer: Any
    for layer in module.modules():
        if not hasattr(type(layer), "adapter_layer_names"):
            continue
        for path in (*layer.adapter_layer_names, *getattr(layer, "other_param_names", ())):
            held: Any = layer
            for name in path.split("."):
                held = getattr(held, name, None)
            if isinstance(held, torch.nn.Module):
                yield from held.parameters()
                yield from held.buffers()
            elif isinstance(held, torch.Tensor):
                yield held


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
        if code.co_name == "__init__" and code.co_argcount > 0:
            made = frame.f_locals.get(code.co_varnames[0])
            if isinstance(made, torch.nn.Module):
                return True
        frame = frame.f_back
    return False
