"""pyalloc.on_unmap: what registered memory hears before the memory goes."""

from __future__ import annotations

from bridge_program import program
from conftest import Run


def test_functions_hear_of_memory_before_it_goes(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            heard = []

            @pyalloc.on_unmap
            def deregister(device, address, size):
                heard.append((device, address, size))
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")     # may allocate and free

            @pyalloc.on_unmap
            def raises_always(device, address, size):
                raise ValueError("not today")

            raises(pyalloc.InvalidArgumentError, "registered already", lambda: pyalloc.on_unmap(deregister))
            raises(pyalloc.InvalidArgumentError, "expected a function", lambda: pyalloc.on_unmap(3))
            x = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
            address = x.data_ptr()
            del x
            assert heard == []
            torch.cuda.empty_cache()
            assert (0, address, 6 << 20) in heard, heard
            assert torch.cuda.memory_reserved() <= 2 << 20

            pyalloc.remove_on_unmap(deregister)
            heard.clear()
            x = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()
            assert heard == []
            pyalloc.remove_on_unmap(raises_always)
            raises(pyalloc.InvalidArgumentError, "not registered", lambda: pyalloc.remove_on_unmap(raises_always))
            x = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()
            """
        )
    )
    assert done.stderr.count("ValueError: not today") >= 2
    assert "Exception ignored in pyalloc.on_unmap's raises_always" in done.stderr


def test_the_background_thread_tells_too_and_the_process_ends(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
import threading, time
import pyalloc
assert pyalloc.enable(bridge="require", lora_reserve=0, decay=20)
import torch

threads = set()

@pyalloc.on_unmap
def note(device, address, size):
    threads.add(threading.get_ident())

x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
del x
end = time.monotonic() + 60
while not threads and time.monotonic() < end:
    time.sleep(0.01)
assert threads and threading.get_ident() not in threads
y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
del y          # idle while the interpreter goes: the function is not called any more
print("ended")
"""
    )
    assert done.stdout == "ended\n"
    assert done.stderr == ""
