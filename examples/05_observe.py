"""Seeing memory: fragmentation made on purpose, a page to look at, and a leak found by comparing two snapshots.

python examples/05_observe.py [folder]                                      # on a GPU
python -m pyalloc.simgpu --memory 8GiB examples/05_observe.py [folder]      # without one
"""

import contextlib
import sys
from pathlib import Path

import torch

import pyalloc
from pyalloc.snapshots.page import html

MIB = 1 << 20
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
pyalloc.enable(lora_reserve=0)

# Fragmentation: of 64 blocks of 3 MiB end to end, every second one goes.
pyalloc.create_pool("fragmented")
with pyalloc.pool("fragmented"):
    blocks = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(64)]
del blocks[1::2]
pool = next(pool for pool in pyalloc.pools() if pool.name == "fragmented")
print(f"{pool.blocks} blocks of {pool.requested:,} bytes in {pool.reserved:,} reserved")
for kind, value in pool.fragmentation().items():
    print(f"{kind:<18} {value:.4f}")

# A leak: a list that keeps one KV block of every request.
with contextlib.suppress(RuntimeError):  # without the bridge there is none
    torch.cuda.memory._record_memory_history(stacks="python")  # so that blocks have call sites
kept = []


def handle(request: int) -> None:
    with pyalloc.pool("kv"), pyalloc.tag(f"request-{request}"):
        cache = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    kept.append(cache[0])  # the mistake


handle(0)
snapshots = [pyalloc.snapshot()]
for request in range(1, 97):
    handle(request)
    if request % 16 == 0:
        snapshots.append(pyalloc.snapshot())
for change in pyalloc.diff(snapshots[0], snapshots[-1]).grew(at_least=MIB):
    print(f"{change.bytes:+,} bytes, {change.blocks:+} blocks: {change}")

snapshots[0].save(folder / "before.json")
snapshots[-1].save(folder / "after.json")
(folder / "memory.html").write_text(html(snapshots), encoding="utf-8")
print(f"pyalloc diff {folder / 'before.json'} {folder / 'after.json'} says it too; {folder / 'memory.html'} shows it")
