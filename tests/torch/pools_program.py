"""Programs that use CUDA, and then have pyalloc's pools beside torch's own allocator."""

from __future__ import annotations

import textwrap

PRELUDE = """
import pyalloc
import torch
x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")    # CUDA is in use, and torch's allocator as well
assert pyalloc.enable(mode="pools", lora_reserve=0)
MIB = 1 << 20

def empty(size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)

def held(device=0):
    return {one.name: (one.blocks, one.requested) for one in pyalloc.pools(device) if one.blocks}

def raises(kind, text, call):
    try:
        result = call()
    except kind as error:
        assert text in str(error), str(error)
        return error
    raise AssertionError(f"no {kind.__name__}: {result!r}")
"""


def program(text: str) -> str:
    return PRELUDE + textwrap.dedent(text)
