"""Torch's memory functions with pyalloc behind them: numbers exact, nothing silently missing."""

from __future__ import annotations

from bridge_program import program
from conftest import PYALLOC, Run


def test_every_key_of_memory_stats(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            x = torch.empty(1000, dtype=torch.uint8, device="cuda")
            y = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            assert torch.cuda.get_allocator_backend() == "pyalloc"
            nested = torch.cuda.memory_stats_as_nested_dict()
            groups = ["allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
                      "active_bytes", "inactive_split_bytes", "requested_bytes"]
            values = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
                      "max_split_size"]
            for group in groups:
                assert set(nested[group]) == {"all", "small_pool", "large_pool"}, group
                for parts in nested[group].values():
                    assert set(parts) == {"current", "peak", "allocated", "freed"}
                for part in ("current", "allocated", "freed"):
                    total = nested[group]["all"][part]
                    assert total == nested[group]["small_pool"][part] + nested[group]["large_pool"][part], (group, part)
            for value in values:
                assert isinstance(nested[value], int), value
            assert set(nested) >= {*groups, *values, "oversize_allocations", "oversize_segments"}
            flat = torch.cuda.memory_stats()
            assert flat["requested_bytes.all.current"] == 1000 + (3 << 20)
            assert flat["allocated_bytes.small_pool.current"] == 1024
            assert flat["allocated_bytes.large_pool.current"] == 3 << 20
            assert flat["allocation.all.current"] == 2
            assert flat["reserved_bytes.all.current"] >= flat["active_bytes.all.current"] >= 1024 + (3 << 20)
            assert flat["num_device_alloc"] > 0 and flat["num_ooms"] == 0
            assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
            assert pyalloc.device_stats(0)["allocated_bytes"]["all"] == nested["allocated_bytes"]["all"]
            """
        )
    )


def test_peaks_and_totals_are_exact(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            size = 5 << 20
            a = torch.empty(size, dtype=torch.uint8, device="cuda")
            base = torch.cuda.memory_allocated()
            assert base == size == torch.cuda.max_memory_allocated()
            for count in (3, 1, 7):
                held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
                assert torch.cuda.memory_allocated() == base + count * size
                del held
            assert torch.cuda.memory_allocated() == base
            assert torch.cuda.max_memory_allocated() == base + 7 * size
            assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            assert torch.cuda.max_memory_allocated() == base
            b = torch.empty(size, dtype=torch.uint8, device="cuda")
            del b
            assert torch.cuda.max_memory_allocated() == base + size

            stats = torch.cuda.memory_stats()
            assert stats["allocation.all.allocated"] == 13 and stats["allocation.all.freed"] == 12 - 0
            assert stats["allocated_bytes.all.allocated"] == 13 * size
            assert stats["allocated_bytes.all.freed"] == 12 * size
            torch.cuda.reset_accumulated_memory_stats()
            stats = torch.cuda.memory_stats()
            assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 0
            assert stats["allocated_bytes.all.current"] == base
            """
        )
    )


def test_snapshots_are_consistent(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import pickle
            sizes = [100, 512, 4096, 1 << 20, 3 << 20, 50 << 20]
            held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes * 3]
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                held += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
            del held[::2]
            segments = torch.cuda.memory_snapshot()
            addresses = [segment["address"] for segment in segments]
            assert addresses == sorted(addresses)
            live = []
            for segment in segments:
                blocks = segment["blocks"]
                assert segment["device"] == 0 and segment["segment_pool_id"] == (0, 0)
                assert segment["segment_type"] in ("small", "large")
                assert sum(block["size"] for block in blocks) == segment["total_size"]
                place = segment["address"]
                for block in blocks:
                    assert block["address"] == place
                    assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
                    place += block["size"]
                allocated = [block for block in blocks if block["state"] == "active_allocated"]
                assert segment["allocated_size"] == sum(block["size"] for block in allocated)
                assert segment["requested_size"] == sum(block["requested_size"] for block in allocated)
                assert segment["active_size"] >= segment["allocated_size"]
                live += [(block["address"], block["requested_size"]) for block in allocated]
            assert sorted(live) == sorted((tensor.data_ptr(), tensor.numel()) for tensor in held)
            stats = torch.cuda.memory_stats()
            assert sum(segment["total_size"] for segment in segments) == stats["reserved_bytes.all.current"]
            assert sum(segment["allocated_size"] for segment in segments) == stats["allocated_bytes.all.current"]
            assert len(segments) == stats["segment.all.current"]

            whole = M._snapshot()
            assert [bool(trace) for trace in whole["device_traces"]] == [False] * torch.cuda.device_count()
            assert whole["allocator_settings"]["max_split_size"] == -1
            assert whole["allocator_settings"]["expandable_segments"] is False
            from torch.cuda import _memory_viz
            assert _memory_viz.segsum(whole)
            pickle.dumps(whole, protocol=4)
            """
        )
    )


def test_limits_and_returning_memory(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            assert M.get_per_process_memory_fraction() == 1.0
            free, total = torch.cuda.mem_get_info()
            x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            assert torch.cuda.mem_get_info()[0] <= free - (1 << 30)
            del x
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() == 0
            assert torch.cuda.mem_get_info()[0] >= free
            fraction = (2 << 30) / total
            torch.cuda.set_per_process_memory_fraction(fraction)
            assert M.get_per_process_memory_fraction() == fraction
            raises(torch.OutOfMemoryError, "", lambda: torch.empty(3 << 30, dtype=torch.uint8, device="cuda"))
            torch.cuda.set_per_process_memory_fraction(1.0)
            y = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
            raises(ValueError, "", lambda: torch.cuda.set_per_process_memory_fraction(2.0))
            """
        )
    )


