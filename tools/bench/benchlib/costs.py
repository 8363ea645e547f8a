"""The cost table: what a driver call is assumed to take, until a GPU has given its own figures.

The modelled driver time of a replay is the sum of these over its calls. Assumptions, printed with every result, never
tuned to one. The simulated driver does the sum (simgpu_set_cost), per call, per mapping touched and per MiB.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Cost:
    """Microseconds of one entry point."""

    name: str  # in the and the README's words
    entry_point: str
    per_call: float
    per_mapping: float = 0.0
    per_mib: float = 0.0

    def of(self, calls: float = 1, mappings: float = 0, mib: float = 0) -> float:
        return self.per_call * calls + self.per_mapping * mappings + self.per_mib * mib

    def text(self) -> str:
        parts = [f"{self.per_call:g} us"]
        if self.per_mapping:
            parts.append(f"{self.per_mapping:g} per mapping")
        if self.per_mib:
            parts.append(f"{self.per_mib:g} per MiB")
        return f"{self.name} {' + '.join(parts)}"


COSTS = (
    Cost("reserve", "cuMemAddressReserve", 10),
    Cost("create", "cuMemCreate", 100, per_mib=3),
    Cost("map", "cuMemMap", 1.5),
    Cost("set-access", "cuMemSetAccess", 20, per_mapping=0.5),
    Cost("unmap", "cuMemUnmap", 12, per_mapping=1),
    Cost("release", "cuMemRelease", 20),
    Cost("cudaMalloc", "cuMemAlloc", 100, per_mib=3),
    Cost("cudaFree", "cuMemFree", 200),
    Cost("device synchronise", "cuCtxSynchronize", 1000),
)

# What "driver calls" means in every result: calls that get, map or return memory. Events and waits are counted apart.
MEMORY_CALLS = (
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAlloc",
    "cuMemFree",
)


def table() -> list[dict[str, object]]:
    """The table as JSON shows it."""
    return [asdict(cost) for cost in COSTS]


def one_line() -> str:
    return "assumed costs: " + "; ".join(cost.text() for cost in COSTS)
