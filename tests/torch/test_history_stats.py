"""Statistics and what is built on them: the same keys as native's, exact peaks, the driver left alone, the figures of
an out-of-memory error, the profiler's time line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bridge_program import program
from conftest import NATIVE, PYALLOC, Run

KEYS = """
import json
import torch
from torch.cuda import memory as M
x = torch.empty(1000, device="cuda")
def shape(value):
    return {key: shape(one) for key, one in value.items()} if isinstance(value, dict) else type(value).__name__
taken, segment = M._snapshot(), torch.cuda.memory_snapshot()[0]
print(json.dumps([
    shape(M.memory_stats_as_nested_dict()), shape(torch.cuda.memory_stats()), shape(torch.accelerator.memory_stats()),
    shape(torch.cuda.host_memory_stats()), sorted(taken), sorted(taken["allocator_settings"]), sorted(segment),
    sorted(segment["blocks"][0])]))
"""


def test_the_same_keys_as_native(run_on_simgpu: Run) -> None:
    ours, native = (json.loads(run_on_simgpu(KEYS, env=allocator).stdout) for allocator in (PYALLOC, NATIVE))
    assert ours == native


@pytest.mark.complaint(1)
def test_tuning_by_the_peak_is_possible(run_on_simgpu: Run) -> None:
    """pytorch#133281: peaks are exact, begin again when told to, and say which batch still fits."""
    run_on_simgpu(
        program(
            """
            def step(batch):
                torch.cuda.reset_peak_memory_stats()
                held = torch.empty(batch << 20, dtype=torch.uint8, device="cuda")
                work = torch.empty(2 * batch << 20, dtype=torch.uint8, device="cuda")
                del work
                return torch.cuda.max_memory_allocated()
            assert [step(batch) for batch in (8, 64, 16)] == [24 << 20, 192 << 20, 48 << 20]
            keep = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
            assert step(8) == 34 << 20
            torch.cuda.reset_peak_memory_stats()
            assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 10 << 20
            assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
            assert torch.accelerator.max_memory_allocated() == 10 << 20
            torch.cuda.reset_accumulated_memory_stats()
            stats = torch.cuda.memory_stats()
            for key in ("allocation.all.allocated", "allocated_bytes.all.freed", "num_device_alloc"):
                assert stats[key] == 0, key
            """
        )
    )


@pytest.mark.complaint(7)
def test_memory_is_kept_and_frames_are_known(run_on_simgpu: Run) -> None:
    """pytorch#115336: after the first round no driver call is made, and a snapshot says who allocated."""
    run_on_simgpu(
        program(
            """
            def layer():
                return torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            layer()
            calls = [torch.cuda.memory_stats()[key] for key in ("num_device_alloc", "num_device_free")]
            for _ in range(100):
                layer()
            assert calls == [torch.cuda.memory_stats()[key] for key in ("num_device_alloc", "num_device_free")]
            M._record_memory_history()
            kept = layer()
            (block,) = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]
                        if block["state"] == "active_allocated"]
            assert "layer" in [frame["name"] for frame in block["frames"]]
            """
        )
    )


@pytest.mark.complaint(19)
def test_out_of_memory_says_how_fragmented_memory_is(run_on_simgpu: Run) -> None:
    """pytorch#29554: the largest free block, and what is free but in pieces."""
    run_on_simgpu(
        program(
            r"""
            import re
            seen = []
            torch.empty(1, device="cuda")
            M._record_memory_history()
            torch._C._cuda_attach_out_of_memory_observer(
                lambda *facts: seen.append([entry["action"] for entry in M._snapshot()["device_traces"][0]][-1]))
            pieces = []
            try:
                while True:
                    pieces.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                pass
            del pieces[::2]  # a checkerboard: half is free, in pieces of 1 MiB that no whole granule of 2 MiB holds
            try:
                torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
                raise SystemExit("it cannot fit")
            except torch.OutOfMemoryError as error:
                text = str(error)
            assert "Tried to allocate 64.00 MiB" in text, text
            assert re.search(r"Reason: fragmentation.*\s.*piece of what is reserved is 1\.\d\d MiB\.", text), text
            assert re.search(r"Fragmentation: external 0\.9\d+, after moving what is idle 0\.9", text), text
            assert seen == ["oom", "oom"], seen  # observers find it in the history already
            """
        ),
        memory="256MiB",
    )


def test_the_summary_is_sane(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 3 << 20, 50 << 20)]
            del kept[1]
            text = torch.cuda.memory_summary()
            rows = {cells[1].strip(): [cell.strip() for cell in cells[2:6]]
                    for cells in (line.split("|") for line in text.splitlines()) if len(cells) == 7}
            # Current, peak, allocated in all, freed in all.
            assert rows["Allocations"] == ["2", "3", "3", "1"], rows
            assert rows["Allocated memory"] == ["51201 KiB", "54273 KiB", "54273 KiB", "3072 KiB"], rows
            assert rows["Requested memory"] == ["51200 KiB", "54272 KiB", "54272 KiB", "3072 KiB"], rows
            assert "e+" not in text and "-1" not in text and "nan" not in text.lower(), text
            assert len(torch.cuda.memory_summary(abbreviated=True)) < len(text)
            """
        )
    )


def test_the_profiler_s_memory_time_line(run_on_simgpu: Run, tmp_path: Path) -> None:
    """A training step's tensors by category, over time, as with torch's own allocator; not zeros."""
    text = """
    import json, sys
    import torch
    from torch.profiler import ProfilerActivity, profile
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with profile(activities=[ProfilerActivity.CPU], **kept) as profiler:
        for _ in range(2):
            loss = model(torch.empty(1000, 512, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_memory_timeline(sys.argv[1], device="cuda:0")
    times, sizes = json.load(open(sys.argv[1]))
    print(json.dumps([max(sum(row) for row in sizes), [max(column) for column in zip(*sizes)]]))
    """
    peaks = {}
    for name, allocator in (("pyalloc", PYALLOC), ("native", NATIVE)):
        done = run_on_simgpu(text, env=allocator, args=[str(tmp_path / f"{name}.json")])
        peaks[name] = json.loads(done.stdout.splitlines()[-1])
    assert peaks["pyalloc"][0] > 2 << 20
    assert peaks["pyalloc"] == peaks["native"]
