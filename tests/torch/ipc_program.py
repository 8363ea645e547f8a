"""Programs whose first process shares CUDA tensors with others that it starts."""

from __future__ import annotations

import textwrap

from bridge_program import PRELUDE

# Children of spawn and forkserver run the file again, and so enable pyalloc as their parent does.
IPC = (
    PRELUDE
    + """
import gc, os, sys, time
import torch.multiprocessing as mp

def imported():
    return pyalloc.device_stats(0)["imported_bytes"]

def exported():
    return pyalloc.device_stats(0)["exported_bytes"]

def marks(tensor):
    # Of the bytes, on the CPU: a CPU tensor in an answer would need its process alive until it is read.
    on_cpu = tensor.detach().cpu().double().flatten()
    return on_cpu.numel(), on_cpu.sum().item(), on_cpu[-1].item()

def collected():
    # Torch gives a shared block back once it sees that the last receiver has let go.
    for _ in range(200):
        gc.collect()
        torch.cuda.ipc_collect()
        if torch.cuda.memory_allocated() == 0:
            return True
        time.sleep(0.05)
    return False
"""
)


def program(functions: str, main: str) -> str:
    """A program whose `main` runs in the first process only."""
    return (
        IPC
        + textwrap.dedent(functions)
        + "\n\nif __name__ == '__main__':\n"
        + textwrap.indent(textwrap.dedent(main), "    ")
    )
