"""A Llama-shaped decoder built of plain torch modules, with one contiguous KV cache per request.

The model serve_trace.py runs. Sizes are Llama-2-7B's by default; weights are random. A step computes a mixed batch:
rows of requests that decode one token each come first, then the prompt chunks that are being prefilled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. A head is width // heads wide."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    ffn: int = 11008
    vocab: int = 32000
    max_tokens: int = 16384

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes one token takes in the KV cache: keys and values of every layer, two bytes a number."""
        return 2 * self.layers * self.width * 2


SHAPES = {"7b": Shape(), "small": Shape(layers=4, width=512, heads=4, ffn=1408)}


class KVCache:
    """Keys and values of one request: a tensor (2 * layers, capacity, heads, head width), reallocated to grow.

    Row 2 * i holds the keys of layer i, row 2 * i + 1 its values.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.tokens = 0  # filled
        self.data = torch.empty((2 * shape.layers, 0, shape.heads, shape.width // shape.heads))

    def reserve(self, tokens: int, step: int) -> int:
        """Makes room for `tokens` tokens, in multiples of `step`. Returns the bytes it allocated, or 0."""
        rows, capacity, heads, head_width = self.data.shape
        if tokens <= capacity:
            return 0
        grown = torch.empty((rows, -(-tokens // step) * step, heads, head_width), device="cuda", dtype=torch.bfloat16)
        if self.tokens:
            grown[:, : self.tokens].copy_(self.data[:, : self.tokens])
        self.data = grown  # the old tensor dies here
        return grown.nbytes

    def views(self, first: int, count: int) -> tuple[list[Tensor], list[Tensor]]:
        """For a step that adds tokens first .. first + count: per row, where to write them and what to attend to.

        The first are (count, heads, head width), the second (1, heads, first + count, head width).
        """
        slots = self.data.narrow(1, first, count).unbind(0)
        seen = self.data.narrow(1, 0, first + count).transpose(1, 2).unsqueeze(1).unbind(0)
        return list(slots), list(seen)


@dataclass
class Batch:
    """One step's input: `decodes` rows of one token each, then prompt chunks of `chunks` tokens each."""

    ids: Tensor  # (rows,) token numbers
    positions: Tensor  # (rows,)
    sampled: Tensor  # (outputs,) rows whose next token is wanted
    decodes: int
    chunks: list[int]
    slots: list[list[Tensor]] = field(default_factory=list)  # per request: KVCache.views
    seen: list[list[Tensor]] = field(default_factory=list)


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.index, self.heads, self.head_width = index, shape.heads, shape.width // shape.heads
        self.attention_norm = nn.RMSNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width)
        self.gate_up = nn.Linear(shape.width, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        x = x + self.out(self.attend(self.attention_norm(x), cos, sin, batch))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """Writes the new keys and values into the caches and attends, request by request: their lengths differ."""
        qkv = self.qkv(x).view(-1, 3 * self.heads, self.head_width)
        left, right = qkv[:, : 2 * self.heads].chunk(2, dim=-1)
        rotated = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        query, key, value = rotated[:, : self.heads], rotated[:, self.heads :], qkv[:, 2 * self.heads :]

        sizes = [1] * batch.decodes + batch.chunks
        of_keys, of_values = 2 * self.index, 2 * self.index + 1
        slots = [one[of_keys] for one in batch.slots] + [one[of_values] for one in batch.slots]
        torch._foreach_copy_(slots, [*key.split(sizes), *value.split(sizes)])
        outputs = []
        for q, seen in zip(query.transpose(0, 1).unsqueeze(0).split(sizes, dim=2), batch.seen, strict=True):
            keys, values = seen[of_keys], seen[of_values]
            if q.shape[2] == 1:
                outputs.append(F.scaled_dot_product_attention(q, keys, values))
            elif q.shape[2] == keys.shape[2]:
                outputs.append(F.scaled_dot_product_attention(q, keys, values, is_causal=True))
            else:  # a later chunk: its last row sees everything
                mask = causal_lower_right(q.shape[2], keys.shape[2])
                outputs.append(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return torch.cat(outputs, dim=2).transpose(1, 2).reshape(-1, self.heads * self.head_width)


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape, index) for index in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        half = shape.width // shape.heads // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(shape.max_tokens, dtype=torch.float32)[:, None, None] * frequencies
        self.register_buffer("cos", angles.cos().to(torch.bfloat16))
        self.register_buffer("sin", angles.sin().to(torch.bfloat16))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """The next token, greedily, of each row in batch.sampled."""
        x = self.embedding(batch.ids)
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        for layer in self.layers:
            x = layer(x, cos, sin, batch)
        logits = self.head(self.norm(x[batch.sampled])).float()
        return logits.argmax(dim=-1)


def build(shape: Shape) -> Llama:
    """A model with random bf16 weights on the current CUDA device."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return Llama(shape).eval()
    finally:
        torch.set_default_dtype(previous)
