"""Models on the simulated GPU: a Llama, a training step, CUDA graphs, torch.compile with graphs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import Run
from support import need


def test_llama_forward_and_decode(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    need(find_spec("transformers"), "transformers is not installed")
    run_on_simgpu(
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
                             num_key_value_heads=4, vocab_size=1000)
        model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
        tokens = torch.randint(1000, (2, 17)).cuda()
        cache = None
        with torch.inference_mode():
            for step in range(6):
                out = model(tokens, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                tokens = torch.full((2, 1), step, device="cuda")
        assert out.logits.shape == (2, 1, 1000) and cache.get_seq_length() == 17 + 5
        """,
        env=allocator,
    )


def test_training_step(run_on_simgpu: Run, allocator: Mapping[str, str]) -> None:
    run_on_simgpu(
        """
        import torch

        torch.manual_seed(0)
        layers = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2).cuda()
        optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda")
        allocated = []
        for _ in range(4):
            with torch.autocast("cuda", torch.bfloat16):
                loss = layers(torch.randn(4, 32, 128, device="cuda")).float().square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            del loss
            allocated.append(torch.cuda.memory_allocated())
        assert allocated[1] == allocated[2] == allocated[3] > 0, allocated
        """,
        env=allocator,
    )


def test_graph_replays_copies(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch

        source, target = torch.arange(1000.0).cuda(), torch.zeros(1000, device="cuda")
        other = torch.zeros(1000, device="cuda")
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                other.copy_(source)
            target.copy_(source)
            torch.cuda.current_stream().wait_stream(side)
        assert target.cpu().sum() == 0 and other.cpu().sum() == 0, "capture must not run the work"
        for start in (0.0, 5.0):
            source.copy_(torch.arange(1000.0) + start)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(target.cpu(), torch.arange(1000.0) + start)
            assert torch.equal(other.cpu(), torch.arange(1000.0) + start)
        """,
    )


def test_graph_of_a_model(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch

        def make():
            return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()

        model = make()
        x = torch.randn(8, 64, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(make(), (x,))
        for _ in range(3):
            graphed(torch.randn(8, 64, device="cuda", requires_grad=True)).sum().backward()
        pool = torch.cuda.graph_pool_handle()
        graphs = []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                y = model(x)
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        """,
    )


def test_compile_with_graphs(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        """
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
        compiled = torch.compile(model, backend="cudagraphs")
        with torch.no_grad():
            for _ in range(4):
                out = compiled(torch.randn(8, 64, device="cuda"))
        assert out.shape == (8, 64)
        """,
    )


@pytest.mark.slow
def test_compile_with_inductor(run_on_simgpu: Run, tmp_path: Path) -> None:
    need(find_spec("triton") and shutil.which("gcc"), "Triton or gcc is not installed")
    run_on_simgpu(
        """
        import torch
        import pyalloc.simgpu

        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
        x = torch.randn(8, 64, device="cuda")
        torch.compile(model)(x).sum().backward()
        graphed = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(4):
                assert graphed(x).shape == (8, 64)
        calls = pyalloc.simgpu.simulation().all_calls()
        assert calls.get("cuLaunchKernel", 0) + calls.get("cuLaunchKernelEx", 0) > 0, "no Triton launch"
        assert calls.get("cuGraphLaunch", 0) > 0, calls
        """,
        env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
    )
