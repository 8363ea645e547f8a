"""enable(mode="pools"): memory that comes and goes, runs out, is shared, copied, and left at the end."""

from __future__ import annotations

import pytest
from conftest import Run
from pools_program import program


def test_copies_between_devices(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            source = torch.arange(1 << 20)
            with pyalloc.pool("kv"):
                first = source.to("cuda:0")
                second = first.to("cuda:1")
            plain = second.to("cuda:0")
            back = torch.empty_like(second).copy_(plain)
            torch.cuda.synchronize(0), torch.cuda.synchronize(1)
            for one in (first, second, plain, back):
                assert torch.equal(one.cpu(), source)
            """
        ),
        devices=2,
    )


def test_sharing_between_processes_is_refused(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            with pyalloc.pool("kv"):
                inside = empty(30 * MIB)
            outside = empty(30 * MIB)
            raises(RuntimeError, "invalid argument", lambda: inside.untyped_storage()._share_cuda_())
            assert outside.untyped_storage()._share_cuda_()
            """
        )
    )


def test_what_is_free_goes_back(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            with pyalloc.pool("kv"):
                gone, stays, beside = empty(512 * MIB), empty(30 * MIB), empty(2 * MIB)
            del gone
            torch.cuda.empty_cache()
            assert held() == {"kv": (3, 562 * MIB)}, "torch keeps what a live MemPool has"
            with pyalloc.pool("kv"):
                pyalloc.empty_cache()            # of a pool that is in use nothing goes
                assert held() == {"kv": (3, 562 * MIB)}
            pyalloc.empty_cache()
            assert held() == {"kv": (2, 50 * MIB)}, held()
            ledger = pyalloc.ledger()
            assert ledger.reserved + ledger.shelf == 50 * MIB, ledger
            # Tensors outlive their MemPool, and their memory goes back after them.
            stays.zero_(), beside.zero_()
            del stays, beside
            pyalloc.empty_cache()
            assert held() == {} and pyalloc.ledger().reserved == 0, pyalloc.ledger()
            with pyalloc.pool("kv"):
                again = empty(30 * MIB)
            assert held() == {"kv": (1, 30 * MIB)}
            """
        )
    )


def test_running_out_of_memory(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            import sys
            called, total = [], torch.cuda.mem_get_info()[1]
            pyalloc.on_oom(lambda size, device: called.append(size))
            pyalloc.create_pool("kv", limit="100MiB")
            with pyalloc.pool("kv"):
                kept = empty(60 * MIB)

            def too_much(pool, size):
                with pyalloc.pool(pool):
                    return empty(size)

            error = raises(torch.OutOfMemoryError, "Tried to allocate 64.00 MiB", lambda: too_much("kv", 64 * MIB))
            if sys.version_info >= (3, 11):
                (note,) = error.__notes__
                assert note.startswith("pyalloc: ") and "limit" in note and "kv" in note, note
            report = pyalloc.oom_report()
            assert report["last"][-1]["pool"] == "kv" and report["last"][-1]["reason"] == "limit", report
            error = raises(torch.OutOfMemoryError, "Tried to allocate", lambda: too_much("weights", 2 * total))
            # An error that is none of ours gets no note.
            error = raises(torch.OutOfMemoryError, "Tried to allocate", lambda: empty(2 * total))
            assert not hasattr(error, "__notes__")
            assert too_much("kv", 40 * MIB).numel() == 40 * MIB
            assert called == [], "torch holds its lock while it asks"
            """
        ),
        memory="2GiB",
    )
    assert "pyalloc" not in done.stderr  # torch tells of every refusal by itself


