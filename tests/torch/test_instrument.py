"""Pools without annotations: models of torch, transformers and peft as their users write them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import Run
from instrument_program import PRELUDE, program
from support import need


@pytest.fixture(autouse=True)
def _libraries() -> None:
    for name in ("transformers", "peft", "accelerate"):
        need(find_spec(name), f"{name} is not installed")


# Every parameter, cache and adapter tensor is looked up in the heap. `model` comes from the program before.
LLAMA_WITH_ADAPTERS = """
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

def check(model):
    base = sum(p.numel() * p.element_size() for p in model.parameters())
    assert share("weights", model.parameters()) >= 0.99, where(model.parameters())
    assert requested("lora") == 0

    lora = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], r=8)
    model = get_peft_model(model, lora)
    model.add_adapter("second", LoraConfig(target_modules=["q_proj", "v_proj"], r=16))
    folder = os.path.join(os.environ["FOLDER"], "adapter")
    model.save_pretrained(folder, selected_adapters=["second"])
    model.load_adapter(os.path.join(folder, "second"), adapter_name="third")

    def parameters(adapter):
        return [p for name, p in model.named_parameters() if ("lora_" in name) == adapter]

    def check_parameters():
        assert len(parameters(True)) == 2 * (2 * 3 + 2 * 2 + 2 * 2)
        assert share("lora", parameters(True)) >= 0.99, where(parameters(True))
        assert share("weights", parameters(False)) >= 0.99, where(parameters(False))
        assert requested("lora") == sum(p.numel() * p.element_size() for p in parameters(True))

    check_parameters()
    caches = {"dynamic": DynamicCache(config=model.config), "static": StaticCache(model.config, max_cache_len=64)}
    for cache in caches.values():
        tokens = torch.randint(1000, (2, 17)).cuda()
        with torch.inference_mode():
            for step in range(6):
                logits = model(tokens, past_key_values=cache, use_cache=True).logits
                tokens = torch.full((2, 1), step, device="cuda")
        assert share("kv", cache_tensors(cache)) >= 0.99, where(cache_tensors(cache))
    assert caches["dynamic"].get_seq_length() == 17 + 5
    lengths = [one.untyped_storage().nbytes() for cache in caches.values() for one in cache_tensors(cache)]
    assert requested("kv") == sum(lengths) + 8 * 2      # and the lengths that the static layers count
    assert where([logits, tokens]).keys() == {"general"}
    check_parameters()

    model.half().to("cpu")
    assert requested("lora") == 0
    model.to("cuda")
    check_parameters()

"""


@pytest.mark.parametrize("bridge", ["require", "off"])
def test_llama_with_adapters_is_classified(run_on_simgpu: Run, tmp_path: Path, bridge: str) -> None:
    run_on_simgpu(
        program(
            LLAMA_WITH_ADAPTERS
            + """
model = llama()
model.save_pretrained(os.environ["FOLDER"])
check(model.to("cuda"))
del model
assert requested("weights") == requested("lora") == requested("kv") == 0, pyalloc.pools()
check(LlamaForCausalLM.from_pretrained(os.environ["FOLDER"], device_map="cuda"))
check(LlamaForCausalLM.from_pretrained(os.environ["FOLDER"]).cuda())
""",
            f"bridge={bridge!r}",
        ),
        env={"FOLDER": str(tmp_path / "model")},
    )


def test_an_imported_library_is_instrumented_while_torch_enables_pyalloc(run_on_simgpu: Run, tmp_path: Path) -> None:
    """Here transformers.cache_utils imports torch, whose hook enables pyalloc in the middle of that module's import."""
    run_on_simgpu(
        "from transformers.cache_utils import DynamicCache\n"
        + PRELUDE
        + "import torch\nassert pyalloc.is_enabled()\n"
        + LLAMA_WITH_ADAPTERS
        + "check(llama().cuda())\n",
        env={"FOLDER": str(tmp_path), "PYALLOC_CONF": "enable:True,bridge:require"},
    )


def test_adapters_of_transformers_own_interface(run_on_simgpu: Run, tmp_path: Path) -> None:
    run_on_simgpu(
        program(
            """
            from peft import LoraConfig
            from transformers import AutoModelForCausalLM
            import transformers.integrations.peft
            transformers.integrations.peft.MIN_PEFT_VERSION = "0.19.0"     # it asks for what is not released yet
            base, adapter = os.path.join(os.environ["FOLDER"], "base"), os.path.join(os.environ["FOLDER"], "adapter")
            llama().save_pretrained(base)
            model = AutoModelForCausalLM.from_pretrained(base).to("cuda")
            model.add_adapter(LoraConfig(target_modules=["q_proj", "v_proj"], r=8), adapter_name="one")
            model.save_pretrained(adapter)
            def adapters(model):
                return [p for name, p in model.named_parameters() if "lora_" in name]
            assert share("lora", adapters(model)) == 1 and len(adapters(model)) == 8
            model.load_adapter(adapter, adapter_name="two")
            assert share("lora", adapters(model)) == 1 and len(adapters(model)) == 16, where(adapters(model))

            model = AutoModelForCausalLM.from_pretrained(adapter, device_map="cuda")  # the base model, then its adapter
            assert share("lora", adapters(model)) == 1 and len(adapters(model)) == 8, where(adapters(model))
            others = [p for name, p in model.named_parameters() if "lora_" not in name]
            assert share("weights", others) == 1, where(others)
            """
        ),
        env={"FOLDER": str(tmp_path)},
    )


