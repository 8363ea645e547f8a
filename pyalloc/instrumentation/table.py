"""Which functions are wrapped, for which pool. One row each; what a wrapper does is in scopes.py and torch_modules.py.

A scope should cover the call that allocates and little else, so that nothing short-lived lands beside what stays. So of
a cache that is allocated once only the making is wrapped, and not the update of each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .scopes import inheriting_workers, scoped
from .torch_modules import built_under_a_device, moved


@dataclass(frozen=True)
class Target:
    """Functions of one module: "name", "Class.name", or "*.name" for every class of the module that defines it.

    takes: of those only the ones with a parameter of this name. wrap(function, pool) makes the wrapper.
    """

    module: str
    attribute: str
    pool: str
    wrap: Callable[[Any, str], Any] = scoped
    takes: str = ""

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]


_TORCH_LEAVES = ("activation", "batchnorm", "conv", "instancenorm", "linear", "normalization", "rnn", "sparse")
_CACHE_MAKING = ("lazy_initialization", "lazy_initialization_indexer", "reorder_cache", "prefetch", "_quantize")
_CACHE_GROWING = (
    "DynamicLayer.update",
    "DynamicSlidingWindowLayer.update",
    "DynamicIndexedLayer.update_indexer",
    "*.batch_repeat_interleave",
    "*.batch_select_indices",
)

TARGETS: tuple[Target, ...] = (
    # Modules moved (to, cuda, half, to_empty), loaded, or built on a device.
    Target("torch.nn.modules.module", "Module._apply", "weights", moved),
    Target("torch.nn.modules.module", "Module.load_state_dict", "weights"),
    Target("torch.nn.modules.rnn", "RNNBase.flatten_parameters", "weights"),
    Target("torch.nn.parameter", "UninitializedTensorMixin.materialize", "weights"),
    Target("torch.utils._device", "DeviceContext.__torch_function__", "weights", built_under_a_device),
    *(Target(f"torch.nn.modules.{name}", "*.__init__", "weights", takes="device") for name in _TORCH_LEAVES),
    # Its loader copies in threads of its own, which take the pool of the thread that starts them.
    Target("transformers.modeling_utils", "PreTrainedModel.from_pretrained", "weights"),
    Target("transformers.core_model_loading", "ThreadPoolExecutor", "weights", inheriting_workers),
    *(Target("transformers.cache_utils", f"*.{name}", "kv") for name in _CACHE_MAKING),
    *(Target("transformers.cache_utils", name, "kv") for name in _CACHE_GROWING),
    Target("transformers.generation.continuous_batching.cache", "PagedAttentionCache.__init__", "kv"),
    # Adapters; one moved later with its model is known by the names peft gives its tensors (torch_modules.py).
    Target("transformers.integrations.peft", "PeftAdapterMixin.add_adapter", "lora"),
    Target("transformers.integrations.peft", "PeftAdapterMixin.load_adapter", "lora"),
    Target("peft.tuners.tuners_utils", "BaseTuner.inject_adapter", "lora"),
    Target("peft.peft_model", "PeftModel.__init__", "lora"),
    Target("peft.peft_model", "*.add_adapter", "lora"),
    Target("peft.peft_model", "*.load_adapter", "lora"),
    Target("peft.mixed_model", "PeftMixedModel.add_adapter", "lora"),
    Target("peft.mixed_model", "PeftMixedModel.load_adapter", "lora"),
    Target("diffusers.loaders.lora_pipeline", "*.load_lora_weights", "lora"),
)