def test_memory_is_not_kept_while_caching_is_disabled(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            # Older torch cannot be asked.
            enabled = getattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", None)
            M.caching_allocator_enable(False)
            assert enabled is None or not enabled()
            del x
            assert torch.cuda.memory_reserved() == 0
            M.caching_allocator_enable(True)
            assert enabled is None or enabled()
            """
        )
    )


def test_torch_s_switch_for_no_caching(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            for size in (1000, 64 << 20):
                x = torch.empty(size, dtype=torch.uint8, device="cuda")
                assert torch.cuda.memory_reserved() >= size
                del x
                assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0, size
            """
        ),
        env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )


def test_empty_tensors_and_raw_allocations(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            assert torch.empty(0, device="cuda").data_ptr() == 0
            assert torch.empty(0, device="cuda").device == torch.device("cuda", 0)
            assert torch.cuda.memory_allocated() == 0
            pointer = M.caching_allocator_alloc(1000)
            assert pointer % 512 == 0 and torch.cuda.memory_allocated() == 1024
            other = M.caching_allocator_alloc(1000, stream=torch.cuda.Stream())
            assert torch.cuda.memory_allocated() == 2048
            M.caching_allocator_delete(pointer)
            M.caching_allocator_delete(other)
            assert torch.cuda.memory_allocated() == 0
            """
        )
    )


def test_a_wrong_free_raises_and_harms_nothing(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        program(
            """
            x = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
            pointer = M.caching_allocator_alloc(1000)
            M.caching_allocator_delete(pointer)
            for wrong in (pointer, 12345, x.data_ptr() + 512):
                raises(RuntimeError, hex(wrong), lambda: M.caching_allocator_delete(wrong))
            assert pyalloc.device_stats(0)["bad_frees"] == 3
            assert torch.cuda.memory_allocated() == 4 << 20
            M.caching_allocator_delete(x.data_ptr())   # now the tensor's own free is the wrong one
            del x
            y = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
            M.caching_allocator_delete(y.data_ptr())
            del y
            assert pyalloc.device_stats(0)["bad_frees"] == 5
            assert torch.cuda.memory_allocated() == 0
            assert torch.empty(4 << 20, dtype=torch.uint8, device="cuda").data_ptr() != 0
            """
        )
    )
    assert done.stderr.count("could not be freed") == 1


def test_accelerator_functions_see_pyalloc(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            assert torch.accelerator.memory_allocated() == 0
            x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
            assert torch.accelerator.memory_allocated() == 3 << 20
            seen, expected = torch.accelerator.memory_stats(), torch.cuda.memory_stats()
            assert len(seen) > 50 and seen.items() <= expected.items()  # torch leaves some keys out here
            assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
            del x
            assert torch.accelerator.max_memory_allocated() == 3 << 20
            torch.accelerator.reset_peak_memory_stats()
            assert torch.accelerator.max_memory_allocated() == 0
            torch.accelerator.reset_accumulated_memory_stats()
            assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0
            torch.accelerator.empty_cache()
            assert torch.accelerator.memory_reserved() == 0
            assert torch.accelerator.get_memory_info() == torch.cuda.mem_get_info()
            """
        )
    )


def test_record_stream_ignores_what_is_not_ours(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            side = torch.cuda.Stream()
            torch.empty(0, device="cuda").record_stream(side)
            x = torch.empty(1 << 20, device="cuda")
            x.record_stream(side)
            x.view(-1)[100:].record_stream(side)
            del x
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == 0
            """
        )
    )


def test_the_hook_needs_no_change_of_the_program(run_on_simgpu: Run) -> None:
    done = run_on_simgpu(
        "import torch; x = torch.empty(1 << 20, device='cuda')\n"
        "print(torch.cuda.memory_allocated(), torch.cuda.get_allocator_backend())",
        env=PYALLOC,
    )
    assert done.stdout == "4194304 pyalloc\n"
    assert "warn" not in done.stderr.lower()