def test_sliding_and_reordered_caches(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from transformers import DynamicCache, MistralConfig, MistralForCausalLM, StaticCache
            config = MistralConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                   num_key_value_heads=2, vocab_size=100, sliding_window=8)
            model = MistralForCausalLM(config).cuda().eval()
            for cache in (DynamicCache(config=config), StaticCache(config, max_cache_len=32)):
                assert "Sliding" in type(cache.layers[0]).__name__
                tokens = torch.zeros((2, 12), dtype=torch.int64, device="cuda")
                with torch.inference_mode():
                    for _ in range(4):
                        model(tokens, past_key_values=cache, use_cache=True)
                        tokens = tokens[:, :1]
                assert share("kv", cache_tensors(cache)) == 1, where(cache_tensors(cache))
            cache = DynamicCache()
            states = torch.zeros(2, 4, 10, 64, device="cuda")
            cache.update(states, states, 0)
            for change in (lambda: cache.reorder_cache(torch.tensor([1, 0], device="cuda")),
                           lambda: cache.batch_repeat_interleave(3),
                           lambda: cache.batch_select_indices(torch.tensor([0, 2], device="cuda"))):
                change()
                assert share("kv", cache_tensors(cache)) == 1
            layer = cache.layers[0]
            layer.offload()
            assert layer.keys.device.type == "cpu"
            layer.prefetch()
            assert share("kv", cache_tensors(cache)) == 1
            """
        )
    )


def test_the_cache_of_continuous_batching(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from types import SimpleNamespace
            from transformers import ContinuousBatchingConfig
            from transformers.generation.continuous_batching.cache import PagedAttentionCache
            batching = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64, max_memory_percent=0.5)
            alone = SimpleNamespace(tp_size=1)
            cache = PagedAttentionCache(llama().config, batching, torch.device("cuda"), alone, torch.float16)
            assert where([cache.cache_tensor]).keys() == {"kv"} and requested("kv") >= 64 * 1024
            """
        )
    )


def test_training_leaves_gradients_and_states_in_general(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from torch import nn
            model = nn.Sequential(nn.Linear(100, 300), nn.BatchNorm1d(300), nn.Linear(300, 7)).cuda()
            weights = [*model.parameters(), *model.buffers()]
            total = sum(one.numel() * one.element_size() for one in weights)
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                loss = model(torch.zeros(5, 100, device="cuda")).sum()
                loss.backward()
                optimizer.step()
            gradients = [p.grad for p in model.parameters()]
            states = [one for state in optimizer.state.values() for one in state.values() if one.is_cuda]
            assert where([*gradients, *states, loss]).keys() == {"general"} and len(states) == 12
            assert where(weights) == {"weights": total} and requested("weights") == total
            model.double()              # with its gradients
            gradients = [p.grad for p in model.parameters()]
            assert gradients[0].dtype == torch.float64 and where(gradients).keys() == {"general"}
            assert where([*model.parameters(), *model.buffers()]).keys() == {"weights"}
            """
        )
    )


def test_modules_built_on_the_device(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from torch import nn
            class Norm(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = self.ones()
                def ones(self):
                    return nn.Parameter(torch.ones(1000))
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = nn.ModuleList([nn.Linear(1000, 1000), Norm(), nn.Embedding(100, 10), nn.GRU(8, 8)])
                    self.made = self(torch.zeros(2, 1000))  # not by its __init__ but by a forward pass inside of it
                def forward(self, x):
                    return torch.zeros(1000), self.layers[0](x)
            with torch.device("cuda"):
                net = Net()
                outside = torch.zeros(1000)
            assert where(net.parameters()).keys() == {"weights"}
            assert where([*net.made, outside]).keys() == {"general"}
            assert requested("weights") == sum(p.numel() * 4 for p in net.parameters()) + 4 * 2000   # and its input
            for kind, sizes in {nn.Linear: (30, 40), nn.Conv2d: (3, 4, 5), nn.LayerNorm: (9,), nn.BatchNorm2d: (3,),
                                nn.LSTM: (4, 5), nn.Embedding: (6, 7), nn.MultiheadAttention: (8, 2),
                                nn.EmbeddingBag: (6, 7)}.items():
                made = kind(*sizes, device="cuda")
                held = [*made.parameters(), *made.buffers()]
                assert where(held).keys() == {"weights"}, made
            lazy = nn.LazyLinear(5, device="cuda")
            lazy(torch.zeros(2, 3, device="cuda"))
            assert where(lazy.parameters()).keys() == {"weights"}
            torch.set_default_device("cuda")
            assert where(nn.Linear(3, 4).parameters()).keys() == {"weights"}
            assert where([torch.ones(5)]).keys() == {"general"}
            torch.set_default_device(None)
            with torch.device("meta"):
                net = nn.Linear(50, 60)
            net.to_empty(device="cuda").load_state_dict({"weight": torch.ones(60, 50), "bias": torch.ones(60)})
            assert where(net.parameters()).keys() == {"weights"}
            """
        )
    )


