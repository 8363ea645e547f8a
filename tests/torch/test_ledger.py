"""The ledger from a torch program: it adds up, knows who else is there, and can be read by people and programs."""

from __future__ import annotations

import pytest
from bridge_program import program
from conftest import Run
from support import ON_DEVICE


def test_it_adds_up_and_names_what_is_outside(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import ctypes, json
            import torch.multiprocessing as mp
            import pyalloc.simgpu

            def child(ready, done):
                kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
                ready.set()
                done.wait(120)

            def adds_up(whole):
                assert whole.reserved + whole.shelf + whole.outside + whole.free == whole.total
                assert sum(one.reserved for one in whole.pools) == whole.reserved
                parts = whole.outside_by
                assert parts.this_process + parts.other_processes + parts.unattributed == whole.outside
                return parts

            if __name__ == "__main__":
                empty = pyalloc.ledger()
                assert empty.total == 0 and empty.outside_by is None and str(empty).startswith("device 0")
                with pyalloc.pool("weights"):
                    weights = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
                before = pyalloc.ledger()
                adds_up(before)
                driver = ctypes.CDLL("libcuda.so.1")
                address = ctypes.c_uint64()
                assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(48 << 20)) == 0
                context = mp.get_context("spawn")
                ready, done = context.Event(), context.Event()
                process = context.Process(target=child, args=(ready, done), daemon=True)
                process.start()
                assert ready.wait(120)
                whole = pyalloc.ledger(0)
                parts, then = adds_up(whole), before.outside_by
                assert parts.this_process >= then.this_process + (48 << 20)
                assert parts.other_processes >= then.other_processes + (64 << 20)
                if pyalloc.simgpu.active():
                    assert (parts.this_process, parts.other_processes, parts.unattributed) == (48 << 20, 64 << 20, 0)
                    assert whole.margin == whole.free and whole.total == 8 << 30
                assert whole.outside_unknown == "" and whole.requested == 30 << 20
                data = json.loads(json.dumps(whole.as_dict()))
                assert data["pools"][1]["name"] == "weights" and data["pools"][1]["fragmentation"]["external"] == 0
                assert data["outside_by"]["other_processes"] == parts.other_processes
                assert set(data["fragmentation"]) == {"internal", "external", "effective_external", "granule", "driver"}
                assert all(0 <= value <= 1 for value in data["fragmentation"].values())
                done.set()
                process.join()
                if pyalloc.simgpu.active():
                    assert pyalloc.ledger().outside_by.other_processes == 0
                raises(pyalloc.InvalidArgumentError, "device 9; expected 0 to", lambda: pyalloc.ledger(9))
            """
        ),
        env={"PYALLOC_CONF": ""},
    )


@pytest.mark.skipif(ON_DEVICE, reason="the figures are those of a simulated GPU")
def test_the_table_for_people(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            pyalloc.create_pool("kv", limit="1GiB")
            with pyalloc.pool("kv"):
                cache = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
            x = torch.empty(7, device="cuda")
            print(pyalloc.ledger())
            """
        ),
        memory="2GiB",
    )
    assert done.stdout.splitlines() == [
        "device 0                     reserved        used   allocated   requested     limit        peak",
        "  general                    2.00 MiB    2.00 MiB       512 B        28 B         -    2.00 MiB",
        "  kv                       100.00 MiB  100.00 MiB  100.00 MiB  100.00 MiB  1.00 GiB  100.00 MiB",
        "  shelf                           0 B",
        "  outside pyalloc                 0 B",
        "    context and libraries         0 B",
        "    other processes               0 B",
        "    unattributed                  0 B",
        "  free                       1.90 GiB",
        "  total                      2.00 GiB",
        "limit 2.00 GiB, left before out-of-memory 1.90 GiB, activation peak 2.00 MiB, LoRA reserve 0 B",
        "fragmentation: internal 0.000, external 0.031, effective external 0.031, granule 0.020, driver 0.001",
    ]


