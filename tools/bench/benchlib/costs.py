"""The cost table: what a driver call takes on an H200 (driver 580), by tools/bench/results/h200_vmm_probe.json.

The modelled driver time of a replay is the sum of these over its calls; the table is printed with every result. What a
wait for the whole device takes depends on the work it waits for: a millisecond is assumed. The simulated driver does
the sum (simgpu_set_cost), per call, per mapping touched and per MiB.
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
        shown: list[str] = []
        for us, per in (self.per_call, ""), (self.per_mapping, " per mapping"), (self.per_mib, " per MiB"):
            if us:
                shown.append(f"{us:g}{'' if shown else ' us'}{per}")
        return f"{self.name} {' + '.join(shown)}"


COSTS = (
    Cost("reserve", "cuMemAddressReserve", 3),
    Cost("create", "cuMemCreate", 8.5, per_mib=0.023),
    Cost("map", "cuMemMap", 0.65),
    Cost("set-access", "cuMemSetAccess", 0, per_mapping=23, per_mib=0.04),
    Cost("unmap", "cuMemUnmap", 0, per_mapping=16, per_mib=0.02),
    Cost("release", "cuMemRelease", 9.5, per_mib=0.34),
    Cost("cudaMalloc", "cuMemAlloc", 50, per_mib=0.06),
    Cost("cudaFree", "cuMemFree", 40, per_mib=0.52),
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
    return f"costs on an H200: {listed()}"


def listed() -> str:
    return "; ".join(cost.text() for cost in COSTS)
