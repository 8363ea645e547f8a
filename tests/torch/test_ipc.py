"""CUDA tensors between processes that use pyalloc: torch.multiprocessing as programs use it."""

from __future__ import annotations

import pytest
from conftest import Run
from ipc_program import program


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.complaint(33)
def test_tensors_of_both_sizes_there_and_back(run_on_simgpu: Run, method: str) -> None:
    """200 x 200 and 8 MB (complaints of torch's own): what either side writes, the other reads."""
    run_on_simgpu(
        program(
            """
            def work(inbox, outbox):
                for _ in range(3):
                    x = inbox.get()
                    outbox.put((marks(x), x.data_ptr() != 0, imported() > 0))
                    x.copy_(torch.full(x.shape, 7.0))
                    torch.cuda.synchronize()
                    del x
                    outbox.put(("written",))
                gc.collect()
                outbox.put(imported())
            """,
            f"""
            context = mp.get_context({method!r})
            inbox, outbox = context.Queue(), context.Queue()
            process = context.Process(target=work, args=(inbox, outbox))
            process.start()
            for shape in ((200, 200), (2 << 20,), (3, 5)):
                data = torch.rand(shape)
                x = data.cuda()
                inbox.put(x)
                seen, mapped, counted = outbox.get()
                assert seen == marks(data) and mapped and counted
                assert outbox.get() == ("written",)
                assert torch.equal(x.cpu(), torch.full(shape, 7.0))
                del x
            assert outbox.get() == 0
            process.join()
            assert process.exitcode == 0
            assert collected()
            torch.cuda.empty_cache()  # empty slabs are kept until then
            assert exported() == 0
            """,
        )
    )


