"""LoRA adapters on a full device: the reserve takes small ones, lora_prepare() makes room for a large one.

python examples/03_lora.py                                       # on a GPU
python -m pyalloc.simgpu --memory 2GiB examples/03_lora.py       # without one
"""

import torch

import pyalloc

pyalloc.enable(lora_reserve="64MiB")
RANK, WIDTH, LAYERS = 32, 2048, 16


def load(scale: int = 1) -> list[torch.Tensor]:
    with pyalloc.pool("lora"):
        return [torch.empty(scale * RANK, WIDTH, dtype=torch.float16, device="cuda") for _ in range(2 * LAYERS)]


def driver_calls() -> int:
    stats = pyalloc.device_stats()
    return int(stats["num_device_alloc"] + stats["num_device_free"])


cache = [torch.empty(16 << 20, dtype=torch.uint8, device="cuda")]
free, _ = torch.cuda.mem_get_info()
cache.append(torch.empty(max(1, free - (256 << 20)), dtype=torch.uint8, device="cuda"))  # nearly all the rest

before = driver_calls()
adapters = [load() for _ in range(10)]
print(f"10 adapters of 4 MiB loaded with {driver_calls() - before} driver calls")
del adapters

pyalloc.lora_prepare("160MiB")  # say, while the request that needs it waits in a queue
before = driver_calls()
large = load(scale=40)
print(f"one of 160 MiB, prepared for, with {driver_calls() - before}")
print(f"overflows: {pyalloc.device_stats()['lora_overflows']}")
