"""What programs of private pools share: MemPools, CUDA graphs, graph trees."""

PRELUDE = """
import gc, threading, torch
MIB = 1 << 20

def new(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")

def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
        return
    raise AssertionError(f"{call} raised nothing")

def reserved(pool):
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool))

def pools_of(*tensors):
    found = []
    for tensor in tensors:
        at = tensor.data_ptr()
        (segment,) = [s for s in torch.cuda.memory_snapshot() if s["address"] <= at < s["address"] + s["total_size"]]
        found.append(tuple(segment["segment_pool_id"]))
    return found
"""
