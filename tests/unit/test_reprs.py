"""What the interpreter shows of public objects: one short line with sizes in units; the whole with print()."""

from __future__ import annotations

import pyalloc
from pyalloc import Difference, Ledger, PoolStats, SampledBlock
from pyalloc.snapshots.comparison import Change, Kind
from pyalloc.snapshots.model import Block, Blocks, DeviceSnapshot, Events, Frame, Segment, Snapshot

MIB = 1 << 20
GIB = 1 << 30
SIZES = dict.fromkeys(PoolStats.__dataclass_fields__, 0)
KNOWN = {"blocks": 1, "requested": 100 * MIB, "used": 100 * MIB, "reserved": 104 * MIB, "limit": GIB}
POOL = PoolStats(**{**SIZES, **KNOWN, "name": "kv"})  # type: ignore[arg-type]


def a_ledger() -> Ledger:
    sizes = dict.fromkeys(Ledger.__dataclass_fields__, 0)
    sizes |= {"total": 8 * GIB, "reserved": 104 * MIB, "requested": 100 * MIB, "free": 7 * GIB, "outside": 512}
    return Ledger(**{**sizes, "pools": (POOL,), "outside_by": None, "outside_unknown": ""})  # type: ignore[arg-type]


FRAME = Frame("step", "serve.py", 12)
SEGMENT = Segment(0x7F0000000000, 104 * MIB, "kv", 0, 0, True, 0, 100 * MIB, 100 * MIB, 100 * MIB, 0, 1)
BLOCKS = Blocks((0x10, 0x20), (512, 512), (500, 0), (0, 2), (0, 0), (-1, -1), (-1, -1))
DEVICE = DeviceSnapshot(a_ledger(), (SEGMENT,), BLOCKS, True, Events((1,) * 9, (1,) * 9))
SNAPSHOT = Snapshot(
    0, 42, "serve.py", {}, "bridge", {"limit": "0"} | {f"o{i}": "" for i in range(90)}, (DEVICE,), (), {}
)
CHANGE = Change(Kind(pool="kv"), 3 * MIB, 2, 0, 0, 0, 0)
DIFFERENCE = Difference(1500, True, CHANGE, (CHANGE,), (CHANGE,), (), (), (), {})

SHOWN = {
    "<PoolStats of 'kv': 100.00 MiB live in 1 block, 100.00 MiB used, 104.00 MiB reserved, limit 1.00 GiB>": POOL,
    "<Ledger of device 0: 100.00 MiB live, 104.00 MiB reserved, 512 B outside pyalloc, 7.00 GiB free of 8.00 GiB; "
    "print() shows all>": DEVICE.ledger,
    "<Snapshot of serve.py (process 42): device 0 has 100.00 MiB live in 1 block, 104.00 MiB reserved>": SNAPSHOT,
    "<DeviceSnapshot: device 0 has 100.00 MiB live in 1 block, 104.00 MiB reserved>": DEVICE,
    "<Segment of 'kv' at 0x7f0000000000: 104.00 MiB, 100.00 MiB live, 1 block>": SEGMENT,
    "<Blocks: 2, 1 of them live>": BLOCKS,
    "<Block at 0x10: 500 B live>": BLOCKS[0],
    "<Block at 0x20: 512 B free>": BLOCKS[1],
    "<Block at 0x10: 500 B live, tag 'a', serve.py:12 in step>": Block(16, 512, 500, "live", 0, "a", (FRAME,)),
    "<Events: 9>": DEVICE.events,
    "<Bill of 'a': 3.91 KiB in 1 block, peak 3.91 KiB, 2 allocations, 0 open scopes>": pyalloc.Bill(
        "a", 4000, 4000, 1, 1, 2, 0
    ),
    "<Change +3.00 MiB, +2 blocks: kv>": CHANGE,
    "<Difference over 1.5 s: +3.00 MiB live, +2 blocks, 1 change; print() shows all>": DIFFERENCE,
    "<Leak (adapters): pool lora grew by 1.00 MiB in 2 blocks in 10 windows and gave nothing back: adapters are loaded "
    "and none is unloaded>": pyalloc.Leak(0, "lora", 10, MIB, 2, 0, "adapters", ()),
    "<SampledBlock of 'kv': 1.00 MiB, stands for 2.00 MiB, at serve.py:12 in step>": SampledBlock(
        0, 16, "kv", 0, MIB, 2 * MIB, [{"filename": "serve.py", "line": 12, "name": "step"}]
    ),
    "<SampledBlock of 'kv': 1.00 MiB, stands for 2.00 MiB, at a thread without Python>": SampledBlock(
        0, 16, "kv", 0, MIB, 2 * MIB, []
    ),
    "pyalloc.pool('kv')": pyalloc.pool("kv"),
    "pyalloc.tag('a')": pyalloc.tag("a"),
}


def test_a_repr_is_one_short_line() -> None:
    assert {repr(one): one for one in SHOWN.values()} == SHOWN


def test_a_difference_prints_as_the_command_does() -> None:
    assert str(DIFFERENCE).splitlines()[0] == "live memory grew by 3.00 MiB, +2 blocks, from 0 B in 0"
