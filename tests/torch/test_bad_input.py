"""Bad input to pools, limits and on_oom: each has a defined outcome and one clear message, and nothing else changes."""

from __future__ import annotations

from bridge_program import program
from conftest import Run


def test_pools_that_do_not_exist(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            raises(pyalloc.InvalidArgumentError, "no pool is named 'vk'; there are: general, weights, kv",
                   pyalloc.pool("vk").__enter__)
            raises(pyalloc.InvalidArgumentError, "the pool 3; expected text", pyalloc.pool(3).__enter__)
            raises(pyalloc.InvalidArgumentError, "as a decorator @pyalloc.pool('workspace')",
                   lambda: pyalloc.pool(lambda: None))
            # It stays in no scope, and there is nothing that removes a pool, with or without live blocks.
            x = torch.empty(100, device="cuda")
            assert [one.name for one in pyalloc.pools() if one.blocks] == ["general"]
            about_pools = [name for name in dir(pyalloc) if "pool" in name]
            assert not [name for name in about_pools if name.startswith(("destroy", "delete", "remove"))]
            """
        )
    )


def test_a_scope_left_on_another_thread(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import threading

            def in_thread(call):
                seen = []
                def run():
                    try:
                        seen.append(call())
                    except Exception as error:
                        seen.append(error)
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()
                return seen[0]

            def where():
                kept.append(torch.empty(1000, device="cuda"))
                return max(pyalloc.pools(), key=lambda one: one.blocks).name

            kept = []
            scope = pyalloc.pool("kv")
            scope.__enter__()
            error = in_thread(lambda: scope.__exit__(None, None, None))
            assert isinstance(error, pyalloc.StateError), error
            assert "no scope of that pool is open on this thread" in str(error)
            assert "leave a scope on the thread that entered it" in str(error)
            assert where() == "kv"                  # this thread is where it was
            def both():
                with pyalloc.pool("lora"):
                    scope.__exit__(None, None, None)
            error = in_thread(both)
            assert isinstance(error, pyalloc.StateError) and "no scope of that pool" in str(error), error
            with scope:                             # the same scope again, inside itself
                assert where() == "kv"
            scope.__exit__(None, None, None)
            kept.clear()
            assert where() == "general"

            # One scope as a decorator, recursive and on many threads at once: each thread has its own nesting.
            barrier = threading.Barrier(4)
            @pyalloc.pool("weights")
            def build(depth):
                if depth == 0:
                    barrier.wait(60)
                    return [torch.empty(1000, device="cuda")]
                return build(depth - 1) + [torch.empty(1000, device="cuda")]
            built = []
            threads = [threading.Thread(target=lambda: built.append(build(5))) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            found = {one.name: one.blocks for one in pyalloc.pools() if one.blocks}
            assert found == {"general": 1, "weights": 24}, found
            """
        )
    )


def test_limits_below_what_is_in_use(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            def empty(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            with pyalloc.pool("kv"):
                held = empty(600 << 20)
            raises(pyalloc.InvalidArgumentError, "a limit of 1048576 bytes for a pool that uses 629145600 on device 0; "
                   "expected no less, or 0 for none: free blocks", lambda: pyalloc.create_pool("kv", limit="1MiB"))
            raises(pyalloc.InvalidArgumentError, "size '-1'; expected", lambda: pyalloc.create_pool("kv", limit=-1))
            assert [one.limit for one in pyalloc.pools() if one.name == "kv"] == [None]
            # The whole device's limit may be lowered below what is held, as torch's own: what lives stays.
            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction((256 << 20) / total)
            held.fill_(1)
            raises(torch.OutOfMemoryError, "of the 256.00 MiB it is limited to", lambda: empty(4 << 20))
            raises(torch.OutOfMemoryError, "raise the limit (PYALLOC_CONF limit or memory", lambda: empty(4 << 20))
            assert pyalloc.ledger().margin == 0 and pyalloc.oom_report()["counts"]["limit"] == 2
            del held
            again = empty(200 << 20)
            raises(torch.OutOfMemoryError, "Reason: limit", lambda: empty(100 << 20))
            torch.cuda.set_per_process_memory_fraction(1.0)
            more = empty(600 << 20)
            """
        )
    )


def test_a_reserve_larger_than_the_device(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        """
        import pyalloc
        assert pyalloc.enable(bridge="require", lora_reserve="20TiB")
        import torch
        x = torch.empty(1 << 20, device="cuda")
        with pyalloc.pool("lora"):
            adapter = torch.empty(1 << 20, device="cuda")      # goes where other memory goes
        whole = pyalloc.ledger()
        assert whole.reserve == 0 and whole.requested == 8 << 20
        """
    )
    (line,) = [line for line in done.stderr.splitlines() if "lora_reserve" in line]
    assert "lora_reserve:21990232555520 cannot be set aside on device 0: it is more than half of the" in line
    assert line.endswith("Set a smaller lora_reserve, or 0")


def test_functions_for_on_oom_that_cannot_be_used(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            raises(pyalloc.InvalidArgumentError, "on_oom was given 3; expected a function", lambda: pyalloc.on_oom(3))
            raises(pyalloc.InvalidArgumentError, "priority 'high'; expected a whole number from -1000000 to 1000000",
                   lambda: pyalloc.on_oom(lambda size, device: 0, priority="high"))
            raises(pyalloc.InvalidArgumentError, "priority 4294967296;",
                   lambda: pyalloc.on_oom(lambda size, device: 0, priority=1 << 32))
            raises(pyalloc.InvalidArgumentError, "is not registered; on_oom()", lambda: pyalloc.remove_on_oom(print))
            @pyalloc.on_oom
            def text(size, device):
                return "much"                       # reported as what it raised would be, and counted as nothing
            @pyalloc.on_oom
            def negative(size, device):
                return -5
            raises(torch.OutOfMemoryError, "on_oom functions,",
                   lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda"))
            """
        )
    ).stderr.index("ValueError: invalid literal for int() with base 10: 'much'")


def test_a_preparation_for_a_device_that_does_not_exist(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            raises(pyalloc.DriverError, "device 7 cannot be used: cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE",
                   lambda: pyalloc.lora_prepare("5MiB", device=7))
            """
        )
    )


def test_a_preparation_without_a_reserve_says_why_there_may_be_none(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            raises(pyalloc.StateError, "lora_reserve is 0, or could not be set aside",
                   lambda: pyalloc.lora_prepare("5MiB"))
            """
        ).replace("lora_reserve=0", "lora_reserve='6GiB'")
    )
