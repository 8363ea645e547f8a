"""Generated traces: a model's repeated steps, after a warm-up in which everything that repeats has been seen once.

Shapes are those of a decoder of Llama-2-7B's width with fewer layers; sizes in bytes of bf16 unless said. Every row
takes 6 us, as in captured traces. What a kernel library allocates inside is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .errors import BenchError
from .traces import Trace, TraceBuilder

HIDDEN, HEADS, FFN, VOCAB = 4096, 32, 11008, 32000
BF16, FP32 = 2, 4
ROW_US = 6.0
READ_BACK_US = 500.0
FSDP_LAYER_US = 300.0  # hooks and launches of one sharded layer
COMPUTE, COMM = 0, 1  # streams


class Sink(Protocol):
    """What takes the rows: TraceBuilder, TraceWriter."""

    def alloc(self, key: object, size: int, stream: object, time_us: float) -> None: ...
    def free(self, key: object, time_us: float) -> None: ...
    def wait(self, stream: object, other: object, time_us: float) -> None: ...


class Program:
    """A program that allocates: numbers its blocks and keeps its clock."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._time = 0.0
        self._blocks = 0
        self.rows = 0

    def alloc(self, size: int, stream: int = COMPUTE) -> int:
        self._blocks += 1
        self._sink.alloc(self._blocks, size, stream, self._tick())
        return self._blocks

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self._sink.free(block, self._tick())

    def wait(self, stream: int, other: int) -> None:
        self._sink.wait(stream, other, self._tick())

    def read_back(self) -> None:
        """The host waits for a value of the device: everything enqueued is finished then."""
        self._time += READ_BACK_US

    def host_work(self, us: float) -> None:
        """Python and launches that allocate nothing."""
        self._time += us

    def _tick(self) -> float:
        self._time += ROW_US
        self.rows += 1
        return self._time


def layer_weights() -> int:
    return BF16 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN)


def allocate_weights(program: Program, layers: int) -> None:
    program.alloc(BF16 * VOCAB * HIDDEN)
    for _ in range(layers):
        for size in (3 * HIDDEN * HIDDEN, HIDDEN * HIDDEN, 2 * HIDDEN * FFN, HIDDEN * FFN, HIDDEN, HIDDEN):
            program.alloc(BF16 * size)
    program.alloc(BF16 * VOCAB * HIDDEN)


def forward_layer(program: Program, tokens: int, keep: bool) -> list[int]:
    """One decoder layer. Returns the blocks kept for the backward pass; the layer's output is the last of them."""
    normed = program.alloc(BF16 * tokens * HIDDEN)
    qkv = program.alloc(BF16 * tokens * 3 * HIDDEN)
    attention = program.alloc(BF16 * tokens * HIDDEN)
    softmax = program.alloc(FP32 * HEADS * tokens)
    projected = program.alloc(BF16 * tokens * HIDDEN)
    gate_up = program.alloc(BF16 * tokens * 2 * FFN)
    activated = program.alloc(BF16 * tokens * FFN)
    output = program.alloc(BF16 * tokens * HIDDEN)
    if keep:
        program.free(projected)
        return [normed, qkv, attention, softmax, gate_up, activated, output]
    program.free(normed, qkv, softmax, attention, projected, gate_up, activated)
    return [output]


def inference_pass(program: Program, layers: int, tokens: int, sequences: int) -> None:
    hidden = program.alloc(BF16 * tokens * HIDDEN)
    for _ in range(layers):
        output = forward_layer(program, tokens, keep=False)
        program.free(hidden)
        hidden = output[0]
    logits = program.alloc(FP32 * sequences * VOCAB)
    probabilities = program.alloc(FP32 * sequences * VOCAB)
    chosen = program.alloc(8 * sequences)
    program.read_back()  # the tokens
    program.free(hidden, logits, probabilities, chosen)


def training_pass(program: Program, layers: int, tokens: int) -> list[int]:
    """Forward and backward. Returns the gradients."""
    kept = [program.alloc(BF16 * tokens * HIDDEN)]
    for _ in range(layers):
        kept += forward_layer(program, tokens, keep=True)
    logits = program.alloc(FP32 * tokens * VOCAB)
    loss = program.alloc(FP32)
    grad_logits = program.alloc(FP32 * tokens * VOCAB)
    program.free(logits, loss)
    gradients = [program.alloc(BF16 * VOCAB * HIDDEN)]
    grad = program.alloc(BF16 * tokens * HIDDEN)
    program.free(grad_logits)
    for _ in range(layers):
        grad_ffn = program.alloc(BF16 * tokens * 2 * FFN)
        gradients += [program.alloc(BF16 * 2 * HIDDEN * FFN), program.alloc(BF16 * HIDDEN * FFN)]
        grad_qkv = program.alloc(BF16 * tokens * 3 * HIDDEN)
        gradients += [program.alloc(BF16 * 3 * HIDDEN * HIDDEN), program.alloc(BF16 * HIDDEN * HIDDEN)]
        before = program.alloc(BF16 * tokens * HIDDEN)
        program.free(grad_ffn, grad_qkv, grad)
        grad = before
        program.free(*reversed(kept[-7:]))
        del kept[-7:]
    program.free(grad, *kept)
    return gradients


