"""Purpose pools: weights, KV cache and activations never share memory, and each is accounted for.

python examples/02_pools.py                       # on a GPU
python -m pyalloc.simgpu examples/02_pools.py     # without one
"""

import torch

import pyalloc

pyalloc.enable(kv_limit="1GiB")

with pyalloc.pool("weights"):
    layers = [torch.empty(1024, 1024, dtype=torch.float16, device="cuda") for _ in range(24)]

with pyalloc.pool("kv"):
    cache = torch.empty(24, 2, 16, 512, 64, dtype=torch.float16, device="cuda")

x = torch.randn(8, 1024, dtype=torch.float16, device="cuda")
for layer in layers:
    with pyalloc.pool("workspace"):
        x = torch.nn.functional.gelu(x @ layer)

print(f"{'pool':<10} {'blocks':>6} {'requested':>12} {'used':>12} {'limit':>12}")
for pool in pyalloc.pools():
    limit = f"{pool.limit:,}" if pool.limit else "-"
    print(f"{pool.name:<10} {pool.blocks:>6} {pool.requested:>12,} {pool.used:>12,} {limit:>12}")
