"""README.md: the table of options is the library's, the links lead somewhere, and the tool that writes it works."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType
from xml.etree import ElementTree

import pytest
from support import ROOT


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_options_are_as_they_are(docs: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    assert docs.with_options(text) == text, "README.md is out of date; tools/docs.py options writes it"


def test_sizes_are_readable(docs: ModuleType) -> None:
    size = {"key": "reserve", "type": "size", "unit": "bytes", "expected": "a size", "help": "what it is"}
    choice = {"key": "mode", "type": "choice", "unit": "", "expected": "a|b", "help": "which", "default": "a"}
    table = docs.options_table([size | {"default": str(64 << 20)}, size | {"default": "0"}, choice])
    assert "| `reserve` | `64MiB` | a size | what it is |" in table
    assert "| `reserve` | `0` | a size | what it is |" in table
    assert "| `mode` | `a` | a\\|b | which |" in table


def test_a_block_is_replaced_and_the_rest_stays(docs: ModuleType) -> None:
    text = "before\n<!-- demo: written by tools/docs.py -->\nold\n<!-- demo: end -->\nafter\n"
    assert docs.replace_block(text, "demo", "new\n") == text.replace("old\n", "new\n")
    with pytest.raises(ValueError, match="has no marks <!-- options:"):
        docs.replace_block(text, "options", "new\n")


def test_figures_and_chart(docs: ModuleType) -> None:
    def run(reserved: int) -> dict[str, object]:
        timeline = [[5, 1 << 30, reserved // 2], [10, 2 << 30, reserved]]
        figures = {"requests": 8, "tokens": 1234, "steps": 10, "driver_calls": 4321, "ns_per_op": 2500.0}
        return {**figures, "live_peak_bytes": 2 << 30, "reserved_peak_bytes": reserved, "timeline": timeline}

    report = {"simulated": True, "pyalloc": run(3 << 30), "native": run(4 << 30)}
    table = docs.figures_table(report)
    assert "| 8 requests, 1,234 tokens, 10 steps on a simulated GPU | pyalloc | native |" in table
    assert "| reserved / live | 1.500 | 2.000 |" in table
    assert "| driver calls | 4,321 | 4,321 |" in table
    assert "| time per allocation | 2.50 us | 2.50 us |" in table
    svg = ElementTree.fromstring(docs.chart(report))
    lines = [element for element in svg.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 2
    heights = [float(line.attrib["points"].split()[-1].split(",")[1]) for line in lines]
    assert heights[0] < heights[1]  # native reserved more, so its line ends higher


def test_links_lead_to_files() -> None:
    for document in ("README.md", "allocator_cpp/README.md", "examples/data/README.md"):
        path = ROOT / document
        for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if "://" not in link:
                assert (path.parent / link).exists(), f"{document}: {link}"
