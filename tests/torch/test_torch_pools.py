"""enable(mode="pools"): torch keeps its allocator, and scopes of pools go through MemPools backed by pyalloc."""

from __future__ import annotations

from conftest import Run
from pools_program import program


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


def test_doctor_knows(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        "import sys; from pyalloc import doctor; sys.exit(doctor.main(as_json=False))",
        env={"PYALLOC_CONF": "enable:True,mode:pools", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    )
    assert "not needed with mode:pools" in done.stdout
    assert "expandable_segments" not in done.stdout  # torch's own allocator follows it
    assert "PROBLEM" not in done.stdout


def test_options_that_have_no_effect_are_named(run_on_simgpu: Run) -> None:
    says = "with mode:pools, which leaves torch its allocator, this has no effect: "
    enables = "import pyalloc; assert pyalloc.enable(mode='pools', predict_lifetimes=True, limit='4GiB')"
    done = run_on_simgpu(enables, env={"PYALLOC_CONF": "instrument:on,bridge:require,sample_stacks:1MiB,decay:0"})
    (line,) = [line for line in done.stderr.splitlines() if "no effect" in line]
    assert line.endswith(says + "bridge:require, predict_lifetimes:on, sample_stacks:1048576, instrument:on")
    # What the mode does anyway, and what nobody asked for, is no news.
    done = run_on_simgpu(
        "import pyalloc; assert pyalloc.enable(mode='pools', instrument=False)",
        env={"PYALLOC_CONF": "bridge:off,predict_lifetimes:off,sample_stacks:0"},
    )
    assert "no effect" not in done.stderr
