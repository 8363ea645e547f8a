"""torch's modules under instrumentation: odd ones move and build as they do without us, and keep no memory alive."""

from __future__ import annotations

from conftest import Run
from instrument_program import PRELUDE, program

# Each case is run on torch alone too: what fails or warns there may do so here, and nothing else.
ODD_MODULES = """
import sys, warnings, torch
import torch.nn.utils.prune
Linear = torch.nn.Linear

def shadowed(name):
    model = Linear(4, 4)
    object.__setattr__(model, name, {"lr": 1})
    return model

class Override(Linear):
    def parameters(self, group):
        return [self.weight]

class Introspective(Linear):
    def _apply(self, fn, recurse=True):
        assert fn.__name__ and fn.__code__ and not hasattr(fn, "missing")
        return super()._apply(fn, recurse)

class Wrapping(Linear):
    def _apply(self, fn, recurse=True):
        return super()._apply(lambda tensor: fn(tensor), recurse)

class Raising(Linear):
    @property
    def adapter_layer_names(self):
        raise RuntimeError("not to be read")

class Paths(torch.nn.Module):
    adapter_layer_names = ["nothing", "inner.nothing.at.all", "inner.weight.too.far", "", 3]
    other_param_names = 5
    def __init__(self):
        super().__init__()
        self.inner = Linear(4, 4)

def named(value):
    return type("Named", (Linear,), {"adapter_layer_names": value})(4, 4)

def not_a_leaf():
    model = Linear(4, 4)
    model._parameters["weight"] = model._parameters["weight"] * 2
    return model

def pruned():
    model = Linear(4, 4)
    torch.nn.utils.prune.l1_unstructured(model, "weight", 0.5)
    return model

class Proxy:
    @property
    def __class__(self):
        raise RuntimeError("a proxy")
    def __init__(self):
        with torch.device("cuda"):
            self.tensor = torch.empty(4)
    def cuda(self):
        return self

class NoSelf(Proxy):
    def __init__(self):
        del self
        with torch.device("cuda"):
            torch.empty(4)

cases = dict(
    parameters=lambda: shadowed("parameters"), modules=lambda: shadowed("modules"),
    buffers=lambda: shadowed("buffers"), children_of=lambda: torch.nn.Sequential(shadowed("modules")),
    override=lambda: Override(4, 4), introspective=lambda: Introspective(4, 4),
    introspective_child=lambda: torch.nn.Sequential(Introspective(4, 4)), wrapping=lambda: Wrapping(4, 4),
    raising=lambda: Raising(4, 4), paths=Paths, no_names=lambda: named(None), numbers=lambda: named((1, 2)),
    text=lambda: named("weight"), not_a_leaf=not_a_leaf, pruned=pruned, proxy=Proxy, no_self=NoSelf,
    lazy=lambda: torch.nn.LazyLinear(4), script=lambda: torch.jit.script(torch.nn.Sequential(Linear(4, 4))))

def outcomes():
    found = {}
    for name, make in cases.items():
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                make().cuda()
                result = "moved"
            except Exception as error:
                result = repr(error)
        found[name] = result, len(heard)
    return found
"""


def test_moving_fails_and_warns_as_without_us(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + ODD_MODULES
        + """
assert pyalloc.enable(bridge="require", instrument=False)
alone = outcomes()
assert [name for name, (result, _) in alone.items() if result != "moved"] == [], alone
instrumentation.install()
ours = outcomes()
assert ours == alone, {name: (ours[name], alone[name]) for name in cases if ours[name] != alone[name]}
assert pyalloc._native.library().current_pool() == 0
odd = ("parameters", "children_of", "override", "introspective_child", "wrapping", "raising", "paths", "no_names",
       "numbers", "text")
for name in odd:         # and what can be known of them is
    model = cases[name]().cuda()
    tensors = [one for part in torch.nn.Module.modules(model) for one in part._parameters.values()]
    assert where(tensors).keys() == {"weights"}, name
"""
    )


def test_a_guess_that_fails_leaves_the_move_alone(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            import logging
            logging.basicConfig(level=logging.DEBUG)

            class Children(dict):
                def values(self):
                    raise RuntimeError("no children for you")

            model = torch.nn.Linear(4, 4)
            model._modules = Children()
            class Failing(RuntimeError):
                pass
            assert where(model.cuda().parameters(recurse=False)).keys() == {"general"}

            def fails(tensor):          # the user's own error is the user's
                calls.append(tensor)
                raise Failing
            calls = []
            try:
                torch.nn.Linear(4, 4)._apply(fails)
            except Failing:
                assert len(calls) == 1
            else:
                raise AssertionError("swallowed")
            """
        )
    )
    assert done.stderr.count("stays in the current pool") == 1
    assert "DEBUG" in done.stderr


def test_building_under_a_device_keeps_no_local_alive(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import functools
            seen = []

            def wrapped(function):
                @functools.wraps(function)
                def inner(*args, **kwargs):
                    return function(*args, **kwargs)
                return inner

            class Mixin:
                def __init__(self):
                    super().__init__()
                    self.mixed = torch.nn.Parameter(torch.empty(3))

            class Mixed(Mixin, torch.nn.Module):
                pass

            class Model(torch.nn.Module):
                @wrapped
                def __init__(self):
                    super().__init__()
                    scratch = torch.empty(256 << 20, dtype=torch.uint8)
                    self.weight = torch.nn.Parameter(torch.empty(16))
                    del scratch
                    seen.append(torch.cuda.memory_allocated())
                    self.mixed = Mixed()

            class Child(Model):
                def __init__(self):
                    super().__init__()
                    self.more = torch.nn.Parameter(torch.empty(16))

            class Other:
                def __init__(self):
                    self.tensor = torch.empty(4)

            with torch.device("cuda"):
                assert where(Child().parameters()).keys() == {"weights"}
                assert where([Other().tensor]).keys() == {"general"}
                assert where(Mixed().parameters()).keys() == {"weights"}
            assert seen[0] < 1 << 20, seen
            """
        )
    )


def test_what_lora_prepare_sets_aside_lasts_for_a_whole_move(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            class Layer(torch.nn.Module):          # as peft's: it names what holds its adapters
                adapter_layer_names = ("lora_A", "lora_B")
                def __init__(self):
                    super().__init__()
                    def linear(): return torch.nn.Linear(1 << 10, 4 << 10, bias=False)      # 16 MiB
                    self.lora_A, self.base, self.lora_B = torch.nn.ModuleDict({"a": linear()}), linear(), \
                        torch.nn.ModuleDict({"a": linear()})

            def reserve():
                return next(one.reserve for one in pyalloc.pools() if one.name == "lora")

            model = torch.nn.Sequential(Layer(), Layer())
            for one in model.parameters():
                one.grad = torch.zeros_like(one)
            torch.empty(1, device="cuda")
            before = reserve()
            pyalloc.lora_prepare("80MiB")
            torch.nn.Linear(4, 4).cuda()            # no adapter in it: the load that is prepared for is yet to come
            assert reserve() > before
            model.cuda()
            assert requested("lora") == 64 << 20
            assert requested("weights") == 32 << 20, requested("weights")
            assert where(one.grad for one in model.parameters()).keys() == {"general"}
            assert pyalloc.device_stats(0)["lora_overflows"] == 0
            assert reserve() == before              # and ends with the move
            """,
            'bridge="require", lora_reserve="2MiB", slack=0.0',
        )
    )
