"""What only a real GPU can tell about the virtual-memory calls: measured here, printed as one JSON object.

tools/gpu_check.py runs this in a process of its own. The driver is called through ctypes; kernels and copies are
torch's, on tensors laid over our mappings. Times are as seen from Python, whose share is about a microsecond a call.

- `calls`: cost of each call by handle size and number of mappings, the device idle or a long kernel in flight;
- `plain_calls`: cuMemAlloc and cuMemFree by size, which is what cudaMalloc and cudaFree are;
- `rules`: what the driver says to calls that some rule forbids;
- `mappings`: whether a call slows down as mappings pile up;
- `aliases`: a granule at two addresses, written by one and read by the other; an old alias unmapped under load;
- `speed`: copies and matrix products over handles of several sizes, in the order of their creation and shuffled,
  against cudaMalloc;
- `beside_mapping`: latency of short steps while another thread maps and unmaps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_driver import Driver, map_all, mapped, tensor_at

MIB = 1 << 20
KERNEL_MS = 200  # a kernel in flight lasts this long


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Microseconds of the call, and what it returned."""
    started = time.perf_counter_ns()
    result = work(*arguments)
    return (time.perf_counter_ns() - started) / 1000, result


def cycles_per_ms() -> int:
    """Of torch.cuda._sleep. A simulated device sleeps no time at all; any number does there."""
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()

    def sleep() -> None:
        torch.cuda._sleep(50_000_000)
        torch.cuda.synchronize()

    return int(50_000_000 / max(0.01, timed(sleep)[0] / 1000))


