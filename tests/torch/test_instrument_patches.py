"""Instrumentation itself: put back, switched off, on a library that has changed, listed, and compiled through."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import Run
from instrument_program import PRELUDE, program
from support import need


@pytest.fixture(autouse=True)
def _libraries() -> None:
    for name in ("transformers", "peft"):
        need(find_spec(name), f"{name} is not installed")


def test_remove_puts_every_original_back(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        PRELUDE
        + """
import inspect
import torch, transformers, peft
from pyalloc.instrumentation.patches import find
from pyalloc.instrumentation.table import TARGETS
import importlib

def state():
    found = {}
    for target in TARGETS:
        if target.library == "diffusers":
            continue
        for owner, name in find(target, importlib.import_module(target.module)):
            found[owner, name] = vars(owner).get(name)
    return found

before, finders = state(), list(sys.meta_path)
assert pyalloc.enable(bridge="require")
during = state()
assert during.keys() == before.keys() and len(before) > 90
assert all(during[key] is not before[key] for key in before)
assert not instrumentation.active().missing
for owner, name in before:
    if inspect.isfunction(before[owner, name]):     # what wrapped it says the same of itself
        assert inspect.signature(getattr(owner, name)) == inspect.signature(before[owner, name])
assert instrumentation.remove() == []
assert state() == before and all(state()[key] is before[key] for key in before)
assert sys.meta_path == finders and instrumentation.active() is None
model = torch.nn.Linear(100, 100).cuda()
assert where(model.parameters()).keys() == {"general"}

instrumentation.install()       # and again, now under a wrapper of somebody else's
ours = torch.nn.Module.load_state_dict
torch.nn.Module.load_state_dict = lambda *args, **kwargs: ours(*args, **kwargs)
assert instrumentation.remove() == ["torch.nn.modules.module.Module.load_state_dict"]
"""
    )


def test_off(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            finders = list(sys.meta_path)
            apply = torch.nn.Module._apply
            from transformers import DynamicCache
            assert instrumentation.active() is None and torch.nn.Module._apply is apply
            assert not any(type(one).__module__.startswith("pyalloc") for one in finders)
            assert not hasattr(DynamicCache.update, "__wrapped__")
            try:
                pyalloc.enable(bridge="require", instrument=True)
            except pyalloc.StateError as error:
                assert "instrument:off" in str(error)
            else:
                raise AssertionError("accepted")
            assert where(torch.nn.Linear(3, 4).cuda().parameters()).keys() == {"general"}
            """,
            'bridge="require", instrument="off"',
        )
    )


def test_a_changed_library_warns_once_and_works(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        PRELUDE
        + """
import torch, transformers.cache_utils as cache_utils, transformers.modeling_utils as modeling_utils
class OwnCache(cache_utils.DynamicLayer):
    pass
del cache_utils.DynamicSlidingWindowLayer, cache_utils.DynamicIndexedLayer
modeling_utils.PreTrainedModel.from_pretrained = 5          # not even a function
original, torch.nn.Module.load_state_dict = torch.nn.Module.load_state_dict, property(lambda self: None)
assert pyalloc.enable(bridge="require")
assert set(instrumentation.active().missing) == {"torch", "transformers"}
assert len(instrumentation.active().missing["transformers"]) == 3
torch.nn.Module.load_state_dict = original
model = llama().cuda()
assert share("weights", model.parameters()) >= 0.99
layer = OwnCache()
states = torch.zeros(1, 2, 3, 4, device="cuda")
layer.update(states, states)
assert where([layer.keys, layer.values]).keys() == {"kv"}
"""
    )
    warnings = [line for line in done.stderr.splitlines() if "does not know" in line]
    assert len(warnings) == 2, done.stderr
    assert {line.split("does not know ")[1].split()[0] for line in warnings} == {"torch", "transformers"}


