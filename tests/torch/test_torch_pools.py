"""enable(mode="pools"): torch keeps its allocator, and scopes of pools go through MemPools backed by pyalloc."""

from __future__ import annotations

import textwrap

import pytest
from conftest import Run

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


def test_a_notebook_that_used_cuda_already(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            assert pyalloc.is_enabled() and torch.cuda.get_allocator_backend() == "native"
            assert held() == {}
            with pyalloc.pool("kv"):
                small, middle, large = empty(1000), empty(3 * MIB), empty(30 * MIB)
            outside = empty(40 * MIB)
            # Torch asks for segments, of its own sizes; what is outside is torch's alone.
            assert held() == {"kv": (3, 52 * MIB)}, held()
            # Its figures are of tensors, and of all of them.
            assert torch.cuda.memory_allocated() == 3 * MIB + 1024 + 33 * MIB + 40 * MIB
            for tensor in (small, middle, large):
                assert any(s["segment_pool_id"] != (0, 0) and s["address"] <= tensor.data_ptr() <
                           s["address"] + s["total_size"] for s in torch.cuda.memory_snapshot())

            @pyalloc.pool("weights")
            def load():
                return empty(10 * MIB)

            weights = [load(), load()]
            pyalloc.create_pool("drafts", limit="64MiB")
            with pyalloc.pool("drafts"):
                draft = empty(16 * MIB)
            assert held() == {"kv": (3, 52 * MIB), "weights": (2, 20 * MIB), "drafts": (1, 16 * MIB)}, held()

            # What a scope leaves is used again by the next scope of its pool, and by no other.
            before = large.data_ptr()
            del large, tensor
            with pyalloc.pool("weights"):
                other = empty(30 * MIB)
            with pyalloc.pool("kv"):
                again = empty(30 * MIB)
            assert again.data_ptr() == before and other.data_ptr() != before
            """
        )
    )


def test_before_cuda_is_in_use_and_from_the_environment(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(mode="pools", lora_reserve=0)
        import torch
        assert not torch.cuda.is_initialized() and pyalloc.pools()[2].blocks == 0
        with pyalloc.pool("weights"):
            layer = torch.nn.Linear(1024, 1024).cuda()
        assert pyalloc.pools()[1].requested > 0
        assert pyalloc.enable(mode="pools", lora_reserve=0)
        for different in ({"mode": "pools"}, {"mode": "allocator", "lora_reserve": 0}):
            try:
                pyalloc.enable(**different)
            except pyalloc.StateError as error:
                assert "already enabled" in str(error), error
            else:
                raise AssertionError("accepted")
        """
    )
    run_on_simgpu(
        """
        import torch, pyalloc
        assert pyalloc.is_enabled() and torch.cuda.get_allocator_backend() == "native"
        with pyalloc.pool("kv"):
            cache = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        assert pyalloc.pools()[2].requested == 30 << 20
        """,
        env={"PYALLOC_CONF": "enable:True,mode:pools"},
    )


def test_scopes_nest_and_end_with_exceptions(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            with pyalloc.pool("kv"):
                with pyalloc.pool("weights"):
                    with pyalloc.pool("kv"):    # torch itself refuses to enter a MemPool twice
                        inner = empty(30 * MIB)
                    weight = empty(50 * MIB)
                outer = empty(32 * MIB)
                with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                    theirs = empty(70 * MIB)
                    with pyalloc.pool("kv"):
                        ours = empty(34 * MIB)
            assert held() == {"kv": (3, 96 * MIB), "weights": (1, 50 * MIB)}, held()
            scope = pyalloc.pool("kv")
            for _ in range(3):
                try:
                    with scope:
                        1 / 0
                except ZeroDivisionError:
                    pass
            plain = empty(72 * MIB)
            assert held() == {"kv": (3, 96 * MIB), "weights": (1, 50 * MIB)}, held()
            raises(pyalloc.InvalidArgumentError, "no pool is named 'vk'", pyalloc.pool("vk").__enter__)
            # In the wrong order: an error, and both are left.
            first, second = pyalloc.pool("kv"), pyalloc.pool("weights")
            first.__enter__(), second.__enter__()
            raises(pyalloc.StateError, "was left before 'weights'", lambda: first.__exit__(None, None, None))
            in_second = empty(36 * MIB)
            second.__exit__(None, None, None)
            raises(pyalloc.StateError, "no scope of that pool is open", lambda: second.__exit__(None, None, None))
            plain_too = empty(74 * MIB)
            assert held() == {"kv": (3, 96 * MIB), "weights": (2, 86 * MIB)}, held()
            """
        )
    )


def test_scopes_belong_to_their_threads(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import threading

            def work(i):
                with pyalloc.pool("kv"):
                    together.wait(30)        # every thread is in a scope of the same pool
                    kept.append(empty(30 * MIB))
                    together.wait(30)
                kept.append(empty(40 * MIB))

            kept, together = [], threading.Barrier(5)
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            together.wait(30)
            kept.append(empty(50 * MIB))
            together.wait(30)
            for thread in threads:
                thread.join()
            assert held() == {"kv": (4, 120 * MIB)}, held()

            # A thread that ends without leaving its scope takes it along.
            def careless():
                pyalloc.pool("weights").__enter__()
                kept.append(empty(30 * MIB))

            for _ in range(3):
                thread = threading.Thread(target=careless)
                thread.start()
                thread.join()
            kept.append(empty(60 * MIB))
            threads = [threading.Thread(target=lambda: kept.append(empty(61 * MIB))) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert held() == {"kv": (4, 120 * MIB), "weights": (3, 90 * MIB)}, held()
            """
        )
    )


