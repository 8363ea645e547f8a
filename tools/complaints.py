"""What users of CUDA allocators reported, each with the tests that show it cannot happen here.

A test is marked @pytest.mark.complaint(NUMBER, ...), a native one by a comment that begins with "Complaint NUMBER",
right before its TEST. `tools/docs.py complaints` writes tests/COMPLAINTS.md, and a test fails when it is out of date or
a complaint has no test.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "COMPLAINTS.md"

# Number: where it was reported, and the symptom.
COMPLAINTS: dict[int, tuple[str, str]] = {
    1: ("pytorch#133281", "peak memory cannot be read under a pluggable allocator"),
    2: ("pytorch#98481, pytorch#106200, rmm#1362", "cudnn.benchmark raises: cacheInfo is not supported"),
    3: ("pytorch#133280", "running out of memory does not raise torch.OutOfMemoryError"),
    4: ("pytorch#163257", "torch.compile with graphs fails: checkPoolLiveAllocations is not supported"),
    5: ("pytorch#140687, iris#175", "the allocator cannot be replaced, CUDA is in use already, and nothing says how"),
    6: ("rmm#1407", "frees on another device use the wrong stream"),
    7: ("pytorch#115336", "no caching and no stack frames under a pluggable allocator"),
    8: ("pytorch#147851", "expandable segments, a pluggable allocator and MemPool do not combine"),
    10: ("pytorch#146431, pytorch#167745", "a pool that goes before its tensors: freed by the wrong function"),
    11: ("pytorch#159674", "60 GiB freed in a pool, and 70 GiB do not fit on 80 GiB"),
    13: ("pytorch#152861", "what other threads allocate enters the pool"),
    15: ("pytorch#178240", "reserved bytes of private pools take a snapshot"),
    17: ("pytorch#35901", "a large block is cut up by small tensors, and the next step fails"),
    19: ("pytorch#29554", "the out-of-memory message says nothing of fragmentation"),
    20: ("vllm#37428", "384 MiB fail with 402 MiB reserved and unallocated"),
    22: ("compressed-tensors#587", "2 GiB fail with as much reserved and unallocated after loading weights"),
    23: ("pytorch#189504, pytorch#191302", "out of memory although a free on another stream is about to finish"),
    26: ("pytorch#147168, torchtitan#735", "record_stream delays frees, and the peak grows"),
    27: ("pytorch#159594", "memory goes back to the driver while a graph is captured"),
    29: ("pytorch#119452", "an assertion fails on releasing an expandable segment near out of memory"),
    31: ("pytorch#188008", "memory is mapped but access fails, and every later allocation asserts"),
    33: ("pytorch#165685, pytorch#179220", "sharing between processes fails by the kind of handle"),
    34: ("pytorch#186213", "each import reserves far more addresses than it needs"),
    35: ("pytorch#198305, pytorch#161885", "handle bytes change, and the receiver's cache misses"),
    37: ("vllm#43020", "memory is unmapped under a running kernel"),
    38: ("vllm#45615, vllm#45552, vllm#28714", "sleep while kernels run: an illegal access"),
    40: ("vllm#34600, vllm#34602, vllm#12981", "a wake that fails half way leaks or crashes"),
    42: ("vllm#35489", "a failed query of a capability breaks every mapping after it"),
    43: ("vllm#45611", "custom all-reduce cannot share mapped memory"),
    44: ("vllm#45554", "registrations are stale after memory is mapped again"),
    45: ("torch_memory_saver#36, #24, #61", "pause and resume fail with IPC, expandable segments, graphs"),
    46: ("sglang#32718", "a graph's memory is lost over a pause"),
    49: ("vllm#29049", "out of memory when an adapter is loaded beside a model that fills the device"),
    50: ("vllm#15039", "the first long request with an adapter is out of memory: the KV cache took all"),
    53: ("pytorch#183842, torchtitan#3375", "the viewer rejects a snapshot of pickle protocol 5"),
    54: ("pytorch#115234", "integers beyond 2^53 break the viewer"),
    57: ("nccl#2332, Mooncake#2511", "registering mapped memory with a network library fails"),
}

_NATIVE = re.compile(r"^// Complaint (\d+)\b.*\n(?://.*\n)*TEST\((\w+)\)", re.MULTILINE)


def marked_tests(folder: Path = ROOT / "tests") -> Iterator[tuple[int, str]]:
    """Every (number, "file::test") that a marker names."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.complaint":
                    for number in mark.args:
                        yield int(ast.literal_eval(number)), f"{path.relative_to(folder)}::{node.name}"
    for path in sorted(folder.rglob("*_test.cpp")):
        for number, name in _NATIVE.findall(path.read_text(encoding="utf-8")):
            yield int(number), f"{path.relative_to(folder)}::{name}"


@functools.cache
def by_complaint() -> dict[int, list[str]]:
    """The tests of each complaint, also of those that have none."""
    tests: dict[int, list[str]] = {number: [] for number in COMPLAINTS}
    for number, test in marked_tests():
        tests.setdefault(number, []).append(test)
    return tests


def page() -> str:
    """The whole of COMPLAINTS.md."""
    lines = [
        "# Complaints, and the tests that answer them",
        "",
        "What users of CUDA allocators reported in public, and the tests that show it cannot happen here. Written by",
        "`tools/docs.py complaints` from the marks in the tests (`@pytest.mark.complaint(NUMBER)`).",
        "",
        "| | reported in | symptom | tests |",
        "| ---: | --- | --- | --- |",
    ]
    for number, tests in sorted(by_complaint().items()):
        source, symptom = COMPLAINTS.get(number, ("", ""))
        shown = "<br>".join(f"`{test}`" for test in tests)
        lines.append(f"| {number} | {source} | {symptom} | {shown} |")
    return "\n".join(lines) + "\n"
