"""Tags from a torch program: who is charged for what."""

from __future__ import annotations

from bridge_program import program
from conftest import Run


def test_tasks_that_interleave_get_an_error_and_leave_nothing_open(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import asyncio

            async def request(name, first, second):
                with pyalloc.tag(name), pyalloc.pool("kv"):
                    first.set()
                    await second.wait()

            async def serve():
                events = [asyncio.Event() for _ in range(4)]
                async def one(name, entered, leave):
                    try:
                        await request(name, entered, leave)
                    except pyalloc.StateError as error:
                        return str(error)
                tasks = [asyncio.create_task(one("a", events[0], events[2]))]
                await events[0].wait()
                tasks.append(asyncio.create_task(one("b", events[1], events[3])))
                await events[1].wait()
                events[2].set()
                answers = [await tasks[0]]
                events[3].set()
                return [*answers, await tasks[1]]

            answers = asyncio.run(serve())
            assert "hold none across an await" in answers[0] and answers[1] is None, answers
            kept = torch.empty(1000, device="cuda")
            assert [bill.open_scopes for bill in pyalloc.bills()] == [0, 0]
            assert [bill.bytes for bill in pyalloc.bills()] == [0, 0]
            assert next(one for one in pyalloc.pools() if one.name == "general").blocks == 1
            """
        )
    )


def test_a_tag_is_charged_for_what_is_allocated_in_its_scope(run_on_simgpu: Run) -> None:
    run_on_simgpu(
        program(
            """
            import dataclasses, threading

            def empty(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            assert pyalloc.bills() == []
            with pyalloc.tag("request-1"):
                kept = [empty(1000), empty(5 << 20)]
                with pyalloc.pool("kv"), pyalloc.tag("request-2"):
                    other = empty(3000)
                kept.append(empty(200_000))
            outside = empty(700)
            first = pyalloc.bill("request-1")
            assert (first.bytes, first.blocks, first.open_scopes) == (1000 + (5 << 20) + 200_000, 3, 0), first
            assert pyalloc.bill("request-2").bytes == 3000
            assert [one.tag for one in pyalloc.bills()] == ["request-1", "request-2"]
            assert pyalloc.bills()[0] == first
            names = [field["name"] for field in pyalloc._native.library().tag_fields]
            assert names == [field.name for field in dataclasses.fields(pyalloc.Bill)][1:]

            @pyalloc.tag("worker")
            def work():
                return empty(4096)

            results = []
            threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(8)]
            [one.start() for one in threads]
            [one.join() for one in threads]
            assert pyalloc.bill("worker").bytes == 8 * 4096
            try:
                with pyalloc.tag("request-1"):
                    1 / 0
            except ZeroDivisionError:
                pass
            after = empty(900)
            del kept, other, results
            for name in ("request-1", "request-2", "worker"):
                bill = pyalloc.bill(name)
                assert (bill.bytes, bill.blocks) == (0, 0) and bill.peak_bytes >= 3000, bill
            strange = 'a "b" \\\\ \\n\\t é'
            with pyalloc.tag(strange):
                assert pyalloc.bills()[-1].tag == strange and pyalloc.bills()[-1].open_scopes == 1
            raises(pyalloc.InvalidArgumentError, "no tag is named 'request-3'", lambda: pyalloc.bill("request-3"))
            raises(pyalloc.InvalidArgumentError, "expected 1 to 255", pyalloc.tag("").__enter__)
            for odd in (123, b"x", None, "a\\0b", "\\ud800"):
                raises(pyalloc.InvalidArgumentError, "expected text", pyalloc.tag(odd).__enter__)
            raises(pyalloc.InvalidArgumentError, "expected text", lambda: pyalloc.create_pool("a\\0b"))
            raises(pyalloc.InvalidArgumentError, "size 1.5", lambda: pyalloc.create_pool("x", limit=1.5))
            for odd in (5, -3, "x", 1.0, True, torch.device("cpu")):
                raises(pyalloc.InvalidArgumentError, "expected 0 to 0", lambda: pyalloc.pools(odd))
                raises(pyalloc.InvalidArgumentError, "expected 0 to 0", lambda: pyalloc.escapes(odd))
            assert pyalloc.pools(torch.device("cuda:0")) == pyalloc.pools(torch.device("cuda")) == pyalloc.pools(0)
            assert pyalloc.pools("cuda:0") == pyalloc.pools("cuda") == pyalloc.pools(0)
            assert pyalloc.ledger("cuda:0").device == 0 and pyalloc.device_stats("cuda") == pyalloc.device_stats()
            assert pyalloc.escapes("cuda:0") == pyalloc.escapes(0)
            for odd in (-1, "cuda:", "cuda:1", "cuda:-1", "0", "cuda:\\u0660", "cuda:0\\n"):
                raises(pyalloc.InvalidArgumentError, "expected 0 to 0", lambda: pyalloc.device_stats(odd))

            def steps():
                yield empty(10)

            async def serve():
                return empty(10)

            for scope in (pyalloc.tag("request-9"), pyalloc.pool("kv")):
                for function in (steps, serve):
                    raises(pyalloc.InvalidArgumentError, "inside of it", lambda: scope(function))
            """
        )
    )