def test_every_device_is_covered_and_none_is_woken(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            has_context = torch._C._cuda_hasPrimaryContext
            with pyalloc.pool("weights"):
                assert torch.cuda.current_device() == 0
                assert [has_context(device) for device in range(3)] == [True, False, False]
                first = empty(30 * MIB)
                second = empty(34 * MIB, "cuda:1")
                with torch.cuda.device(1), pyalloc.pool("kv"):
                    third = empty(32 * MIB)
                    assert torch.cuda.current_device() == 1
            assert held(0) == {"weights": (1, 30 * MIB)}, held(0)
            assert held(1) == {"weights": (1, 34 * MIB), "kv": (1, 32 * MIB)}, held(1)
            assert held(2) == {} and not has_context(2)
            """
        ),
        devices=3,
    )


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


def test_a_graph_keeps_its_own_memory(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            with pyalloc.pool("workspace"):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    with pyalloc.pool("kv"):
                        inside = empty(30 * MIB).zero_()
                after = empty(34 * MIB)
            assert held() == {"workspace": (1, 34 * MIB)}, held()
            graph.replay()
            torch.cuda.synchronize()
            """
        )
    )


def test_nothing_is_chosen_without_a_scope(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from pyalloc import instrumentation
            assert instrumentation.active() is None
            model = torch.nn.Linear(4096, 4096).cuda()
            assert held() == {}
            with pyalloc.tag("request"), pyalloc.pool("kv"):
                cache = empty(30 * MIB)
            assert pyalloc.bill("request").bytes == 0
            raises(pyalloc.StateError, 'enable(mode="pools")', lambda: pyalloc.on_unmap(print))
            """
        )
    )


def test_who_hears_of_unmapping_keeps_torch_s_lock_out(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import pyalloc
        pyalloc.on_unmap(print)
        try:
            pyalloc.enable(mode="pools")
        except pyalloc.StateError as error:
            assert "on_unmap" in str(error) and not pyalloc.is_enabled(), error
        else:
            raise AssertionError("enabled")
        pyalloc.remove_on_unmap(print)
        assert pyalloc.enable(mode="pools")
        """
    )


def test_an_allocator_without_mempools(run_on_simgpu: Run) -> None:
    program = """
        import torch, pyalloc
        {setup}
        assert pyalloc.enable(mode="pools")
        try:
            pyalloc.pool("kv").__enter__()
        except pyalloc.StateError as error:
            assert "has no MemPools" in str(error), error
        else:
            raise AssertionError("entered")
        x = torch.empty(1 << 20, device="cuda")
        assert pyalloc.pools()[2].blocks == 0
        """
    plain = """torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(
            pyalloc.library_path(), "pyalloc_malloc", "pyalloc_free"))"""
    run_on_simgpu(program.format(setup=plain))


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


def test_doctor_knows(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        "import sys; from pyalloc import doctor; sys.exit(doctor.main(as_json=False))",
        env={"PYALLOC_CONF": "enable:True,mode:pools", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )
    assert "not needed with mode:pools" in done.stdout
    assert "expandable_segments" not in done.stdout  # torch's own allocator follows it
    assert "PROBLEM" not in done.stdout


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
