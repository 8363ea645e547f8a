"""Several devices and processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import program
from ..program import covers


@covers("virtual.enablePeerAccess", "virtual.memcpyAsync")
def copies_between_devices() -> Any:
    import torch

    source = torch.arange(1 << 20)
    first = source.to("cuda:0")
    second = first.to("cuda:1")
    back = second.to("cuda:0", non_blocking=True)
    torch.cuda.synchronize()
    return torch.equal(second.cpu(), source), torch.equal(back.cpu(), source), torch.cuda.memory_allocated(1)


@covers("virtual.shareIpcHandle", "virtual.getIpcDevPtr")
def shared_between_processes() -> Any:
    import torch

    torch.cuda.init()
    tensor = torch.arange(1 << 20).cuda()
    handle = pickle.dumps(tensor.untyped_storage()._share_cuda_())
    receiver = [sys.executable, str(Path(__file__).parents[1] / "run.py"), "receive", program.way]
    done = subprocess.run(receiver, input=handle, capture_output=True, check=False)
    torch.cuda.synchronize()
    return done.stdout.decode(), done.returncode, tensor.numel()