def prefill(program: Program, layers: int) -> Callable[[int], None]:
    """Prompts of four lengths in turn; the KV cache is one tensor from the start."""
    allocate_weights(program, layers)
    program.alloc(8 << 30)
    lengths = (2048, 512, 3072, 1300)
    return lambda step: inference_pass(program, layers, lengths[step % len(lengths)], 4)


def decode(program: Program, layers: int) -> Callable[[int], None]:
    """One token for each of a batch that shrinks and grows again."""
    allocate_weights(program, layers)
    program.alloc(8 << 30)
    batches = (64, 63, 61, 60, 64, 62)
    return lambda step: inference_pass(program, layers, batches[step % len(batches)], batches[step % len(batches)])


def train(program: Program, layers: int) -> Callable[[int], None]:
    """Forward, backward and an AdamW update whose state stays."""
    allocate_weights(program, layers)
    state: list[int] = []

    def step(_: int) -> None:
        gradients = training_pass(program, layers, 2048)
        if not state:
            for _ in range(layers):
                state.extend(program.alloc(2 * layer_weights()) for _ in range(2))
        program.read_back()  # the gradients' norm, to clip them
        temporary = [program.alloc(layer_weights()) for _ in range(2)]
        program.free(*temporary, *gradients)

    return step


def fsdp(program: Program, layers: int) -> Callable[[int], None]:
    """Sharded training: a layer's weights are gathered on a second stream before their use on the first, freed after.

    The second stream waits for the first before a buffer's free, as FSDP does. Between the passes the optimizer's
    temporaries take on the first stream what the gathers had on the second; lengths vary by step.
    """
    for _ in range(2 * layers):
        program.alloc(layer_weights() // 8)
    lengths = (1024, 2048, 1536, 768)
    ahead = 3

    def gathered(tokens: int, order: list[int], use: Callable[[int], None]) -> None:
        buffers: dict[int, int] = {}
        for index in range(len(order)):
            for coming in order[index : index + ahead]:
                if coming not in buffers:
                    buffers[coming] = program.alloc(layer_weights(), COMM)
            program.wait(COMPUTE, COMM)
            use(tokens)
            program.host_work(FSDP_LAYER_US)
            program.wait(COMM, COMPUTE)
            program.free(buffers.pop(order[index]))

    def step(number: int) -> None:
        kept: list[list[int]] = []
        shards: list[int] = []
        tokens = lengths[number % len(lengths)]
        gathered(tokens, list(range(layers)), lambda t: kept.append(forward_layer(program, t, keep=True)))

        def backward(t: int) -> None:
            gradient = program.alloc(layer_weights())
            program.free(*reversed(kept.pop()))
            shard = program.alloc(layer_weights() // 8, COMM)
            program.wait(COMM, COMPUTE)
            program.wait(COMPUTE, COMM)
            program.free(gradient)
            shards.append(shard)

        gathered(tokens, list(range(layers - 1, -1, -1)), backward)
        program.read_back()  # the gradients' norm, to clip them
        temporaries = [program.alloc(layers * layer_weights() // 4) for _ in range(3)]
        program.wait(COMM, COMPUTE)
        program.free(*temporaries, *shards)
        program.read_back()  # the loss, to log it

    return step


@dataclass(frozen=True)
class Workload:
    start: Callable[[Program, int], Callable[[int], None]]
    layers: int
    words: str


WORKLOADS = {
    "prefill": Workload(prefill, 16, "prompts of four lengths, fixed KV cache"),
    "decode": Workload(decode, 16, "one token for a batch of 60 to 64"),
    "train": Workload(train, 8, "forward, backward, AdamW"),
    "fsdp": Workload(fsdp, 12, "sharded training on two streams"),
}
WARM_STEPS = 12  # whole cycles of every workload


def generate(name: str, steps: int, sink: Sink) -> int:
    """Writes the workload's start, its warm-up and `steps` further steps into the sink. Returns the row at which the
    warm-up ends. Raises BenchError for an unknown name.
    """
    if name not in WORKLOADS:
        raise BenchError(f"workload {name!r} is unknown; expected {', '.join(WORKLOADS)}")
    program = Program(sink)
    step = WORKLOADS[name].start(program, WORKLOADS[name].layers)
    for number in range(WARM_STEPS):
        step(number)
    split = program.rows
    for number in range(WARM_STEPS, WARM_STEPS + steps):
        step(number)
    return split


def build(name: str, steps: int) -> tuple[Trace, int]:
    """The workload as a trace, and the row at which its warm-up ends."""
    builder = TraceBuilder(name)
    split = generate(name, steps, builder)
    return builder.trace, split
