"""A state machine that drives the core as many programs might, and shrinks what breaks it.

Arguments: simgpu's configuration, pyalloc's configuration, the number of examples.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from core_abi import GRANULE, MIB, OWNED, UNKNOWN_POINTER, Core
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

SIMULATION, CONFIGURATION = sys.argv[1:3]
CAPACITY = 96 * MIB
# Around every border the heap knows, and anything between.
SIZES = st.one_of(
    st.integers(1, 17 << 10),
    st.integers(1, 3 * MIB),
    st.integers(1, 40 * MIB),
    st.sampled_from([512, 513, 8192, 8193, 16384, 16385, MIB, MIB + 1, GRANULE, GRANULE + 512, 4 * GRANULE]),
)


@dataclass
class Block:
    pointer: int
    requested: int
    allocated: int
    stream: int
    mark: int


class Heap(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = Core(f"memory:96MiB,oracle:on,{SIMULATION}", f"maintenance:off,{CONFIGURATION}")
        self.streams = [0, self.core.stream(), self.core.stream(), self.core.stream()]
        self.blocks: list[Block] = []
        self.gone: list[int] = []

    @rule(size=SIZES, stream=st.integers(0, 3), mark=st.integers(1, 255))
    def allocate(self, size: int, stream: int, mark: int) -> None:
        pointer = self.core.allocate(size, self.streams[stream])
        granules = -(-size // GRANULE) + 1
        if pointer is None:
            # Refused only when all blocks together do not fit, each with one granule more at its edge.
            touched = sum(-(-block.allocated // GRANULE) + 1 for block in self.blocks)
            assert (touched + granules) * GRANULE > CAPACITY, f"{size} bytes refused: {self.core.error()}"
            return
        assert pointer % 512 == 0
        for block in self.blocks:
            assert pointer + size <= block.pointer or block.pointer + block.allocated <= pointer, "blocks overlap"
        self.core.fill(pointer, size, mark, self.streams[stream])
        allocated = self.core.allocated(pointer)
        assert size <= allocated <= size + max(1024, size // 8)
        self.blocks.append(Block(pointer, size, allocated, self.streams[stream], mark))
        if pointer in self.gone:
            self.gone.remove(pointer)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), wait=st.booleans())
    def free(self, data: st.DataObject, wait: bool) -> None:
        block = self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1)))
        if wait:
            assert self.core.gpu.cuCtxSynchronize() == 0
            for at in (0, block.requested // 2, block.requested - 1):
                assert self.core.byte(block.pointer + at) == block.mark, "a block's bytes changed"
        freed = self.core.free(block.pointer)
        assert (freed.requested, freed.allocated) == (block.requested, block.allocated)
        assert (freed.stream or 0) == block.stream
        self.gone.append(block.pointer)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), stream=st.integers(0, 3))
    def use_on_another_stream(self, data: st.DataObject, stream: int) -> None:
        block = data.draw(st.sampled_from(self.blocks))
        self.core.ok(self.core.dll.pyalloc_record_stream(block.pointer, self.streams[stream], OWNED))

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def free_twice(self, data: st.DataObject) -> None:
        assert self.core.dll.pyalloc_deallocate(data.draw(st.sampled_from(self.gone)), None) == UNKNOWN_POINTER

    @rule()
    def trim(self) -> None:
        self.core.ok(self.core.dll.pyalloc_trim(-1, None))
        stats = self.core.stats()
        assert stats["idle_bytes"] == stats["shelf_bytes"] == stats["pending_frees"] == 0

    @rule()
    def maintain(self) -> None:
        self.core.ok(self.core.dll.pyalloc_maintain(-1))

    @rule(steps=st.integers(1, 20))
    def the_gpu_goes_on(self, steps: int) -> None:
        self.core.gpu.simgpu_step(steps)

    @invariant()
    def sound(self) -> None:
        self.core.valid()
        stats = self.core.stats()
        assert stats["allocation"]["all"][0] == len(self.blocks)
        assert stats["allocated_bytes"]["all"][0] == sum(block.allocated for block in self.blocks)
        assert stats["requested_bytes"]["all"][0] == sum(block.requested for block in self.blocks)
        large = sum(1 for block in self.blocks if block.allocated > MIB)
        assert stats["active"]["large"][0] >= large == stats["allocation"]["large"][0]
        assert stats["reserved_bytes"]["all"][0] + stats["shelf_bytes"] == self.core.gpu.simgpu_used(0)
        assert self.core.violations() == []

    def teardown(self) -> None:
        for block in self.blocks:
            self.core.free(block.pointer)
        self.core.close()


if __name__ == "__main__":
    run_state_machine_as_test(
        Heap,
        settings=settings(
            max_examples=int(sys.argv[3]),
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
