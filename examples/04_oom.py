"""When memory runs out: a function of yours frees some, and the error says what there is.

python -m pyalloc.simgpu --memory 1GiB examples/04_oom.py     # also on a GPU, if nothing else uses it
"""

import torch

import pyalloc

pyalloc.enable()
free, _ = torch.cuda.mem_get_info()
with pyalloc.pool("kv"):
    prefixes = [torch.empty(free // 8, dtype=torch.uint8, device="cuda") for _ in range(6)]


@pyalloc.on_oom
def drop_a_prefix(size: int, device: int) -> int:
    if not prefixes:
        return 0
    freed = prefixes.pop().nbytes
    print(f"{size:,} bytes are wanted; dropped a prefix of {freed:,}")
    return freed


activations = torch.empty(free // 4, dtype=torch.uint8, device="cuda")
print(f"served; {len(prefixes)} prefixes are left")
pyalloc.remove_on_oom(drop_a_prefix)
try:
    torch.empty(free, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
print(pyalloc.oom_report()["counts"])
