"""Random virtual memory calls against a model: what must succeed succeeds, what must not changes nothing."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from simulated_driver import (
    GRANULE,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    load_driver,
    prop,
)

CAPACITY = 16  # granules
RESERVATIONS, LENGTH = 2, 8  # granules each


@dataclass
class Memory:
    size: int
    handle: int
    references: int = 1
    mappings: int = 0
    content: list[int] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.references > 0 or self.mappings > 0


@dataclass
class Mapped:
    memory: Memory
    size: int
    access: bool = False


places = st.tuples(st.integers(0, RESERVATIONS - 1), st.integers(0, LENGTH - 1))
sizes = st.integers(1, 4)
picks = st.integers(0, 1 << 16)


class Mappings(RuleBasedStateMachine):
    """Granule positions of two reservations; each position is in at most one mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.gpu = load_driver()
        self.gpu.reset(f"memory:{CAPACITY * GRANULE}")
        self.gpu.ok("cuInit", 0)
        self.gpu.use_device(0)
        self.bases = [self.gpu.reserve(LENGTH * GRANULE) for _ in range(RESERVATIONS)]
        self.memories: list[Memory] = []
        self.maps: dict[tuple[int, int], Mapped] = {}

    def used(self) -> int:
        return sum(memory.size for memory in self.memories if memory.alive)

    def address(self, place: tuple[int, int]) -> int:
        return self.bases[place[0]] + place[1] * GRANULE

    def overlapping(self, place: tuple[int, int], size: int) -> list[tuple[int, int]]:
        return [
            other
            for other, mapped in self.maps.items()
            if other[0] == place[0] and other[1] < place[1] + size and place[1] < other[1] + mapped.size
        ]

    def free(self, place: tuple[int, int], size: int) -> bool:
        return place[1] + size <= LENGTH and not self.overlapping(place, size)

    def whole(self, place: tuple[int, int], size: int) -> list[tuple[int, int]]:
        """The mappings that tile the range exactly; none when they do not."""
        found, at = [], place[1]
        while at < place[1] + size:
            mapped = self.maps.get((place[0], at))
            if mapped is None:
                return []
            found.append((place[0], at))
            at += mapped.size
        return found if at == place[1] + size else []

    @rule(size=sizes)
    def create(self, size: int) -> None:
        out = ctypes.c_uint64()
        code = self.gpu.call("cuMemCreate", ctypes.byref(out), size * GRANULE, ctypes.byref(prop()), 0)
        if self.used() + size > CAPACITY:
            assert code == OUT_OF_MEMORY
        else:
            assert code == SUCCESS
            self.memories.append(Memory(size, out.value, content=[0] * size))

    @rule(pick=picks)
    def release(self, pick: int) -> None:
        if not self.memories:
            return
        memory = self.memories[pick % len(self.memories)]
        code = self.gpu.call("cuMemRelease", memory.handle)
        assert code == (SUCCESS if memory.references > 0 else INVALID_VALUE)
        if memory.references > 0:
            memory.references -= 1

    @rule(place=places, size=sizes, pick=picks)
    def map(self, place: tuple[int, int], size: int, pick: int) -> None:
        if not self.memories:
            return
        memory = self.memories[pick % len(self.memories)]
        code = self.gpu.call("cuMemMap", self.address(place), size * GRANULE, 0, memory.handle, 0)
        if memory.references > 0 and size < memory.size:
            assert code == NOT_SUPPORTED  # a handle is mapped whole
        elif memory.references > 0 and size == memory.size and self.free(place, size):
            assert code == SUCCESS
            self.maps[place] = Mapped(memory, size)
            memory.mappings += 1
        else:
            assert code == INVALID_VALUE

    @rule(place=places, size=sizes)
    def unmap(self, place: tuple[int, int], size: int) -> None:
        found = self.whole(place, size)
        code = self.gpu.call("cuMemUnmap", self.address(place), size * GRANULE)
        assert code == (SUCCESS if found else INVALID_VALUE)
        for key in found:
            self.maps.pop(key).memory.mappings -= 1

    @rule(place=places, size=sizes)
    def give_access(self, place: tuple[int, int], size: int) -> None:
        found = self.whole(place, size)
        assert self.gpu.set_access(self.address(place), size * GRANULE) == (SUCCESS if found else INVALID_VALUE)
        for key in found:
            self.maps[key].access = True

    @rule(pick=picks)
    def retain(self, pick: int) -> None:
        if not self.maps:
            return
        place = list(self.maps)[pick % len(self.maps)]
        handle = self.gpu.out("cuMemRetainAllocationHandle", ctypes.c_void_p(self.address(place)))
        memory = self.maps[place].memory
        assert handle == memory.handle
        memory.references += 1

    @rule(pick=picks, value=st.integers(1, 255))
    def fill(self, pick: int, value: int) -> None:
        usable = [place for place, mapped in self.maps.items() if mapped.access]
        if not usable:
            return
        place = usable[pick % len(usable)]
        index = pick % self.maps[place].size
        self.gpu.ok("cuMemsetD8_v2", self.address(place) + index * GRANULE, value, 64)
        self.maps[place].memory.content[index] = value

    @invariant()
    def bytes_and_use_agree(self) -> None:
        assert self.gpu.control.used() == self.used() * GRANULE
        for place, mapped in self.maps.items():
            for index in range(mapped.size):
                found = self.gpu.control.read(self.address(place) + index * GRANULE, 64)
                assert found == bytes([mapped.memory.content[index]]) * 64

    def teardown(self) -> None:
        for place, mapped in self.maps.items():
            if not mapped.access:
                assert self.gpu.call("cuMemsetD8_v2", self.address(place), 1, 1) == ILLEGAL_ADDRESS
                break
        self.gpu.take_violations()


Mappings.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMappings = Mappings.TestCase
