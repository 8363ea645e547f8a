"""What a program may use: the memory fraction, a container's limit, a full device; and the complaints about each."""

from __future__ import annotations

import pytest
from bridge_program import program
from conftest import Run
from test_plain_registration import REGISTER


def test_the_fraction_holds_on_every_device(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            seen = []
            torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
            for device, fraction in ((0, 0.25), (1, 0.5), (2, 1.0)):
                torch.cuda.set_per_process_memory_fraction(fraction, device)
            for device, fraction in ((0, 0.25), (1, 0.5), (2, 1.0)):
                assert M.get_per_process_memory_fraction(device) == fraction
                total = torch.cuda.mem_get_info(device)[1]
                allowed = int(total * fraction)
                fits = torch.empty(allowed - (8 << 20), dtype=torch.uint8, device=f"cuda:{device}")
                refused = lambda: torch.empty(32 << 20, dtype=torch.uint8, device=f"cuda:{device}")
                raises(torch.OutOfMemoryError, f"GPU {device} has a total capacity", refused)
                stats = torch.cuda.memory_stats(device)
                assert stats["num_ooms"] == 1
                assert pyalloc.device_stats(device)["num_oom_rejections"] == (fraction < 1), device
                assert torch.cuda.memory_reserved(device) <= allowed
                assert seen.pop()[0] == device and not seen
                del fits
                refused()  # now it fits
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
            torch.empty(3 << 30, dtype=torch.uint8, device="cuda:0")
            raises(torch.OutOfMemoryError, "limit", lambda: torch.empty(3 << 30, dtype=torch.uint8, device="cuda:1"))
            for bad in (-0.1, 1.5):
                raises(ValueError, "", lambda: torch.cuda.set_per_process_memory_fraction(bad, 1))
            assert M.get_per_process_memory_fraction(1) == 0.5
            """
        ),
        memory="4GiB",
        devices=3,
    )


def test_the_fraction_of_torchs_variable_holds_on_every_device(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            for device in (0, 1):
                assert M.get_per_process_memory_fraction(device) == 0.5
                raises(torch.OutOfMemoryError, "limited to",
                       lambda: torch.empty(3 << 30, dtype=torch.uint8, device=f"cuda:{device}"))
                torch.empty((2 << 30) - (64 << 20), dtype=torch.uint8, device=f"cuda:{device}")
            """
        ),
        memory="4GiB",
        devices=2,
        env={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"},
    )


CONTAINER = """
import pyalloc.simgpu
simulation = pyalloc.simgpu.simulation()
"""


def test_a_container_may_use_less_than_the_device_has(run_on_simgpu: Run) -> None:
    """The driver's word counts, not NVML's: an OutOfMemoryError at the limit, and everything works on."""
    run_on_simgpu(
        program(
            CONTAINER
            + """
simulation.set_limit(1 << 30)
assert torch.cuda.mem_get_info() == (1 << 30, 1 << 30)
assert torch.cuda.get_device_properties(0).total_memory == 4 << 30
big = lambda: torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
raises(torch.OutOfMemoryError, "total capacity of 1.00 GiB", big)
for _ in range(3):
    held = []
    try:
        while True:
            held.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        assert "CUDA out of memory" in str(error)
    assert len(held) == 10 and torch.cuda.memory_reserved() <= 1 << 30
    held.append(torch.empty(20 << 20, dtype=torch.uint8, device="cuda"))
    held.clear()
    torch.cuda.empty_cache()
ledger = pyalloc.ledger()
figures = ledger.as_dict()
torch.cuda.set_per_process_memory_fraction(0.5)     # of what the container may use
raises(torch.OutOfMemoryError, "limited to", lambda: torch.empty(600 << 20, dtype=torch.uint8, device="cuda"))
torch.empty(500 << 20, dtype=torch.uint8, device="cuda")
assert simulation.violations() == []
"""
        ),
        memory="4GiB",
    )


def test_a_container_whose_driver_refuses_before_it_says_so(run_on_simgpu: Run) -> None:
    """cuMemGetInfo still shows memory when cuMemCreate refuses: no abort, and what fits is still served."""
    run_on_simgpu(
        program(
            CONTAINER
            + """
x = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
simulation.set_limit(300 << 20, told=False)
assert torch.cuda.mem_get_info()[0] > 3 << 30
for _ in range(3):
    raises(torch.OutOfMemoryError, "driver has no memory left",
           lambda: torch.empty(300 << 20, dtype=torch.uint8, device="cuda"))
del x
for size in (200 << 20, 150 << 20, 1000, 280 << 20):
    assert torch.empty(size, dtype=torch.uint8, device="cuda").data_ptr() != 0
stats = torch.cuda.memory_stats()
assert stats["num_ooms"] == 3 and pyalloc.device_stats(0)["num_oom_rejections"] == 0
simulation.set_limit(0)
torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
"""
        ),
        memory="4GiB",
    )


