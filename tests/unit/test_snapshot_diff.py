"""diff(): what grew, by every name it has, and what the command says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from snapshot_samples import MIB, OTHER, STEP, hole, live, snapshot_of

import pyalloc
from pyalloc.__main__ import main

WEIGHTS = [live(4 * MIB, site=OTHER), live(2 * MIB, site=OTHER)]
BEFORE = snapshot_of({"weights": WEIGHTS, "kv": [live(MIB, "request-0", STEP), hole(9 * MIB)]})
LEAKY = snapshot_of(
    {
        "weights": WEIGHTS,
        "kv": [*(live(MIB, f"request-{number}", STEP) for number in range(9)), hole(MIB)],
    },
    unix_ms=BEFORE.unix_ms + 12_300,
)


def test_a_leak_is_named_by_pool_size_tag_and_site() -> None:
    found = pyalloc.diff(BEFORE, LEAKY)
    (grown,) = found.grew()
    assert (grown.bytes, grown.blocks, grown.before_bytes, grown.before_blocks) == (8 * MIB, 8, MIB, 1)
    assert (grown.size, grown.tags) == (MIB, 8)
    kind = grown.kind
    assert (kind.device, kind.pool, kind.size_class, kind.tag) == (0, "kv", MIB, "request-*")
    assert kind.site == "/app/serve.py:7 in handle"
    assert str(grown) == "kv, 512.00 KiB to 1.00 MiB, tag request-* (8 tags), /app/serve.py:7 in handle"
    for group in (found.pools, found.sizes, found.tags, found.sites):
        assert [(one.bytes, one.blocks) for one in group] == [(8 * MIB, 8)]
    assert found.live.bytes == 8 * MIB
    assert found.milliseconds == 12_300
    assert found.same_process


def test_what_stays_is_not_named_and_what_shrinks_is_below_0() -> None:
    assert pyalloc.diff(BEFORE, BEFORE).changes == ()
    back = pyalloc.diff(LEAKY, BEFORE)
    assert back.grew() == ()
    assert [one.bytes for one in back.changes] == [-8 * MIB]


def test_tags_that_differ_in_more_than_numbers_stay_apart() -> None:
    after = snapshot_of({"kv": [live(MIB, "a-1"), live(MIB, "b-1"), live(2 * MIB, "b-2"), live(4 * MIB)]})
    found = pyalloc.diff(snapshot_of({"kv": [hole(8 * MIB)]}), after)
    assert [(one.kind.tag, one.bytes, one.tags) for one in found.tags] == [("b-*", 3 * MIB, 2), ("a-1", MIB, 1)]


def test_more_blocks_of_the_same_bytes_are_a_change() -> None:
    before = snapshot_of({"kv": [(2 * MIB, 0, "live", None, ()), hole(2 * MIB)]})
    after = snapshot_of({"kv": [(2 * MIB, 0, "live", None, ()), (2 * MIB, 0, "live", None, ())]})
    found = pyalloc.diff(before, after)
    assert [(one.bytes, one.blocks) for one in found.changes] == [(0, 1)]


def test_devices_are_told_apart() -> None:
    found = pyalloc.diff(BEFORE, snapshot_of({"kv": [live(MIB)]}, device=1))
    assert [(str(one), one.bytes) for one in found.pools] == [
        ("kv of device 1", MIB),
        ("kv", -MIB),
        ("weights", -6 * MIB),
    ]


def test_paths_are_refused_with_the_way_to_read_them() -> None:
    with pytest.raises(TypeError, match=r"'before.json'; expected a Snapshot, .* load_snapshot\(path\)"):
        pyalloc.diff("before.json", "after.json")  # type: ignore[arg-type]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    BEFORE.save(before)
    LEAKY.save(after)
    assert main(["diff", str(before), str(after)]) == 1
    text = capsys.readouterr().out
    assert "process 4242 (serve.py), 12.3 s apart" in text
    assert "live memory grew by 8.00 MiB, +8 blocks, from 7.00 MiB in 3" in text
    assert "tag request-* (8 tags), /app/serve.py:7 in handle, mostly of 1.00 MiB" in text
    assert main(["diff", str(before), str(after), "--at-least", "9MiB"]) == 0
    assert main(["diff", str(after), str(before)]) == 0
    assert main(["diff", str(before), str(before)]) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert main(["diff", str(before), str(after), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "pyalloc.diff/1"
    assert data["changes"][0]["kind"]["tag"] == "request-*"


def test_what_is_kept_for_reuse_is_called_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    snapshot_of({"general": [live(MIB)]}).save(before)
    snapshot_of({"general": [live(MIB), hole(7 * MIB)]}).save(after)
    assert main(["diff", str(before), str(after)]) == 0
    assert "general has +7.00 MiB mapped and no more live: kept for reuse, not a leak" in capsys.readouterr().out


def test_no_tag_can_speak_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    snapshot_of({"kv": [hole(2 * MIB)]}).save(before)
    snapshot_of({"kv": [live(MIB, "a\x1b[31m\nb"), live(MIB, "half \ud800 a pair")]}).save(after)
    assert main(["diff", str(before), str(after)]) == 1
    text = capsys.readouterr().out
    assert "tag a\\x1b[31m\\nb" in text
    assert "half \\ud800 a pair" in text
