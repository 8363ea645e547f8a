"""Purpose pools from a torch program: scopes, figures, limits, messages."""

from __future__ import annotations

from bridge_program import program
from conftest import Run


def test_a_scope_decides_where_tensors_go(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            def held():
                return {one.name: (one.blocks, one.requested) for one in pyalloc.pools() if one.blocks}

            def empty(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            assert [one.name for one in pyalloc.pools()] == ["general", "weights", "kv", "workspace", "lora"]
            assert held() == {}
            plain = empty(1000)
            with pyalloc.pool("kv"):
                cache = empty(3 << 20)
                with pyalloc.pool("lora"):
                    adapter = empty(2000)
                more = empty(500)

            @pyalloc.pool("weights")
            def load():
                return empty(10 << 20)

            weights = [load(), load()]
            try:
                with pyalloc.pool("workspace"):
                    short = empty(700)
                    1 / 0
            except ZeroDivisionError:
                pass
            after = empty(100)
            assert held() == {
                "general": (2, 1100), "weights": (2, 20 << 20), "kv": (2, (3 << 20) + 500), "workspace": (1, 700),
                "lora": (1, 2000),
            }, held()
            assert torch.cuda.memory_allocated() == sum(one.allocated for one in pyalloc.pools())
            assert torch.cuda.memory_reserved() == sum(one.reserved for one in pyalloc.pools())
            with pyalloc.pool("kv"):
                del weights, plain, short, after, adapter
            assert set(held()) == {"kv"}
            unknown = pyalloc.pool("vk")
            raises(pyalloc.InvalidArgumentError, "no pool is named 'vk'; there are: general", unknown.__enter__)
            """
        )
    )


def test_scopes_belong_to_their_thread(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import threading
            def work():
                with pyalloc.pool("lora"):
                    kept.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))
                    inside.set()
                    outside.wait(30)
                kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))

            kept, inside, outside = [], threading.Event(), threading.Event()
            thread = threading.Thread(target=work)
            thread.start()
            assert inside.wait(30)
            kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))
            outside.set()
            thread.join()
            found = {one.name: one.requested for one in pyalloc.pools()}
            assert found["lora"] == 4 << 20 and found["general"] == 3 << 20, found
            """
        )
    )


def test_limits_and_what_the_error_says(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
import pyalloc
assert pyalloc.create_pool("drafts", limit="16MiB") == "drafts"     # before CUDA is in use
assert pyalloc.enable(bridge="require", kv_limit="64MiB", lora_reserve=0)
"""
        + program(
            """
            def empty(pool, size):
                with pyalloc.pool(pool):
                    return torch.empty(size, dtype=torch.uint8, device="cuda")

            def limit(name):
                return next(one.limit for one in pyalloc.pools() if one.name == name)

            assert limit("kv") == 64 << 20 and limit("drafts") == 16 << 20 and limit("weights") is None
            first = empty("kv", 40 << 20)
            other = empty("weights", 100 << 20)
            for text in ("raise the limit of the pool 'kv' (PYALLOC_CONF kv_limit",
                         "Reason: limit, the limit set for the pool is reached.",
                         "\\n  weights  100.00 MiB allocated,  100.00 MiB reserved"
                         "\\n  kv        40.00 MiB allocated,   40.00 MiB reserved, limit 64.00 MiB"
                         "\\n  drafts      0 bytes allocated,     0 bytes reserved, limit 16.00 MiB\\n"):
                raises(torch.OutOfMemoryError, text, lambda: empty("kv", 40 << 20))
            raises(torch.OutOfMemoryError, "pool 'drafts'", lambda: empty("drafts", 17 << 20))
            raises(pyalloc.InvalidArgumentError, "uses 41943040", lambda: pyalloc.create_pool("kv", limit=1 << 20))
            assert limit("kv") == 64 << 20
            pyalloc.create_pool("kv", limit="100MiB")
            second = empty("kv", 40 << 20)
            one = next(one for one in pyalloc.pools() if one.name == "kv")
            assert one.used == one.peak == 80 << 20 and one.internal_fragmentation == 0
            del first, second
            pyalloc.reset_pool_peaks()
            assert next(one for one in pyalloc.pools() if one.name == "kv").peak == 0
            raises(pyalloc.InvalidArgumentError, "size 'much'", lambda: pyalloc.create_pool("x", limit="much"))
            raises(pyalloc.InvalidArgumentError, "cannot be named 'A B'", lambda: pyalloc.create_pool("A B"))
            assert pyalloc.create_pool("images", like="kv", slab="32MiB", limit="2GiB") == "images"
            assert pyalloc.create_pool("images", limit="1GiB") == "images"
            packed = lambda: pyalloc.create_pool("images", like="weights")
            raises(pyalloc.InvalidArgumentError, "another layout", packed)
            raises(pyalloc.InvalidArgumentError, "no pool is named 'vk'", lambda: pyalloc.create_pool("y", like="vk"))
            raises(pyalloc.InvalidArgumentError, "32 MiB", lambda: pyalloc.create_pool("y", like="kv", slab="3MiB"))
            """
        ).replace('assert pyalloc.enable(bridge="require", lora_reserve=0)\n', "", 1)
    )


def test_fragmentation_agrees_with_a_hand_count(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            with pyalloc.pool("kv"):
                blocks = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]  # 6 granules
            del blocks[1], blocks[1]   # 6 MiB free in the middle; the granules at both ends of it are shared
            one = next(one for one in pyalloc.pools() if one.name == "kv")
            assert (one.reserved, one.allocated) == (12 << 20, 6 << 20)
            assert one.largest_free == 6 << 20 and one.external_fragmentation == 0
            assert one.used == 8 << 20 and one.granule_fragmentation == 2 / 12
            del blocks[0]
            one = next(one for one in pyalloc.pools() if one.name == "kv")
            assert one.largest_free == 9 << 20 and one.external_fragmentation == 0
            with pyalloc.pool("kv"):
                middle = torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
                odd = torch.empty((1 << 20) + 1, dtype=torch.uint8, device="cuda")
            one = next(one for one in pyalloc.pools() if one.name == "kv")
            assert one.requested == (6 << 20) + 1 and one.allocated == (6 << 20) + 512
            assert one.internal_fragmentation == 1 - ((6 << 20) + 1) / ((6 << 20) + 512)
            """
        )
    )


