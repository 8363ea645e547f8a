"""Two engines take turns on one GPU: one sleeps while the other serves, and wakes as it was.

python -m pyalloc.simgpu --memory 2GiB examples/07_sleep.py
"""

import torch

import pyalloc

pyalloc.enable(lora_reserve=0)
LAYERS, WIDTH, TOKENS = 24, 2048, 16384


class Engine:
    """A model's weights and its KV cache, in pools of its own."""

    def __init__(self, name: str) -> None:
        self.weights = pyalloc.create_pool(f"{name}_weights", like="weights")
        self.kv = pyalloc.create_pool(f"{name}_kv", like="kv")
        with pyalloc.pool(self.weights):
            self.layers = [torch.full((WIDTH, WIDTH), i, dtype=torch.bfloat16, device="cuda") for i in range(LAYERS)]
        with pyalloc.pool(self.kv):
            self.cache = torch.empty(LAYERS, 2, TOKENS, 256, dtype=torch.bfloat16, device="cuda")

    def sleep(self) -> None:
        # The weights are wanted back; of the cache only its place is.
        pyalloc.sleep([self.weights, self.kv], offload={self.weights})

    def wake(self) -> None:
        pyalloc.wake([self.weights, self.kv])
        self.cache.zero_()

    def serve(self) -> None:
        activations = torch.empty(TOKENS // 8, WIDTH, dtype=torch.bfloat16, device="cuda")
        for layer in self.layers:
            activations = activations @ layer


def used() -> int:
    """What the driver says is in use, all of it."""
    free, total = torch.cuda.mem_get_info()
    return total - free


first = Engine("first")
addresses = [layer.data_ptr() for layer in first.layers]
first.sleep()
second = Engine("second")
second.sleep()
for cycle in range(5):
    for engine in (first, second):
        engine.wake()
        engine.serve()
        torch.cuda.empty_cache()
        awake = used()
        engine.sleep()
        print(f"cycle {cycle}: {awake:,} bytes used awake, {used():,} asleep")
first.wake()
print("addresses kept:", addresses == [layer.data_ptr() for layer in first.layers])
