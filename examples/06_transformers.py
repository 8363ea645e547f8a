"""Pools without annotations: a Llama, its KV cache and a LoRA adapter, with not a line about pools.

python examples/06_transformers.py                       # on a GPU
python -m pyalloc.simgpu examples/06_transformers.py     # without one
"""

import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import pyalloc

pyalloc.enable()

config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, vocab_size=4096
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")  # peft 0.21 reads it
model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], r=16)).eval()

cache = DynamicCache(config=config)
tokens = torch.zeros((1, 100), dtype=torch.int64, device="cuda")
with torch.inference_mode():
    for _ in range(10):
        # The cache by its place: transformers 5 has renamed the argument.
        logits = model(tokens, None, None, cache, use_cache=True).logits
        tokens = torch.zeros((1, 1), dtype=torch.int64, device="cuda")

for pool in pyalloc.pools():
    print(f"{pool.name:<10} {pool.blocks:>4} blocks {pool.requested:>12,} bytes")