def test_a_child_that_produces(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            def produce(outbox, done):
                model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
                outbox.put((model, {"rows": torch.arange(1000, device="cpu").cuda(), "empty": torch.empty(0).cuda()}))
                done.wait()
            """,
            """
            context = mp.get_context("spawn")
            outbox, done = context.Queue(), context.Event()
            process = context.Process(target=produce, args=(outbox, done))
            process.start()
            model, data = outbox.get()
            assert torch.equal(data["rows"].cpu(), torch.arange(1000)) and data["empty"].numel() == 0
            assert all(parameter.is_cuda for parameter in model.parameters())
            model(torch.empty(2, 64, device="cuda"))
            clone = {name: value.clone() for name, value in model.state_dict().items()}
            del model, data
            gc.collect()
            assert imported() == 0
            done.set()
            process.join()
            assert process.exitcode == 0
            assert all(value.is_cuda for value in clone.values())
            """,
        )
    )


def test_the_block_stays_until_its_last_receiver_lets_go(run_on_simgpu: Run) -> None:
    """The producer drops its tensor first; two receivers hold it, one after the other lets go."""
    run_on_simgpu(
        program(
            """
            def hold(inbox, outbox, go):
                x = inbox.get()
                outbox.put("has it")
                go.wait()
                outbox.put((x[0].item(), x[-1].item()))
                del x
                gc.collect()
                outbox.put(imported())
            """,
            """
            context = mp.get_context("spawn")
            inbox, outbox, go = context.Queue(), context.Queue(), context.Event()
            processes = [context.Process(target=hold, args=(inbox, outbox, go)) for _ in range(2)]
            for process in processes:
                process.start()
            x = torch.arange(3 << 20, dtype=torch.int32).cuda()
            for _ in processes:
                inbox.put(x)
            assert [outbox.get(), outbox.get()] == ["has it", "has it"]
            del x
            gc.collect()
            torch.cuda.ipc_collect()
            assert torch.cuda.memory_allocated() == 12 << 20, "two receivers still have it"
            # Memory is asked for until it runs out, and idle memory moves; what is shared does not.
            held = []
            try:
                while True:
                    held.append(torch.empty(40 << 20, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                pass
            del held
            torch.cuda.empty_cache()
            assert exported() >= 12 << 20
            go.set()
            answers = [outbox.get() for _ in range(4)]
            assert sorted(answers, key=str) == [(0, (3 << 20) - 1)] * 2 + [0, 0], answers
            for process in processes:
                process.join()
                assert process.exitcode == 0
            assert collected() and exported() == 0
            torch.cuda.empty_cache()
            assert torch.cuda.memory_reserved() == 0
            """,
        ),
        memory="256MiB",
    )


@pytest.mark.complaint(34)
def test_a_thousand_tensors_and_one_of_two_gigabytes(run_on_simgpu: Run) -> None:
    """A receiver reserves as many addresses as it maps, and finds what it has mapped already."""
    run_on_simgpu(
        program(
            """
            def virtual_bytes():
                with open("/proc/self/statm") as file:
                    return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

            def receive(inbox, outbox):
                torch.empty(1, device="cuda")
                simulation = pyalloc.simgpu.simulation() if "pyalloc.simgpu" in sys.modules else None
                before = virtual_bytes()
                tensors = inbox.get()
                grown = virtual_bytes() - before
                outbox.put((imported(), grown, [tensor[0].item() for tensor in tensors]))
                del tensors
                gc.collect()
                small = inbox.get()
                outbox.put((imported(), [tensor[0].item() for tensor in small]))
                del small
                large = inbox.get()
                outbox.put((imported(), large[0].item(), large[-1].item()))
                del large
                gc.collect()
                outbox.put(imported())
            """,
            """
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            process = context.Process(target=receive, args=(inbox, outbox))
            process.start()
            tensors = [torch.full((1 << 20,), i, dtype=torch.int16).cuda() for i in range(1000)]
            inbox.put(tensors)
            mapped, grown, values = outbox.get()
            assert values == list(range(1000))
            assert grown < mapped + (1 << 30), (grown, mapped)
            del tensors
            small = [torch.full((100,), i, dtype=torch.int16).cuda() for i in range(1000)]
            handles = {tensor.untyped_storage()._share_cuda_()[1] for tensor in small}
            assert len(handles) == 1, "tensors of one slab are one handle"
            inbox.put(small)
            mapped, values = outbox.get()
            assert values == list(range(1000)) and mapped <= 64 << 20
            del small
            large = torch.zeros(1 << 30, dtype=torch.int16).cuda()
            large[0:1].copy_(torch.tensor([5], dtype=torch.int16))
            large[-1:].copy_(torch.tensor([6], dtype=torch.int16))
            inbox.put(large)
            mapped, first, last = outbox.get()
            assert (first, last) == (5, 6) and 2 << 30 <= mapped <= (2 << 30) + (64 << 20)
            assert outbox.get() == 0
            process.join()
            assert process.exitcode == 0
            """,
        ),
        memory="8GiB",
    )


@pytest.mark.complaint(35)
def test_handles_do_not_change_as_the_memory_around_them_does(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            "",
            """
            def handle_of(tensor):
                return tensor.untyped_storage()._share_cuda_()[1]

            a = torch.empty(200, 200, device="cuda")
            b = torch.empty(200, 200, device="cuda")
            first = handle_of(a)
            assert first == handle_of(b) and isinstance(first, bytes)
            for _ in range(5):
                held = [torch.empty(300_000 * i + 1, device="cuda") for i in range(20)]
                del held
                torch.cuda.empty_cache()
                assert handle_of(a) == first == handle_of(b)
            large = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
            assert handle_of(large) == handle_of(large) != first
            """,
        )
    )


def test_blocks_of_every_pool_are_shared(run_on_simgpu: Run) -> None:
    """Packed, slabs, arenas, one handle a block, a MemPool, a graph's own pool."""
    run_on_simgpu(
        program(
            """
            def receive(inbox, outbox):
                tensors = inbox.get()
                outbox.put([marks(tensor) for tensor in tensors])
                del tensors
            """,
            """
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            process = context.Process(target=receive, args=(inbox, outbox))
            process.start()
            tensors, data = [], []
            pyalloc.create_pool("registered", contiguous=True)
            scopes = [pyalloc.pool(name) for name in ("general", "weights", "kv", "workspace", "lora", "registered")]
            scopes.append(torch.cuda.use_mem_pool(torch.cuda.MemPool()))
            for scope in scopes:
                with scope:
                    for count in (10, 100_000, 2_000_000):
                        data.append(torch.rand(count))
                        tensors.append(data[-1].cuda())
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = torch.zeros(100_000, device="cuda")
            data.append(torch.rand(100_000))
            tensors.append(output.copy_(data[-1]))
            torch.cuda.synchronize()
            inbox.put(tensors)
            assert outbox.get() == [marks(one) for one in data]
            process.join()
            assert process.exitcode == 0
            del tensors, output, graph
            assert collected()
            """,
        )
    )