def test_memory_is_not_reused_while_any_stream_may_use_it(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            streams = [torch.cuda.Stream() for _ in range(3)]
            for round in range(20):
                with pyalloc.pool("kv"), torch.cuda.stream(streams[round % 3]):
                    # Torch takes the segment while another stream is current than the one it is for.
                    raw = torch.cuda.caching_allocator_alloc(30 * MIB, stream=streams[(round + 1) % 3])
                    tensor = empty(30 * MIB)
                    tensor.zero_()
                    tensor.record_stream(streams[(round + 2) % 3])
                torch.cuda.caching_allocator_delete(raw)
                del tensor
                pyalloc.empty_cache()
            torch.cuda.synchronize()
            """
        ),
        streams="deferred",
        oracle=True,
    )


def test_adapters_and_the_reserve(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch, pyalloc
        torch.zeros(1, device="cuda")
        assert pyalloc.enable(mode="pools", lora_overflow="error")
        MIB = 1 << 20
        pyalloc.lora_prepare("100MiB")
        before = pyalloc.device_stats(0)["num_device_alloc"]
        with pyalloc.pool("lora"):
            adapter = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        assert pyalloc.device_stats(0)["num_device_alloc"] == before, "the load took memory from the driver"
        (lora,) = [one for one in pyalloc.pools() if one.name == "lora"]
        assert (lora.blocks, lora.requested) == (3, 120 * MIB), lora
        """
    )


@pytest.mark.complaint(8)
def test_with_expandable_segments(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            with pyalloc.pool("kv"):
                first = torch.empty(60, 1024, dtype=torch.uint8, device="cuda")
                second = torch.empty(60, 1 << 20, dtype=torch.uint8, device="cuda")
            assert held() == {"kv": (2, 62 * MIB)}, held()
            del first, second
            pyalloc.empty_cache()
            assert held() == {}
            """
        ),
        env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "tensors.append(empty(64 * MIB)); pyalloc.pool('kv').__enter__(); more = empty(1)",
        "threading.Thread(target=forever, daemon=True).start(); inside.wait(30)",
        "import os; os._exit(0)",
        "sys.exit(0)",
    ],
)
def test_the_process_ends_quietly(run_on_simgpu: Run, end: str) -> None:
    done = run_on_simgpu(
        program(
            f"""
            import sys, threading, time
            inside = threading.Event()

            def forever():
                with pyalloc.pool("weights"):
                    kept = empty(30 * MIB)
                    inside.set()
                    time.sleep(1000)

            tensors = []
            with pyalloc.pool("kv"):
                tensors.append(empty(30 * MIB))
            {end}
            """
        )
    )
    assert done.stderr == ""


def test_a_forked_child(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import os, torch, pyalloc
        assert pyalloc.enable(mode="pools")
        child = os.fork()      # before CUDA is in use
        with pyalloc.pool("kv"):
            cache = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        assert pyalloc.pools()[2].requested == 30 << 20
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_scopes_and_returns_at_once(run_on_simgpu: Run, seed: int) -> None:
    run_on_simgpu(
        program(
            f"""
            import random, threading

            def work(number):
                rng = random.Random(number + {seed})
                stream = torch.cuda.Stream()
                mine = []
                try:
                    with torch.cuda.stream(stream):
                        for _ in range(120):
                            with pyalloc.pool(rng.choice(("kv", "weights", "lora", "workspace"))):
                                mine.append(empty(rng.choice((500, 3 * MIB, 12 * MIB))).zero_())
                                if rng.random() < 0.3:
                                    with pyalloc.pool("kv"):
                                        mine.append(empty(2 * MIB).zero_())
                            if rng.random() < 0.2:
                                mine[-1].record_stream(torch.cuda.default_stream())
                            if rng.random() < 0.5:
                                mine.pop(rng.randrange(len(mine)))
                            if rng.random() < 0.5 and shared:
                                shared.pop()            # what another thread allocated
                            if rng.random() < 0.1:
                                shared.append(mine.pop())
                except BaseException as error:
                    failed.append(error)

            shared, failed = [], []
            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                pyalloc.empty_cache()
                pyalloc.pools(), torch.cuda.memory_stats(), torch.cuda.memory_snapshot()
            for thread in threads:
                thread.join()
            assert not failed, failed
            shared.clear()
            torch.cuda.synchronize()
            pyalloc.empty_cache()
            assert held() == {{}} and torch.cuda.memory_allocated() == 3 * MIB, held()
            """
        ),
        streams="deferred",
        seed=seed,
        oracle=True,
    )
