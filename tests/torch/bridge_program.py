"""Programs that begin with pyalloc enabled through its bridge."""

from __future__ import annotations

import textwrap

PRELUDE = """
import pyalloc
assert pyalloc.enable(bridge="require", lora_reserve=0)
import torch
from torch.cuda import memory as M

def raises(kind, text, call):
    try:
        result = call()
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__}: {result!r}")
"""


def program(*parts: str) -> str:
    """A program that starts with pyalloc enabled through its bridge."""
    return PRELUDE + "".join(textwrap.dedent(part) for part in parts)
