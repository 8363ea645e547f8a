"""The shortest use: two lines more than plain torch.

python examples/01_enable.py                       # on a GPU
python -m pyalloc.simgpu examples/01_enable.py     # without one
"""

import torch

import pyalloc

pyalloc.enable()  # before the first use of CUDA

x = torch.empty(1 << 20, device="cuda")
print(f"{torch.cuda.memory_allocated():,} bytes allocated by {torch.cuda.get_allocator_backend()}")
