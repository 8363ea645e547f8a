"""CUDA tensors between processes that differ or end: a producer that is gone, native peers, other devices."""

from __future__ import annotations

from conftest import Run
from ipc_program import program


def test_the_producer_ends_first(run_on_simgpu: Run) -> None:
    """What was received stays; what was not is one clear error, and the receiver goes on."""
    run_on_simgpu(
        program(
            """
            import pickle
            from multiprocessing.reduction import ForkingPickler

            def produce(pipe):
                one, other = torch.full((1000,), 3).cuda(), torch.empty(9 << 20, device="cuda")
                pipe.send_bytes(bytes(ForkingPickler.dumps(one)))
                pipe.send_bytes(bytes(ForkingPickler.dumps(other)))
                pipe.recv_bytes()
                os._exit(0)
            """,
            """
            context = mp.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=produce, args=(there,))
            process.start()
            one = pickle.loads(here.recv_bytes())
            late = here.recv_bytes()
            here.send_bytes(b"end")
            process.join()
            assert torch.equal(one.cpu(), torch.full((1000,), 3))
            raises(RuntimeError, "has ended; keep it alive until its tensors have been received",
                   lambda: pickle.loads(late))
            assert torch.empty(1 << 20, device="cuda").data_ptr() != 0
            del one
            """,
        )
    )


def test_what_torch_refuses_is_refused_as_natively(run_on_simgpu: Run) -> None:
    """A received tensor is not sent on, and cannot grow."""
    run_on_simgpu(
        program(
            """
            from multiprocessing.reduction import ForkingPickler

            def receive(inbox, outbox):
                x = inbox.get()
                try:
                    ForkingPickler.dumps(x)
                except RuntimeError as error:
                    outbox.put(str(error))
                try:
                    x.untyped_storage().resize_(1 << 20)
                except RuntimeError as error:
                    outbox.put(str(error))
                x.record_stream(torch.cuda.Stream())  # not ours to delay
                del x
            """,
            """
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            process = context.Process(target=receive, args=(inbox, outbox))
            process.start()
            x = torch.empty(1000, device="cuda")
            inbox.put(x)
            assert "another process" in outbox.get()
            assert "resize" in outbox.get().lower()
            process.join()
            assert process.exitcode == 0
            """,
        )
    )


NATIVE_CHILD = """
import pickle, sys
import torch
try:
    tensor = pickle.loads(open(sys.argv[1], "rb").read())
except RuntimeError as error:
    print("refused:", error)
else:
    print("opened", tensor.shape)
"""

NATIVE_PRODUCER = """
import sys, time
from multiprocessing.reduction import ForkingPickler
import torch
import torch.multiprocessing
tensor = torch.empty(1000, device="cuda")
open(sys.argv[1], "wb").write(bytes(ForkingPickler.dumps(tensor)))
print("written", flush=True)
sys.stdin.readline()
"""


def test_a_peer_with_the_native_allocator(run_on_simgpu: Run) -> None:
    """Either direction is one error that says what to do."""
    run_on_simgpu(
        program(
            f"""
            import pickle, subprocess, tempfile
            from multiprocessing.reduction import ForkingPickler
            CHILD, PRODUCER = {NATIVE_CHILD!r}, {NATIVE_PRODUCER!r}
            """,
            """
            with tempfile.TemporaryDirectory() as folder:
                path = folder + "/handle"
                tensor = torch.empty(1000, device="cuda")
                open(path, "wb").write(bytes(ForkingPickler.dumps(tensor)))
                command = [sys.executable, "-c", CHILD, path]
                child = subprocess.run(command, capture_output=True, text=True)
                assert "refused:" in child.stdout and "future version" in child.stdout, child

                command = [sys.executable, "-c", PRODUCER, path]
                producer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                assert producer.stdout.readline().strip() == "written"
                raises(RuntimeError, "does not use pyalloc, whose handles only torch's native allocator can open",
                       lambda: pickle.loads(open(path, "rb").read()))
                producer.communicate("end")
            """,
        ),
        env={"PYALLOC_CONF": "", "PYTORCH_ALLOC_CONF": ""},
    )


def test_another_device_in_each_process(run_on_simgpu: Run) -> None:
    """Each device's tensors go to the same device of the receiver, also where it has peer access."""
    run_on_simgpu(
        program(
            """
            def receive(inbox, outbox):
                x, y = inbox.get()
                outbox.put((str(x.device), str(y.device)))
                moved = x.to("cuda:1")  # enables peer access for memory that was received
                back = y.to("cuda:0")
                outbox.put((marks(moved), marks(back)))
                z = inbox.get()
                outbox.put(marks(z.to("cuda:0")))
                del x, y, z, moved, back
            """,
            """
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            process = context.Process(target=receive, args=(inbox, outbox))
            process.start()
            data = torch.rand(300_000)
            x, y, z = data.to("cuda:0"), (data + 1).to("cuda:1"), (data + 2).to("cuda:1")
            inbox.put((x, y))
            assert outbox.get() == ("cuda:0", "cuda:1")
            assert outbox.get() == (marks(data), marks(data + 1))
            inbox.put(z)
            assert outbox.get() == marks(data + 2)
            process.join()
            assert process.exitcode == 0
            """,
        ),
        devices=2,
    )


def test_a_receiver_that_sees_other_devices(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import pickle, subprocess, tempfile
            from multiprocessing.reduction import ForkingPickler
            """,
            """
            if len(sys.argv) > 1:
                raises(RuntimeError, "start both with the same CUDA_VISIBLE_DEVICES",
                       lambda: pickle.loads(open(sys.argv[1], "rb").read()))
                sys.exit()
            with tempfile.TemporaryDirectory() as folder:
                tensor = torch.empty(1000, device="cuda:0")
                open(folder + "/handle", "wb").write(bytes(ForkingPickler.dumps(tensor)))
                subprocess.run([sys.executable, __file__, folder + "/handle"], check=True,
                               env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"})
            """,
        ),
        devices=2,
    )
