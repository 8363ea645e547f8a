"""Functions of on_oom that other threads are calling while they are taken off, and while the program ends."""

from __future__ import annotations

from bridge_program import program
from conftest import Run

# Threads that know nothing of torch: they hold no lock of Python's while they ask for what the device does not have.
ASKING = """
import ctypes, threading, time

core = ctypes.CDLL(pyalloc.library_path())
held = torch.empty(1000, device="cuda")
entered = threading.Event()

def ask(seconds):
    pointer, end = ctypes.c_void_p(), time.monotonic() + seconds
    while True:
        core.pyalloc_allocate(0, None, 1, ctypes.c_size_t(64 << 30), ctypes.byref(pointer))
        if time.monotonic() > end:
            return

def asking(count, seconds):
    threads = [threading.Thread(target=ask, args=(seconds,), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads
"""


def test_a_function_is_taken_off_while_another_thread_is_about_to_call_it(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            ASKING
            + """
removed, late = threading.Event(), []

def first(size, device):
    entered.set()
    removed.wait(20)
    return 0

def second(size, device):
    late.append(size)
    return 0

pyalloc.on_oom(first, priority=1)
pyalloc.on_oom(second)
(thread,) = asking(1, seconds=0)
assert entered.wait(20)
pyalloc.remove_on_oom(second)
del second
removed.set()
thread.join()
assert late == []
"""
        )
    )


def test_functions_come_and_go_while_other_threads_call_them(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            ASKING
            + """
threads = asking(4, seconds=2)
while any(thread.is_alive() for thread in threads):
    fn = lambda size, device: entered.set()
    pyalloc.on_oom(fn)
    time.sleep(0.0005)
    pyalloc.remove_on_oom(fn)
    del fn
assert entered.is_set()
"""
        )
    )


def test_the_program_ends_while_other_threads_are_in_functions(run_on_simgpu: Run) -> None:
    for pause in (0.0, 0.01):
        run_on_simgpu(
            program(
                ASKING
                + f"""
@pyalloc.on_oom
def fn(size, device):
    entered.set()
    time.sleep({pause})

asking(4, seconds=60)
assert entered.wait(20)
time.sleep(0.05)
"""
            )
        )