def test_private_pools_are_a_row(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import json
            from pyalloc.metrics.own_process import own_process

            def check(size, asleep=0):
                whole = pyalloc.ledger()
                for figure in ("reserved", "used", "allocated", "requested", "asleep", "offloaded"):
                    assert sum(getattr(one, figure) for one in whole.pools) == getattr(whole, figure), figure
                assert whole.reserved + whole.shelf + whole.outside + whole.free == whole.total
                rows = [one for one in whole.as_dict()["pools"] if one["name"] == "private"]
                measured = [one for one in own_process().sample.devices[0].pools if one.values["name"] == "private"]
                assert [one.values["reserved"] for one in measured] == [one["reserved"] for one in rows]
                if not size and not asleep:
                    assert rows == [] and "private" not in str(whole)
                    return
                (row,) = json.loads(json.dumps(rows))
                assert (row["reserved"], row["asleep"]) == (size, asleep), row
                assert row["peak"] is None and row["limit"] is None
                line = next(line for line in str(whole).splitlines() if line.startswith("  private"))
                assert line.split()[-2:] == ["-", "-"], line

            MiB = 1 << 20
            with pyalloc.pool("kv"):
                kv = torch.empty(10 * MiB, dtype=torch.uint8, device="cuda")
            check(0)
            first, second = torch.cuda.MemPool(), torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(first):
                x = torch.empty(200 * MiB, dtype=torch.uint8, device="cuda")
            with torch.cuda.use_mem_pool(second):
                y = torch.empty(40 * MiB, dtype=torch.uint8, device="cuda")
            check(240 * MiB)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                z = torch.zeros(20 * MiB, dtype=torch.uint8, device="cuda")
            check(260 * MiB)
            pyalloc.sleep(["private"], offload=["private"])
            check(0, 260 * MiB)
            pyalloc.wake()
            check(260 * MiB)
            graph.replay()
            del x, y, z, graph, first, second
            torch.cuda.empty_cache()
            check(0)
            """
        )
    )


def test_where_nvml_cannot_say(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import os
            from pyalloc import device_processes
            x = torch.empty(7, device="cuda")
            assert pyalloc.ledger().outside_unknown == ""
            process_id, os.getpid = os.getpid(), lambda: -1     # as in a container, where NVML has other ids
            whole = pyalloc.ledger()
            os.getpid = lambda: process_id
            assert whole.outside_by is None and "does not list this process" in whole.outside_unknown
            assert "who is outside: unknown, NVML does not list this process" in str(whole)
            assert whole.reserved + whole.shelf + whole.outside + whole.free == whole.total
            known = device_processes._LISTS
            device_processes._LISTS = ("nvmlNoSuchFunction",)   # an NVML too old
            assert "NVML cannot be used" in pyalloc.ledger().outside_unknown
            device_processes._LISTS = known
            assert pyalloc.ledger().outside_unknown == ""
            """
        )
    )


def test_fragmentation_by_hand(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            def empty(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            blocks = [empty(4 << 20) for _ in range(8)] + [empty(3 << 20)]   # 17 and a half granules
            del blocks[0], blocks[1], blocks[2]      # granules 0, 1, 4, 5, 8, 9 are free, and half of the last
            one = next(one for one in pyalloc.pools() if one.name == "general")
            assert (one.reserved, one.allocated) == (36 << 20, 23 << 20)
            # The longest run is 4 MiB of 13 that are free; moved together, the six granules join the half one.
            assert one.external_fragmentation == 1 - 4 / 13
            assert one.effective_external_fragmentation == 0, one
            whole = pyalloc.ledger()
            assert whole.effective_external_fragmentation == 0
            assert whole.granule_fragmentation == 1 / 36
            assert whole.driver_fragmentation == 1 - (whole.free + (12 << 20)) / (whole.free + (13 << 20))
            """
        ),
        memory="1GiB",
    )
