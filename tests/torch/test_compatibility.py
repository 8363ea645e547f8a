"""allocator_cpp/torch_bridge/COMPATIBILITY.md: what torch's functions do under pyalloc, found by calling them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from compatibility import table
from compatibility.program import PROGRAMS, Program
from support import need

NAMES = {name for program in PROGRAMS for name in program.names}


def test_every_public_function_has_a_program() -> None:
    need(find_spec("torch"), "torch is not installed")
    import torch

    public = {f"cuda.{name}" for name in torch.cuda.memory.__all__}
    public |= {f"accelerator.{name}" for name in torch.accelerator.memory.__all__}
    assert public - NAMES == set()


def test_every_virtual_has_a_program() -> None:
    need(find_spec("torch"), "torch is not installed")
    import torch

    from pyalloc import doctor

    virtuals = {f"virtual.{name}" for name in doctor.torch_virtuals(Path(torch.__file__).parent / "include")}
    assert virtuals - NAMES == set()


@pytest.mark.slow
def test_the_table_is_as_torch_answers() -> None:
    need(find_spec("torch"), "torch is not installed")
    import torch

    found = table.verdicts(table.collect())
    assert table.problems(found) == []
    written = table.PAGE.read_text()
    if f"for torch {torch.__version__}:" in written:
        assert table.page(found, torch.__version__) == written, f"{table.PAGE}: tools/docs.py compat writes it"


def verdict(wanted: dict[str, object], found: dict[str, object], **notes: str) -> tuple[str, str]:
    clean: dict[str, object] = {"warnings": []}
    one = table.judge(Program(("cuda.x",), lambda: None, notes), "bridge", clean | wanted, clean | found)
    return one.kind, one.text


def test_how_answers_are_judged() -> None:
    assert verdict({"answer": [1, 2]}, {"answer": [1, 2]}) == ("works", "works")
    assert verdict({"answer": [1, 2]}, {"answer": [1, 3]})[0] == "wrong"
    assert verdict({"answer": [1, 2]}, {"answer": [1]})[0] == "wrong"
    assert verdict({"answer": 1}, {"answer": 2}, bridge="two") == ("note", "two")
    assert verdict({"answer": 1}, {"answer": 1}, bridge="two")[0] == "wrong"  # a note that is no longer true
    assert verdict({"answer": 1}, {"answer": 1, "warnings": ["ignored"]}) == ("wrong", "a warning: ignored")
    assert verdict({"answer": 1}, {"error": "no 0x7f | here"}) == ("refused", "refused: no 0x... \\| here")
    assert verdict({"error": "no"}, {"error": "neither"}) == ("works", "refused, as by torch's own")
    assert verdict({"error": "no"}, {"answer": 1}) == ("works", "works, where torch's own refuses")
    assert verdict({"answer": 1}, {"crash": "signal 6"}) == ("crash", "signal 6")
    wanted: dict[str, object] = {"answer": [{"at_least": ["a", "b"]}]}
    assert verdict(wanted, {"answer": [{"at_least": ["a", "b", "c"]}]})[0] == "works"
    assert verdict(wanted, {"answer": [{"at_least": ["a", "c"]}]})[0] == "wrong"


def test_what_the_table_must_not_say() -> None:
    rows = {"cuda.x": {"bridge": table.Verdict("refused", "no"), "plain": table.Verdict("refused", "no")}}
    assert table.problems(rows) == ["cuda.x under bridge: refused: no"]
    rows = {"cuda.x": {"bridge": table.Verdict("works", ""), "pools": table.Verdict("crash", "signal 6")}}
    assert table.problems(rows) == ["cuda.x under pools: crash: signal 6"]