def test_lora_loads_and_what_is_prepared(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        "import pyalloc\nassert pyalloc.enable(bridge='require')\n"
        + program(
            """
            def lora():
                return next(one for one in pyalloc.pools() if one.name == "lora")

            def empty(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            first = empty(1)
            assert lora().reserve == 64 << 20 and torch.cuda.memory_reserved() >= 64 << 20
            with pyalloc.pool("lora"):
                adapter = [empty(100_000) for _ in range(50)]
            assert lora().requested == 5_000_000 and pyalloc.device_stats(0)["lora_overflows"] == 0
            with pyalloc.pool("lora"):
                large = empty(100 << 20)
            assert pyalloc.device_stats(0)["lora_overflows"] == 1 and lora().requested == 5_000_000
            del large
            pyalloc.lora_prepare("300MiB")
            assert lora().reserve == 364 << 20
            with pyalloc.pool("lora"):
                large = empty(290 << 20)
            assert lora().reserve == 64 << 20 and lora().requested == 5_000_000 + (290 << 20)
            raises(torch.OutOfMemoryError, "before the load: prepare for less, or free memory first.",
                   lambda: pyalloc.lora_prepare("20GiB"))
            raises(pyalloc.InvalidArgumentError, "size 'lots'", lambda: pyalloc.lora_prepare("lots"))
            """
        ).replace('assert pyalloc.enable(bridge="require", lora_reserve=0)\n', "", 1)
    )


def test_a_step_gets_the_addresses_of_the_last_and_escapes_are_counted(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
            x = torch.zeros(600, 512, device="cuda")

            def step(keep=None):
                with pyalloc.pool("workspace"), torch.no_grad():
                    hidden = model[0](x)
                    places = [hidden.data_ptr()]
                    hidden = model[1](hidden)
                    places.append(hidden.data_ptr())
                    places.append(model[2](hidden).data_ptr())
                    if keep is not None:
                        keep.append(torch.empty(5000, device="cuda"))
                    del hidden
                return places

            model(x)  # outside of a step: cuBLAS keeps its workspace for good
            first = step()
            assert all(step() == first for _ in range(4))
            assert pyalloc.escapes() == {}
            kept = []
            step(kept)
            step(kept)
            assert pyalloc.escapes() == {20000: 2}, pyalloc.escapes()
            kept.clear()
            assert step() == first
            """
        )
    )