def test_the_users_scope_wins(run_on_simgpu: Run, tmp_path: Path) -> None:
    run_on_simgpu(
        program(
            """
            from transformers import DynamicCache, LlamaForCausalLM
            pyalloc.create_pool("mine")
            llama().save_pretrained(os.environ["FOLDER"])
            with pyalloc.pool("mine"):
                model = torch.nn.Linear(100, 100).cuda()
                loaded = LlamaForCausalLM.from_pretrained(os.environ["FOLDER"], device_map="cuda")  # by threads
                cache = DynamicCache()
                cache.update(torch.zeros(1, 2, 3, 4, device="cuda"), torch.zeros(1, 2, 3, 4, device="cuda"), 0)
                with pyalloc.pool("general"):
                    plain = torch.nn.Linear(100, 100).cuda()
            for held in (model.parameters(), loaded.parameters(), cache_tensors(cache)):
                assert where(held).keys() == {"mine"}
            assert where(plain.parameters()).keys() == {"general"}
            assert where(model.double().parameters()).keys() == {"weights"}
            """
        ),
        env={"FOLDER": str(tmp_path)},
    )


def test_an_exception_leaves_the_scopes_in_order(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from peft import LoraConfig, get_peft_model
            from transformers import DynamicCache, LlamaForCausalLM
            core = _native.library()
            model = llama().cuda()
            peft_model = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
            cache = DynamicCache()
            states = torch.zeros(1, 2, 3, 4, device="cuda")
            cache.update(states, states, 0)
            wrong = [
                lambda: LlamaForCausalLM.from_pretrained("/nowhere"),
                lambda: torch.nn.Linear(-1, 5, device="cuda"),
                lambda: model.load_state_dict({"no": 1}),
                lambda: model._apply(lambda tensor: 1 / 0),
                lambda: cache.update(states[:, :1], states, 0),
                lambda: peft_model.load_adapter("/nowhere", adapter_name="x"),
                lambda: peft_model.add_adapter("default", LoraConfig()),
                lambda: torch.nn.Linear(1 << 20, 1 << 20, device="cuda"),
            ]
            for outer in ("general", "workspace"):
                for call in wrong:
                    core.push_pool(core.find_pool(outer))
                    for scoped in (False, True):
                        if not scoped:
                            core.pop_pool(core.find_pool(outer))
                        try:
                            call()
                        except Exception as error:
                            assert "pyalloc" not in str(error) or "out of memory" in str(error), error
                        else:
                            raise AssertionError("no error")
                        expected = outer if scoped else "general"
                        assert core.pool_names()[core.current_pool()] == expected
                        if not scoped:
                            core.push_pool(core.find_pool(outer))
                    core.pop_pool(core.find_pool(outer))
            raised = None
            try:
                core.pop_pool(0)
            except pyalloc.StateError as error:
                raised = error
            assert "no scope of that pool is open" in str(raised)
            """
        )
    )


def test_what_is_freed_within_a_step_lies_in_workspace(run_on_simgpu: Run) -> None:
    """With predict_lifetimes:on, after the steps from which the lifetimes are learnt."""
    run_on_simgpu(
        program(
            """
            from transformers import StaticCache
            model = llama(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, vocab_size=8000).half().cuda()
            cache = StaticCache(model.config, max_cache_len=400)

            def freed():
                '''Bytes of blocks that came and went, by pool, so far.'''
                return {one.name: one.requested_total - one.requested for one in pyalloc.pools()}

            def step(tokens):
                with torch.inference_mode():
                    model(torch.zeros((16, tokens), dtype=torch.int64, device="cuda"), past_key_values=cache)

            for tokens in (64, 1) * 4:
                step(tokens)
            before = freed()
            step(64)
            for _ in range(20):
                step(1)
            gone = {name: size - before[name] for name, size in freed().items()}
            assert gone["weights"] == gone["lora"] == 0, gone
            assert gone["workspace"] >= 0.95 * sum(gone.values()), gone
            assert gone["workspace"] > 400 << 20
            """,
            'bridge="require", predict_lifetimes="on"',
        )
    )