def cost_of_calls(driver: Driver, size: int, count: int, busy_cycles: int, repeats: int) -> dict[str, Any]:
    """Median microseconds of each phase. With busy_cycles, each runs beside a kernel of its own, on another stream."""
    times: dict[str, list[float]] = {}
    waited: set[str] = set()
    stream = torch.cuda.Stream()

    def phase(name: str, calls: int, work: Callable[..., Any], *arguments: Any) -> Any:
        if busy_cycles:
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(busy_cycles)
            time.sleep(0.005)
        took, result = timed(work, *arguments)
        times.setdefault(name, []).append(took / calls)
        if busy_cycles and took > KERNEL_MS * 500:
            waited.add(name)
        return result

    total = size * count
    for _ in range(repeats):
        address = phase("reserve", 1, driver.reserve, total)
        handles = phase("create_each", count, lambda: [driver.create(size) for _ in range(count)])
        phase("map_each", count, map_all, driver, address, size, handles)
        phase("set_access_call", 1, driver.set_access, address, total)
        phase("unmap_call", 1, driver.unmap, address, total)
        phase("release_each", count, lambda owned: [driver.release(one) for one in owned], handles)
        phase("free", 1, driver.free, address, total)
    torch.cuda.synchronize()
    medians = {f"{name}_us": round(statistics.median(values), 2) for name, values in times.items()}
    busy = {"waited_for_kernel": sorted(waited)} if busy_cycles else {}
    return {"handle_mib": size // MIB, "mappings": count, "busy": bool(busy_cycles), **medians, **busy}


def cost_of_plain_calls(driver: Driver, size: int, repeats: int) -> dict[str, float]:
    """Median microseconds of cuMemAlloc and cuMemFree."""
    times: dict[str, list[float]] = {"alloc_us": [], "free_us": []}
    for _ in range(repeats):
        took, address = timed(driver.plain_alloc, size)
        times["alloc_us"].append(took)
        times["free_us"].append(timed(driver.plain_free, address)[0])
    return {"mib": size / MIB, **{name: round(statistics.median(values), 1) for name, values in times.items()}}


def rules(driver: Driver, granule: int) -> dict[str, str]:
    """What the driver answers to calls about a handle of four granules and a reservation of eight."""
    handle = driver.create(4 * granule)
    address = driver.reserve(8 * granule)
    behind = address + 4 * granule
    answers = {}

    def ask(name: str, work: Callable[..., None], *arguments: int) -> None:
        try:
            work(*arguments)
            answers[name] = "allowed"
        except RuntimeError as error:
            answers[name] = str(error)

    ask("map the first half of a handle", driver.map, behind, 2 * granule, handle)
    ask("map the second half of a handle", driver.map, behind, 2 * granule, handle, 2 * granule)
    ask("map a handle", driver.map, address, 4 * granule, handle)
    ask("map a handle at a second address", driver.map, behind, 4 * granule, handle)
    ask("map over a mapping", driver.map, address, 4 * granule, handle)
    ask("give access to half a mapping", driver.set_access, address, 2 * granule)
    ask("give access to two mappings", driver.set_access, address, 8 * granule)
    ask("free a reservation with mappings", driver.free, address, 8 * granule)
    ask("unmap half a mapping", driver.unmap, address, 2 * granule)
    ask("unmap two mappings", driver.unmap, address, 8 * granule)
    ask("unmap what is not mapped", driver.unmap, address, 8 * granule)
    driver.release(handle)
    ask("free half a reservation", driver.free, address, 4 * granule)
    ask("free a reservation", driver.free, address, 8 * granule)
    return answers


def cost_of_many_mappings(driver: Driver, granule: int, upto: int) -> list[dict[str, float]]:
    """Maps one granule at ever more addresses: microseconds of a map, and of set-access per mapping."""
    handle = driver.create(granule)
    address = driver.reserve(granule * upto)
    rows = []
    done, target = 0, min(1024, upto)
    try:
        while done < upto:
            map_all(driver, address + done * granule, granule, [handle] * (target - 64 - done))
            map_us, _ = timed(map_all, driver, address + (target - 64) * granule, granule, [handle] * 64)
            access_us, _ = timed(driver.set_access, address + done * granule, granule * (target - done))
            each = round(access_us / (target - done), 3)
            rows.append({"mappings": target, "map_us": round(map_us / 64, 2), "set_access_each_us": each})
            done, target = target, min(upto, target * 4)
    finally:
        if done:
            driver.unmap(address, granule * done)
        driver.free(address, granule * upto)
        driver.release(handle)
    return rows


def aliases(driver: Driver, granule: int, busy_cycles: int) -> dict[str, Any]:
    """Bytes that differ when written by one address and read by the other; and an old alias unmapped under load."""
    handles = [driver.create(granule) for _ in range(16)]
    size = granule * len(handles)
    wrong = {"same_stream": 0, "across_streams": 0}
    old = driver.reserve(size)
    with mapped(driver, handles, granule) as new:
        map_all(driver, old, granule, handles)
        driver.set_access(old, size)
        first, second = tensor_at(old, size), tensor_at(new, size)
        other = torch.cuda.Stream()
        for value in range(1, 51):
            first.fill_(value)
            wrong["same_stream"] += int((second != value).sum().item())
            second.fill_(value + 100)
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                differ = (first != value + 100).sum()
            torch.cuda.current_stream().wait_stream(other)
            wrong["across_streams"] += int(differ.item())
        torch.cuda.synchronize()
        torch.cuda._sleep(busy_cycles)
        second.fill_(7)
        unmap_us, _ = timed(driver.unmap, old, size)
        wrong["after_unmapping_the_old_alias"] = int((second != 7).sum().item())
    driver.free(old, size)
    for handle in handles:
        driver.release(handle)
    return {"wrong_bytes": wrong, "unmap_old_alias_under_load_us": round(unmap_us, 1)}


def speed(driver: Driver, gib: float) -> dict[str, Any]:
    """Copy and matrix-product speed on mapped handles and on cudaMalloc memory."""
    side = 8192 if gib >= 1 else 512
    total = int(gib * 1024 * MIB)
    found: dict[str, Any] = {"copy_gib": gib, "matrix_side": side, "on": []}

    def measure(buffers: list[torch.Tensor], **what: Any) -> None:
        a, b, c = (one[: 2 * side * side].view(torch.bfloat16).view(side, side) for one in buffers)
        a.normal_()
        b.normal_()
        copy_ms = on_device_ms(lambda: buffers[1].copy_(buffers[0]))
        product_ms = on_device_ms(lambda: torch.mm(a, b, out=c))
        copied = {"copy_gb_per_s": round(2 * buffers[0].numel() / copy_ms / 1e6, 1)}
        found["on"].append({**what, **copied, "product_tflops": round(2 * side**3 / product_ms / 1e9, 1)})

    for mib in (2, 4, 8, 16, 32, 64):
        count = max(1, total // (mib * MIB))
        handles = [driver.create(mib * MIB) for _ in range(3 * count)]
        size = count * mib * MIB
        for shuffled in (False, True):
            if shuffled:
                random.Random(0).shuffle(handles)
            with mapped(driver, handles, mib * MIB) as address:
                measure([tensor_at(address + i * size, size) for i in range(3)], handle_mib=mib, shuffled=shuffled)
        for handle in handles:
            driver.release(handle)
    measure([torch.empty(total, dtype=torch.uint8, device="cuda") for _ in range(3)], handle_mib="cudaMalloc")
    torch.cuda.empty_cache()
    return found


def on_device_ms(work: Callable[[], object], repeats: int = 12) -> float:
    """Median milliseconds on the device."""
    times = []
    for _ in range(repeats):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        work()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return max(statistics.median(times), 1e-6)


def beside_mapping(driver: Driver, granule: int, steps: int) -> dict[str, Any]:
    """Microseconds of a short step (20 kernels), alone and while another thread maps and unmaps 64 granules."""
    x = torch.zeros(1 << 20, device="cuda")
    cycles = 0

    def step() -> None:
        for _ in range(20):
            x.add_(1)
        torch.cuda.synchronize()

    def percentiles() -> dict[str, float]:
        times = sorted(timed(step)[0] for _ in range(steps))
        return {"p50_us": round(times[len(times) // 2], 1), "p99_us": round(times[len(times) * 99 // 100], 1)}

    step()
    alone = percentiles()
    stop = threading.Event()
    handles = [driver.create(granule) for _ in range(64)]

    def load() -> None:
        nonlocal cycles
        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")  # makes the context current on this thread
        while not stop.is_set():
            with mapped(driver, handles, granule, used=False):
                cycles += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        loaded = percentiles()
    finally:
        stop.set()
        thread.join()
        for handle in handles:
            driver.release(handle)
    return {"alone": alone, "while_mapping": loaded, "map_cycles_of_64_granules": cycles}


def measure(small: bool) -> dict[str, Any]:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    driver = Driver()
    granule = driver.granularity(recommended=False)
    busy = cycles_per_ms() * KERNEL_MS if not small else 1000
    few, repeats = (2, 2) if small else (8, 5)
    many = 100 if small else 1000
    calls = [cost_of_calls(driver, mib * MIB, few, 0, repeats) for mib in (2, 20, 64, 128)]
    calls += [cost_of_calls(driver, granule, count, 0, repeats) for count in (1, 32, many)]
    beside = ((granule, 1), (granule, many), (128 * MIB, few))
    calls += [cost_of_calls(driver, size, count, busy, 2) for size, count in beside]
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    return {
        "device": torch.cuda.get_device_name(0),
        "total_bytes": total_bytes,
        "driver_version": driver.version(),
        "torch": torch.__version__,
        "granularity_minimum": granule,
        "granularity_recommended": driver.granularity(recommended=True),
        "calls": calls,
        "plain_calls": [cost_of_plain_calls(driver, mib * MIB, repeats) for mib in (2, 20, 128, 1024)],
        "rules": rules(driver, granule),
        "mappings": cost_of_many_mappings(driver, granule, 4096 if small else 65536),
        "aliases": aliases(driver, granule, busy),
        "speed": speed(driver, 0.0625 if small else min(4.0, total_bytes / 1024 / MIB / 16)),
        "beside_mapping": beside_mapping(driver, granule, 20 if small else 1000),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small sizes: to try the script on the simulated GPU")
    print(json.dumps(measure(parser.parse_args().small)))
