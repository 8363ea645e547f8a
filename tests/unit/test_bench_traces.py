"""The benchmarks' traces: both formats are read, what is wrong in one is named with its line, ours is written."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from benchlib.errors import BenchError
from benchlib.traces import ALLOC, FREE, RECORD, ROW, WAIT, read_trace
from benchlib.workloads import WORKLOADS, build, generate

from pyalloc.trace_file import HEADER, TraceWriter, open_for_writing

OURS = f"""\
{HEADER}
0,alloc,0,1000,0,default,6,weights
1,alloc,1,3000,7,graph0,12,kv
2,record,0,1000,7,default,18,
3,wait,0,0,7,default,24,
4,free,1,3000,7,graph0,20,
5,free,9,64,0,default,30,
6,alloc,2,0,0,default,36,
"""
RMM = """\
Thread,Time,Action,Pointer,Size,Stream
17,23:59:59.000000,allocate,0x7f00,1024,0x0
17,23:59:59:000500,allocate,0x7f80,2048,0x5581
17,23:59:59.001000,allocate failure,0x0,9999,0x0
17,00:00:00.000000,free,0x7f00,1024,0x0
17,00:00:00.000100,allocate,0x7f00,16,0x0
17,00:00:00.000200,free,0x1234,16,0x0
"""


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_our_format(tmp_path: Path) -> None:
    path = tmp_path / "small.csv.gz"
    path.write_bytes(gzip.compress(OURS.encode()))
    trace = read_trace(path)
    assert trace.name == "small"
    assert (trace.count, trace.blocks, trace.streams) == (6, 3, 2)
    assert trace.pools == ["default", "graph0"]
    assert trace.live_peak == 4000
    assert trace.ignored == 1  # the free of a block that was never allocated
    assert list(trace.unpacked()) == [
        (6.0, 1000, 0, 0, ALLOC, 0),
        (12.0, 3000, 1, 1, ALLOC, 1),
        (18.0, 0, 0, 1, RECORD, 0),
        (24.0, 0, 0, 1, WAIT, 0),
        (24.0, 0, 1, 0, FREE, 0),  # time never falls
        (36.0, 0, 2, 0, ALLOC, 0),
    ]
    assert trace.bytes_column().tolist() == [1000, 3000, 0, 0, 0, 0]


def test_a_row_is_as_long_as_the_native_struct() -> None:
    assert ROW.size == 24


def test_rmm_log(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, RMM, "rmm.txt"))
    rows = list(trace.unpacked())
    assert [row[4] for row in rows] == [ALLOC, ALLOC, FREE, ALLOC]
    assert [row[0] for row in rows] == [0.0, 500.0, 1e6, 1e6 + 100]  # past midnight
    assert [row[3] for row in rows] == [0, 1, 0, 0]
    assert rows[2][2] == 0, "the free is of the first block"
    assert rows[3][2] == 2, "an address used again is another block"
    assert trace.ignored == 2
    assert trace.live_peak == 3072


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,c\n", "line 1: 'a,b,c' is no known header"),
        ("seq,op,id,bytes,stream\n", "no column pool, time_us"),
        (HEADER + "\n", "holds no operation"),
        (f"{HEADER}\n0,move,0,1,0,default,1,\n", "line 2: unknown op 'move'; expected alloc, free, record, wait"),
        (f"{HEADER}\n0,alloc,0,many,0,default,1,\n", "line 2: '0,alloc,0,many"),
        (f"{HEADER}\n0,alloc,0\n", "line 2"),
        (f"{HEADER}\n0,alloc,0,-1,0,default,1,\n", "line 2: -1 bytes"),
        (f"{HEADER}\n0,alloc,0,1,0,default,1,\n1,alloc,0,1,0,default,1,\n", "line 3: block '0' is allocated twice"),
        ("Thread,Time,Action,Pointer,Size,Stream\n1,noon,allocate,0x1,1,0\n", "line 2: '1,noon"),
        ("Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,resize,0x1,1,0\n", "unknown action 'resize'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BenchError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"none\.csv cannot be read"):
        read_trace(tmp_path / "none.csv")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(OURS.encode())[:-20])
    with pytest.raises(BenchError, match=r"damaged\.csv\.gz cannot be read"):
        read_trace(damaged)


def test_too_many_streams_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{i},alloc,{i},512,{i},default,{i},\n" for i in range(40))
    with pytest.raises(BenchError, match="at most 33"):
        read_trace(write(tmp_path, f"{HEADER}\n{rows}"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_written_and_read_is_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.csv.gz"
    with open_for_writing(path) as file:
        split = generate(name, 2, TraceWriter(file))
    built, built_split = build(name, 2)
    read = read_trace(path)
    assert split == built_split
    assert 0 < split < read.count
    assert (read.rows, read.live_peak, read.streams) == (built.rows, built.live_peak, built.streams)


@pytest.mark.parametrize("name", WORKLOADS)
def test_steps_leave_nothing_behind(name: str) -> None:
    few, split = build(name, 6)
    live: dict[int, int] = {}
    at_split: set[int] = set()
    for index, (_, size, block, _, op, _) in enumerate(few.unpacked()):
        if index == split:
            at_split = set(live)
        if op == ALLOC:
            live[block] = size
        elif op == FREE:
            del live[block]
    assert set(live) == at_split


def test_writing_is_reproducible(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        path = tmp_path / "decode.csv.gz"
        with open_for_writing(path) as file:
            generate("decode", 1, TraceWriter(file))
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(BenchError, match="workload 'dance' is unknown; expected prefill"):
        build("dance", 1)
