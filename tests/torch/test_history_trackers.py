"""Trace trackers, through a library compiled as torch's NCCL backend is: it learns of all mapped memory, piece by
piece, and of every block, whether history is recorded or not.
"""

from __future__ import annotations

from pathlib import Path

from bridge_program import program
from conftest import Run
from cpp_calls import compile_calls

PRELUDE = """
import ctypes, gc, random, sys, threading
calls = ctypes.CDLL(sys.argv[1])
for name in ("registered_bytes", "count", "live"):
    getattr(calls, name).restype = ctypes.c_size_t
calls.first_trouble.restype = ctypes.c_char_p
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM = range(9)

def sound():
    assert calls.first_trouble() == b"", calls.first_trouble()
    M.memory_snapshot()  # tells what nobody was told of yet
    assert calls.first_trouble() == b"", calls.first_trouble()
    registered, reserved = calls.registered_bytes(), torch.cuda.memory_reserved()
    assert registered == reserved, (registered, reserved)
    assert calls.live() == torch.cuda.memory_stats()["active.all.current"]

def make(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device="cuda")
"""


def test_a_registration_hook_knows_all_mapped_memory(run_on_simgpu: Run, tmp_path: Path) -> None:
    run_on_simgpu(
        program(
            PRELUDE,
            """
            before = [make(1000), make(30 << 20)]
            calls.attach()
            calls.register_present()
            assert not torch._C._cuda_isHistoryEnabled()
            x = make(5 << 20)
            assert calls.count(ALLOC) == 1 and calls.live() == 3
            del x, before
            assert calls.count(FREE_REQUESTED) == calls.count(FREE_COMPLETED) == 3
            sound()
            torch.cuda.empty_cache()
            sound()
            assert calls.registered_bytes() == 0 and calls.count(SEGMENT_FREE) > 0
            try:
                make(1 << 50)
            except torch.OutOfMemoryError:
                assert calls.count(OOM) == 1

            # Memory that is short is moved about: pieces come, go, and lose parts.
            random.seed(1)
            kept = []
            for step in range(600):
                if kept and random.random() < 0.48:
                    del kept[random.randrange(len(kept))]
                else:
                    try:
                        kept.append(make(int(2 ** random.uniform(9, 28))))
                    except torch.OutOfMemoryError:
                        del kept[: len(kept) // 2]
                if step % 100 == 0:
                    sound()
            M._record_memory_history()
            kept.append(make(1 << 20))
            M._record_memory_history(None)
            sound()
            kept.clear()
            torch.cuda.empty_cache()
            sound()
            assert calls.count(SNAPSHOT) > 0 and calls.count(SEGMENT_MAP) == 0
            """,
        ),
        memory="1GiB",
        args=[str(compile_calls("history_calls", tmp_path))],
    )


def test_trackers_and_threads(run_on_simgpu: Run, tmp_path: Path) -> None:
    run_on_simgpu(
        program(
            PRELUDE,
            """
            make(1)
            calls.attach()
            calls.register_present()
            failures = []
            def work(seed):
                try:
                    chance = random.Random(seed)
                    stream = torch.cuda.Stream()
                    with torch.cuda.stream(stream):
                        kept = []
                        for _ in range(400):
                            kept.append(make(int(2 ** chance.uniform(9, 24))))
                            if chance.random() < 0.2:
                                kept[-1].record_stream(torch.cuda.default_stream())
                            if len(kept) > 12:
                                del kept[chance.randrange(12)]
                            if chance.random() < 0.01:
                                torch.cuda.empty_cache()
                except BaseException as error:
                    failures.append(error)
            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures
            torch.cuda.synchronize()
            gc.collect()
            make(512)
            sound()
            """,
        ),
        args=[str(compile_calls("history_calls", tmp_path))],
        streams="deferred",
    )


def test_a_tracker_that_fails_loses_no_memory(run_on_simgpu: Run, tmp_path: Path) -> None:
    done = run_on_simgpu(
        program(
            PRELUDE,
            """
            make(1)
            calls.attach_failing()
            x = make(3 << 20)
            del x
            assert torch.cuda.memory_allocated() == 0
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() == 0
            """,
        ),
        args=[str(compile_calls("history_calls", tmp_path))],
    )
    assert done.stderr.count("this tracker always fails") == 1
