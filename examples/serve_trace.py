"""Serve a real request trace with a Llama-2-7B-shaped model: pyalloc and torch's native allocator side by side.

    python examples/serve_trace.py                       # 200 requests, on the GPU, or on a simulated one of 80 GiB
    python examples/serve_trace.py --model small --requests 8 --json

Continuous batching as serving engines do it: running requests decode one token a step, waiting prompts are prefilled
in chunks beside them. Prompt and output lengths come from the Azure conversation trace (examples/data); requests queue
in the trace's order, all there from the start. Each request keeps its keys and values in one contiguous tensor that is
reallocated, and copied, every 64 tokens: the pattern that fragments a caching allocator. Weights are random and the
trace has no text, so the tokens mean nothing; lengths, shapes and lifetimes are real.

Each allocator runs in a process of its own, since torch cannot change allocators once CUDA is initialised.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gzip
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from llama import Batch, KVCache, Llama
    from torch import Tensor

TRACE = Path(__file__).parent / "data" / "azure_conversation_2023.csv.gz"
KV_STEP = 64  # tokens by which a request's KV cache grows
CHUNK = 2048  # tokens in a step, at most
SAMPLE = 5  # steps between two looks at the memory
TIMED_OPS = 20_000  # allocations timed at the end
GIB = 1 << 30


@dataclass
class Result:
    """What serving the trace cost on one allocator."""

    allocator: str
    device: str
    requests: int
    tokens: int  # prompt tokens prefilled and output tokens generated
    steps: int
    seconds: float
    live_peak_bytes: int
    reserved_peak_bytes: int
    driver_calls: int  # calls that got, mapped or returned device memory
    ns_per_op: float  # a torch.empty and its free, Python's share included
    timeline: list[tuple[int, int, int]]  # step, live bytes, reserved bytes; every SAMPLE steps


# --- the engine ---


class Request:
    def __init__(self, prompt: int, output: int) -> None:
        self.prompt, self.output = prompt, output
        self.generated = 0
        self.cache: KVCache | None = None  # from admission to the last token
        self.last: Tensor | None = None  # (1,): the token sampled last, on the device

    @property
    def total(self) -> int:
        return self.prompt + self.output


class Engine:
    """Continuous batching with chunked prefill. Nothing depends on a value on the device: a simulated one has none."""

    def __init__(self, model: Llama, kv_bytes: int, max_batch: int) -> None:
        self.model, self.max_batch = model, max_batch
        self.kv_tokens = kv_bytes // model.shape.kv_bytes_per_token
        self.running: list[Request] = []
        self.sizes: set[int] = set()  # bytes of the KV caches allocated, for the timing at the end
        self.random = random.Random(0)

    def admit(self, waiting: list[Request]) -> None:
        """Starts requests while they fit to their last token, so that none has to be thrown out again."""
        from llama import KVCache

        used = sum(request.total + KV_STEP for request in self.running)
        while waiting and len(self.running) < self.max_batch:
            used += waiting[-1].total + KV_STEP
            if used > self.kv_tokens and self.running:
                return
            request = waiting.pop()
            request.cache = KVCache(self.model.shape)
            self.sizes.add(request.cache.reserve(request.prompt, KV_STEP))
            self.running.append(request)

    def step(self) -> int:
        """One forward pass over all running requests. Returns the tokens it prefilled and generated."""
        decoding = [request for request in self.running if request.cache.tokens >= request.prompt]
        work = [(request, 1) for request in decoding]
        left = CHUNK - len(decoding)
        for request in self.running:
            count = min(left, request.prompt - request.cache.tokens)
            if count > 0:
                work.append((request, count))
                left -= count
        sampled = self.model(self.batch(work, len(decoding)))

        outputs = iter(sampled.split(1))
        tokens = 0
        for request, count in work:
            request.cache.tokens += count
            tokens += count
            if request.cache.tokens >= request.prompt:
                request.last = next(outputs)
                request.generated += 1
                if request.generated == request.output:
                    self.running.remove(request)
                    request.cache = request.last = None
        return tokens

    def batch(self, work: list[tuple[Request, int]], decodes: int) -> Batch:
        import torch
        from llama import Batch

        prompt_tokens = sum(count for _, count in work[decodes:])
        prompts = torch.tensor(self.random.choices(range(self.model.shape.vocab), k=prompt_tokens), dtype=torch.int64)
        positions, ends, slots, seen, row = [], [], [], [], -1
        for request, count in work:
            cache = request.cache
            first = cache.tokens
            self.sizes.add(cache.reserve(first + count, KV_STEP))
            writes, reads = cache.views(first, count)
            slots.append(writes)
            seen.append(reads)
            positions.extend(range(first, first + count))
            row += count
            if first + count >= request.prompt:
                ends.append(row)
        ids = torch.cat([request.last for request, _ in work[:decodes]] + [prompts.to("cuda")])
        return Batch(
            ids=ids,
            positions=torch.tensor(positions, device="cuda"),
            sampled=torch.tensor(ends, device="cuda", dtype=torch.int64),
            decodes=decodes,
            chunks=[count for _, count in work[decodes:]],
            slots=slots,
            seen=seen,
        )


def load_requests(count: int) -> list[Request]:
    with gzip.open(TRACE, "rt") as file:
        rows = list(itertools.islice(csv.DictReader(file), count))
    return [Request(int(row["prompt_tokens"]), max(1, int(row["output_tokens"]))) for row in rows]


# --- one process: one allocator ---


def serve(args: argparse.Namespace) -> Result:
    """Serves the trace on args.allocator and measures."""
    if args.allocator == "pyalloc":
        import pyalloc

        if not pyalloc.enable(lora_reserve=0, bridge=args.bridge):
            raise SystemExit("serve_trace: pyalloc is not in use; the line above says why")
    import torch
    from llama import SHAPES, build

    total = torch.cuda.get_device_properties(0).total_memory
    if args.memory and not simulated():
        torch.cuda.set_per_process_memory_fraction(min(1.0, parse_size(args.memory) / total))
        total = min(total, parse_size(args.memory))
    calls_before = driver_calls()
    model = build(SHAPES[args.model])
    weights = sum(parameter.nbytes for parameter in model.parameters())
    kv_bytes = int((total - weights) * args.kv_share)
    engine = Engine(model, kv_bytes, args.max_batch)
    waiting = load_requests(args.requests)
    requests = len(waiting)
    waiting.reverse()

    steps = tokens = 0
    timeline: list[tuple[int, int, int]] = []
    started = time.perf_counter()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("requests"), TimeElapsedColumn())
    memory = TextColumn("{task.fields[memory]}")
    with Progress(TextColumn(f"{args.allocator:8}"), *columns, memory, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=requests, memory="")
        while waiting or engine.running:
            engine.admit(waiting)
            tokens += engine.step()
            steps += 1
            if steps % SAMPLE == 0 or not engine.running:
                live, reserved = live_bytes("current"), torch.cuda.memory_reserved()
                timeline.append((steps, live, reserved))
                text = f"live {live / GIB:.1f} GiB, reserved {reserved / GIB:.1f} GiB"
                progress.update(task, completed=requests - len(waiting) - len(engine.running), memory=text)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return Result(
        allocator=args.allocator,
        device=torch.cuda.get_device_name(0),
        requests=requests,
        tokens=tokens,
        steps=steps,
        seconds=round(seconds, 1),
        live_peak_bytes=live_bytes("peak"),
        reserved_peak_bytes=torch.cuda.max_memory_reserved(),
        driver_calls=driver_calls() - calls_before,
        ns_per_op=round(time_allocations(sorted(engine.sizes - {0})), 1),
        timeline=timeline,
    )


def live_bytes(which: str) -> int:
    """The bytes of live tensors as the program asked for them: allocators round differently, so what they handed out
    cannot be compared. `which` is current or peak.
    """
    import torch

    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])


def time_allocations(sizes: list[int]) -> float:
    """Nanoseconds of a torch.empty and its free on the heap the run left: KV caches in turn with small tensors."""
    import torch

    rng = random.Random(1)
    order = [rng.choice(sizes) if i % 2 else rng.choice((512, 16384, 524288)) for i in range(TIMED_OPS)]
    for _ in range(2):  # the first round warms up
        started = time.perf_counter_ns()
        for size in order:
            torch.empty(size, dtype=torch.uint8, device="cuda")
        elapsed = time.perf_counter_ns() - started
    return elapsed / len(order)


def driver_calls() -> int:
    """Calls so far that got, mapped or returned device memory: the simulation's count, or a real GPU's allocator's."""
    if simulated():
        from pyalloc import simgpu

        return simgpu.simulation().calls()
    import torch

    stats = torch.cuda.memory_stats()
    return stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)