def test_a_limit_that_comes_while_the_program_runs(run_on_simgpu: Run) -> None:
    """Another process of the container takes its share, or its limit is lowered below what is held."""
    run_on_simgpu(
        program(
            CONTAINER
            + """
x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
simulation.set_limit(1 << 30)
raises(torch.OutOfMemoryError, "", lambda: torch.empty(500 << 20, dtype=torch.uint8, device="cuda"))
del x
torch.empty(500 << 20, dtype=torch.uint8, device="cuda")    # of what is held already
torch.cuda.empty_cache()
torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.empty_cache()
raises(torch.OutOfMemoryError, "", lambda: torch.empty(1100 << 20, dtype=torch.uint8, device="cuda"))
"""
        ),
        memory="4GiB",
    )


# --- the complaints, by their row in the notes ---


@pytest.mark.parametrize("way", REGISTER)
@pytest.mark.complaint(6)
def test_the_stream_of_a_device_that_is_not_the_first(run_on_simgpu: Run, way: str) -> None:
    """A free that took the device for the stream would order the wrong one; the oracle sees every reuse too early."""
    run_on_simgpu(
        REGISTER[way]
        + """
import torch
import pyalloc.simgpu
side = torch.cuda.Stream(device=1)
for turn in range(20):
    for device in (1, 0):
        x = torch.empty(6 << 20, dtype=torch.uint8, device=f"cuda:{device}")
        x.zero_()
        del x
    with torch.cuda.device(1), torch.cuda.stream(side):
        y = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
        y.zero_()
    del y
    z = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:1")
    assert z.get_device() == 1
    z.zero_()
    del z
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
assert pyalloc.simgpu.simulation().violations() == []
for device in (0, 1):
    stats = pyalloc.device_stats(device)
    assert stats["bad_frees"] == 0 and stats["allocation"]["all"]["current"] == 0
""",
        devices=2,
        streams="deferred",
        oracle=True,
        memory="256MiB",
    )


@pytest.mark.complaint(20)
def test_free_memory_in_pieces_serves_what_fits_in_all(run_on_simgpu: Run) -> None:
    """384 MiB asked for, 402 MiB reserved and not allocated in pieces, 330 MiB free: it is remapped."""
    run_on_simgpu(
        program(
            """
            MIB = 1 << 20
            total = torch.cuda.mem_get_info()[1] // MIB
            filler = torch.empty((total - 330 - 2 * 402) * MIB, dtype=torch.uint8, device="cuda")
            pieces = [torch.empty(6 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2 * 402 // 6)]
            del pieces[::2]
            torch.empty(384 * MIB, dtype=torch.uint8, device="cuda")
            more = [torch.empty(384 * MIB, dtype=torch.uint8, device="cuda") for _ in range(1)]
            del more
            torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
            assert torch.cuda.memory_stats()["num_ooms"] == 0
            """
        ),
        memory="4GiB",
    )


@pytest.mark.complaint(29)
def test_filling_up_and_emptying_again_and_again(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import random
            choose = random.Random(3)
            for turn in range(8):
                held = []
                try:
                    while True:
                        size = choose.choice((700, 60_000, 1 << 20, 5 << 20, 33 << 20))
                        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                except torch.OutOfMemoryError:
                    pass
                torch.cuda.empty_cache()
                choose.shuffle(held)
                del held[: len(held) // 2]
                torch.cuda.empty_cache()
                held.append(torch.empty(33 << 20, dtype=torch.uint8, device="cuda"))
                del held
                torch.cuda.empty_cache()
                assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() == 0, turn
            """
        ),
        memory="512MiB",
    )


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"])
@pytest.mark.complaint(31)
def test_a_driver_call_that_fails_leaves_nothing_behind(run_on_simgpu: Run, call: str) -> None:
    """Out of memory at the n-th call: an OutOfMemoryError or none, and the next allocation works."""
    run_on_simgpu(
        program(
            CONTAINER
            + f"""
torch.empty(1, device="cuda")
sizes = (700, 300_000, 5 << 20, 90 << 20)
for nth in range(1, 9):
    torch.cuda.empty_cache()
    simulation.fail({call!r}, nth=nth)
    held = []
    for size in sizes:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            assert "CUDA out of memory" in str(error)
    simulation.clear_faults()
    held += [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    del held
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
assert simulation.violations() == [] and simulation.used() == 0
"""
        ),
        memory="512MiB",
    )


@pytest.mark.parametrize("call", ["cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemGetInfo"])
@pytest.mark.complaint(42)
def test_a_question_that_fails_is_asked_again(run_on_simgpu: Run, call: str) -> None:
    """A query that fails once is one error, or none, and nothing sticks."""
    run_on_simgpu(
        program(
            CONTAINER
            + f"""
torch.cuda.init()
torch.cuda.current_stream()
torch.cuda.get_device_properties(0)
simulation.fail({call!r}, error=999)
try:
    torch.empty(1 << 20, device="cuda")
except RuntimeError as error:
    assert not isinstance(error, torch.OutOfMemoryError) and {call!r} in str(error), error
simulation.clear_faults()
x = torch.arange(1 << 20).cuda()
assert torch.equal(x.cpu(), torch.arange(1 << 20))
torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
"""
        ),
        memory="4GiB",
    )
