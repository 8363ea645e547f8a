"""When memory runs out: reclaimers, rungs, reports, and that nothing changes."""

from __future__ import annotations

from bridge_program import program
from conftest import Run


def test_reclaimers_come_by_priority_and_stop_when_there_is_room(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            calls = []
            held = {name: torch.empty(2 << 30, dtype=torch.uint8, device="cuda") for name in ("a", "b", "c")}

            def reclaimer(name, answer):
                def fn(size, device):
                    calls.append(name)
                    assert (size, device) == (3 << 30, 0)
                    if answer == "raise":
                        raise ValueError("not today")
                    if answer == "allocate":
                        torch.empty(7 << 30, dtype=torch.uint8, device="cuda")   # fails, and is not offered again
                    held.pop(name, None)
                    return answer
                return fn

            fns = {"a": reclaimer("a", None), "b": reclaimer("b", 2 << 30), "raises": reclaimer("raises", "raise"),
                   "allocates": reclaimer("allocates", "allocate"), "nothing": reclaimer("nothing", 0)}
            pyalloc.on_oom(fns["b"], priority=1)
            pyalloc.on_oom(fns["a"], priority=2)
            for name in ("raises", "allocates", "nothing"):
                assert pyalloc.on_oom(fns[name], priority=9) is fns[name]
            raises(pyalloc.InvalidArgumentError, "registered already", lambda: pyalloc.on_oom(fns["a"]))
            big = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
            assert calls == ["raises", "allocates", "nothing", "a"], calls
            assert set(held) == {"b", "c"} and pyalloc.device_stats(0)["rung_reclaimers"] == 1
            for fn in fns.values():
                pyalloc.remove_on_oom(fn)
            raises(pyalloc.InvalidArgumentError, "not registered", lambda: pyalloc.remove_on_oom(fns["a"]))
            def too_much():
                return torch.empty(1 << 32, dtype=torch.uint8, device="cuda")

            raises(torch.OutOfMemoryError, "Tried to allocate 4.00 GiB", too_much)
            pyalloc.on_oom(fns["raises"])
            calls.clear()
            try:
                torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error:
                assert "on_oom functions," in str(error), error  # without bytes: what it raised counts as nothing
            assert calls == ["raises"]
            pyalloc.remove_on_oom(fns["raises"])
            calls[:] = [0] * 4
            assert len(calls) == 4
            """
        ),
        memory="8GiB",
    )
    assert done.stderr.count("ValueError: not today") == 2
    assert "Exception ignored in pyalloc.on_oom's reclaimer" in done.stderr


def test_what_was_refused_is_kept_and_counted(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
import pyalloc
assert pyalloc.enable(bridge="require", kv_limit="64MiB", lora_reserve=0)
"""
        + program(
            """
            none = {"capacity": 0, "limit": 0, "fragmentation": 0, "pinned": 0}
            assert pyalloc.oom_report() == {"counts": none, "last": []}
            raises(torch.OutOfMemoryError, "", lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda"))
            with pyalloc.pool("kv"):
                raises(torch.OutOfMemoryError, "", lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
            report = pyalloc.oom_report()
            assert report["counts"] == {**none, "capacity": 1, "limit": 1}, report
            assert [(one["pool"], one["bytes"], one["reason"]) for one in report["last"]] == [
                ("general", 1 << 40, "capacity"), ("kv", 1 << 30, "limit")]
            assert "Tried to allocate" in report["last"][1]["message"]
            """
        ).replace('assert pyalloc.enable(bridge="require", lora_reserve=0)\n', "", 1)
    )


def test_a_storm_of_refusals_leaves_everything_as_it_was(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            kept = [torch.empty(5 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
            before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            refused = 0
            for i in range(10_000):
                try:
                    torch.empty((8 << 30) + i, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError:
                    refused += 1
            assert refused == 10_000
            assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
            report = pyalloc.oom_report()
            assert sum(report["counts"].values()) == 10_000 and len(report["last"]) == 16
            assert report["last"][-1]["bytes"] == (8 << 30) + 9999
            more = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
            """
        )
    )
