"""What pyalloc tells torch and its users: out of memory, the profiler, the sanitizer, features that are missing."""

from __future__ import annotations

from bridge_program import program
from conftest import Run


def test_out_of_memory(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            seen = []
            torch.empty(1, device="cuda")
            torch._C._cuda_attach_out_of_memory_observer(lambda *facts: seen.append(facts))
            keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            too_much = torch.cuda.mem_get_info()[1] + (1 << 30)
            for bytes_ in (too_much, 1 << 50, 1 << 60, (1 << 63) - 1):
                before = torch.cuda.memory_stats()
                ask = lambda: torch.empty(bytes_, dtype=torch.uint8, device="cuda")
                raises(torch.OutOfMemoryError, "ried to allocate", ask)
                after = torch.cuda.memory_stats()
                assert after["num_ooms"] == before["num_ooms"] + 1
                for key in ("allocated_bytes.all.current", "allocation.all.current"):
                    assert after[key] == before[key], key
                assert torch.empty(1 << 20, dtype=torch.uint8, device="cuda").data_ptr() != 0
            assert len(seen) == 4
            device, asked, total, free = seen[0]
            assert (device, asked, total) == (0, too_much, torch.cuda.mem_get_info()[1]), seen[0]
            assert 0 <= free <= total - (1 << 30), seen[0]
            """
        )
    )


def test_an_observer_s_exception_replaces_the_error(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            def observer(*facts):
                raise KeyError("from the observer")
            torch.empty(1, device="cuda")
            torch._C._cuda_attach_out_of_memory_observer(observer)
            for _ in range(2):
                try:
                    torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError:
                    raise AssertionError("the observer's exception was lost")
                except Exception as error:
                    assert "from the observer" in str(error), error
            assert torch.empty(1 << 20, device="cuda").data_ptr() != 0
            """
        )
    )


def test_the_profiler_sees_memory(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            from torch.profiler import ProfilerActivity, profile
            torch.empty(1, device="cuda")
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
                y = torch.empty(1000, dtype=torch.uint8, device="cuda")
                del y
            changes = [event.device_memory_usage for event in profiler.events() if event.name == "[memory]"]
            by_name = {event.key: event for event in profiler.key_averages()}
            assert by_name["aten::empty"].self_device_memory_usage == (3 << 20) + 1024, by_name["aten::empty"]
            assert changes == [-1024], changes
            """
        )
    )


def test_the_sanitizer_sees_allocations_and_frees(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import torch.cuda._gpu_trace as trace
            events = []
            trace.register_callback_for_memory_allocation(lambda pointer: events.append(("+", pointer)))
            trace.register_callback_for_memory_deallocation(lambda pointer: events.append(("-", pointer)))
            torch._C._activate_gpu_trace()
            x = torch.empty(1000, device="cuda")
            pointer = x.data_ptr()
            del x
            assert events == [("+", pointer), ("-", pointer)], events
            """
        )
    )