def simulated() -> bool:
    return "PYALLOC_SIMGPU" in os.environ


# --- the parent: one process per allocator, then the table ---


def gpu_present() -> bool:
    """Whether a real CUDA driver sees a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def run_in_process(args: argparse.Namespace, allocator: str, simulate: bool) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable]
        if simulate:
            command += ["-m", "pyalloc.simgpu", "--memory", args.memory or "80GiB"]
        command += [__file__, "--result", str(result), "--allocator", allocator, "--bridge", args.bridge]
        command += ["--model", args.model, "--requests", str(args.requests), "--max-batch", str(args.max_batch)]
        command += ["--kv-share", str(args.kv_share)]
        command += ["--memory", args.memory] if args.memory else []
        code = subprocess.run(command, check=False).returncode
        if code != 0 or not result.exists():
            raise SystemExit(f"serve_trace: the run on the {allocator} allocator ended with exit code {code}")
        return Result(**json.loads(result.read_text()))


def show(console: Console, results: list[Result]) -> None:
    table = Table(title=f"{results[0].requests} requests on {results[0].device}", title_justify="left")
    table.add_column("")
    rows: list[tuple[str, list[str]]] = [
        ("requests", [f"{r.requests:,}" for r in results]),
        ("tokens", [f"{r.tokens:,}" for r in results]),
        ("steps", [f"{r.steps:,}" for r in results]),
        ("live peak", [f"{r.live_peak_bytes / GIB:.2f} GiB" for r in results]),
        ("reserved peak", [f"{r.reserved_peak_bytes / GIB:.2f} GiB" for r in results]),
        ("reserved / live", [f"{r.reserved_peak_bytes / r.live_peak_bytes:.3f}" for r in results]),
        ("driver calls", [f"{r.driver_calls:,}" for r in results]),
        ("time per allocation", [f"{r.ns_per_op / 1000:.2f} us" for r in results]),
        ("seconds", [f"{r.seconds:.0f}" for r in results]),
    ]
    for result in results:
        table.add_column(result.allocator, justify="right")
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)
    console.print("driver calls: those that get, map or return device memory")
    console.print("time per allocation: a torch.empty and its free, Python's share included")


def main() -> int:
    args = parse_arguments()
    if args.result:
        args.result.write_text(json.dumps(asdict(serve(args))))
        return 0
    simulate = args.simulate or not gpu_present()
    console = Console(stderr=args.json)
    console.print(f"Serving {args.requests} requests of {TRACE.name}, model {args.model}, on {where(args, simulate)}.")
    allocators = ["pyalloc", "native"] if args.allocator == "both" else [args.allocator]
    results = [run_in_process(args, allocator, simulate) for allocator in allocators]
    show(console, results)
    if args.json:
        print(json.dumps({"model": args.model, "simulated": simulate, **{r.allocator: asdict(r) for r in results}}))
    return 0


def where(args: argparse.Namespace, simulate: bool) -> str:
    return f"a simulated GPU of {args.memory or '80GiB'}: kernels do nothing, memory is real" if simulate else "the GPU"


def parse_size(text: str) -> int:
    """Bytes of "24GiB", "512MiB" or a plain number."""
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20)):
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a real request trace on pyalloc and torch's native allocator.")
    option = parser.add_argument
    option("--requests", type=int, default=200, help="requests of the trace to serve, 1 to 1000 (default 200)")
    option("--model", choices=("7b", "small"), default="7b", help="7b: Llama-2-7B's shape; small: for a quick look")
    option("--memory", help="of the simulated GPU (default 80GiB); on a real GPU, a limit")
    option("--simulate", action="store_true", help="use the simulated GPU even where there is a real one")
    option("--allocator", choices=("both", "pyalloc", "native"), default="both")
    option("--bridge", choices=("require", "off"), default="require", help="pyalloc's bridge; off: plain registration")
    option("--max-batch", type=int, default=64, help="requests running at once (default 64)")
    option(
        "--kv-share", type=float, default=0.75, help="of the memory beside the weights, for KV caches (default 0.75)"
    )
    option("--json", action="store_true", help="one JSON object on the last line of standard output")
    option("--result", type=Path, help=argparse.SUPPRESS)  # set for the process that serves
    args = parser.parse_args()
    if not 1 <= args.requests <= 1000:
        parser.error(f"--requests {args.requests}: expected 1 to 1000, as many as the trace in examples/data holds")
    if args.max_batch < 1 or args.max_batch >= CHUNK:
        parser.error(f"--max-batch {args.max_batch}: expected 1 to {CHUNK - 1}")
    return args


if __name__ == "__main__":
    sys.exit(main())