def test_diffusers_pipelines(run_on_simgpu: Run, tmp_path: Path) -> None:
    """diffusers is not among the test's libraries: a module of its name and shape stands in."""
    loaders = tmp_path / "diffusers" / "loaders"
    loaders.mkdir(parents=True)
    (tmp_path / "diffusers" / "__init__.py").write_text("")
    (loaders / "__init__.py").write_text("")
    (loaders / "lora_pipeline.py").write_text(
        "import torch\n"
        "class StableDiffusionLoraLoaderMixin:\n"
        "    def load_lora_weights(self, path, adapter_name=None, **kwargs):\n"
        "        self.adapter = [torch.empty(16, 320, device='cuda') for _ in range(4)]\n"
        "class FluxLoraLoaderMixin:\n"
        "    def load_lora_weights(self, path, **kwargs):\n"
        "        self.adapter = [torch.empty(16, 320, device='cuda') for _ in range(4)]\n"
        "class LTXVideoLoraLoaderMixin(FluxLoraLoaderMixin):\n"
        "    pass\n"
    )
    run_on_simgpu(
        program(
            """
            sys.path.insert(0, os.environ["FOLDER"])
            from diffusers.loaders import lora_pipeline
            for name in ("StableDiffusionLoraLoaderMixin", "FluxLoraLoaderMixin", "LTXVideoLoraLoaderMixin"):
                pipeline = getattr(lora_pipeline, name)()
                pipeline.load_lora_weights("folder", adapter_name="pixel")
                assert where(pipeline.adapter).keys() == {"lora"}
            assert not instrumentation.active().missing
            """
        ),
        env={"FOLDER": str(tmp_path)},
    )


def test_a_model_compiles_whole(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from peft import LoraConfig, get_peft_model
            from transformers import DynamicCache, StaticCache
            model = get_peft_model(llama().cuda(), LoraConfig(target_modules=["q_proj"])).eval()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
            early = StaticCache(model.config, max_cache_len=64)
            early.early_initialization(2, 4, 32, torch.float32, "cuda")
            caches = {"dynamic": DynamicCache(config=model.config), "early": early,
                      "static": StaticCache(model.config, max_cache_len=64)}
            with torch.inference_mode():
                for cache in caches.values():
                    tokens = torch.zeros((2, 17), dtype=torch.int64, device="cuda")
                    for step in range(3):
                        compiled(tokens, past_key_values=cache, use_cache=True)
                        tokens = tokens[:, :1]
            pools = {name: where(cache_tensors(cache)).keys() for name, cache in caches.items()}
            assert pools == {"dynamic": {"general"}, "static": {"general"}, "early": {"kv"}}, pools
            torch.set_default_device("cuda")
            torch.compile(lambda x: torch.zeros(4) + x, fullgraph=True, backend="aot_eager")(torch.zeros(4))
            """
        )
    )


def test_doctor_lists_what_is_wrapped(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
        import json, subprocess, sys
        command = [sys.executable, "-m", "pyalloc", "doctor", "--json", "--libraries"]
        done = subprocess.run(command, capture_output=True, text=True)
        report = json.loads(done.stdout)["instrumentation"]
        assert report["state"] == "on"
        libraries = report["libraries"]
        assert set(libraries) == {"torch", "transformers", "peft", "diffusers"}
        for name in ("torch", "transformers", "peft"):
            found = libraries[name]
            assert found["installed"] and found["version"] and found["missing"] == [], found
        assert "torch.nn.modules.module.Module._apply" in libraries["torch"]["wraps"]["weights"]
        assert "transformers.cache_utils.DynamicLayer.update" in libraries["transformers"]["wraps"]["kv"]
        assert "peft.peft_model.PeftModel.load_adapter" in libraries["peft"]["wraps"]["lora"]
        text = subprocess.run([sys.executable, "-m", "pyalloc", "doctor"], capture_output=True, text=True,
                              env={**__import__("os").environ, "PYALLOC_CONF": "instrument:off"}).stdout
        print([line for line in text.splitlines() if line.startswith("instrument ")])
        assert "once it is imported; --libraries looks into it" in text
        """
    )
    assert "instrument off" in done.stdout
