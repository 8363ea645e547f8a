"""Programs about instrumentation: a small Llama, and which pool a tensor lies in, asked of the core."""

from __future__ import annotations

import textwrap

PRELUDE = """
import ctypes, os, sys
import pyalloc
from pyalloc import _native, instrumentation

class Segment(ctypes.Structure):    # the beginning of pyalloc_segment_view
    _fields_ = [("device", ctypes.c_int), ("large", ctypes.c_int), ("pool", ctypes.c_char_p),
                ("address", ctypes.c_size_t), ("bytes", ctypes.c_size_t)]

def pool_of():
    '''A function from an address to the name of its pool, as the heap is now.'''
    runs = []
    segment = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Segment))(
        lambda _, one: runs.append((one.contents.address, one.contents.bytes, one.contents.pool.decode())))
    block = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: None)
    assert ctypes.CDLL(pyalloc.library_path()).pyalloc_snapshot(0, None, segment, block) == 0
    return lambda address: next(pool for start, size, pool in runs if start <= address < start + size)

def where(tensors):
    '''Bytes by pool of the storages behind the tensors, which are all on the device.'''
    pool, found = pool_of(), {}
    for storage in {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}.values():
        assert storage.device.type == "cuda"
        if storage.nbytes():
            name = pool(storage.data_ptr())
            found[name] = found.get(name, 0) + storage.nbytes()
    return found

def share(pool, tensors):
    found = where(tensors)
    return found.get(pool, 0) / sum(found.values())

def requested(pool):
    return next(one.requested for one in pyalloc.pools() if one.name == pool)

def cache_tensors(cache):
    return [one for layer in cache.layers for one in (layer.keys, layer.values)]

def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM
    sizes = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
                 num_key_value_heads=4, vocab_size=1000, max_position_embeddings=512)
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **options})).eval()
"""


def program(text: str, options: str = 'bridge="require"') -> str:
    """A program that starts with pyalloc enabled with these options."""
    return f"{PRELUDE}\nassert pyalloc.enable({options})\nimport torch\n" + textwrap.dedent(text)
