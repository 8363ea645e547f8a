"""Files of snapshots: written and read again, refused when they are something else, converted and drawn."""

from __future__ import annotations

import json
import pickle
import pickletools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from snapshot_samples import MIB, OTHER, STEP, hole, live, snapshot_of

import pyalloc
from pyalloc.__main__ import main
from pyalloc.snapshots.model import Frame, Snapshot, own_frame
from pyalloc.snapshots.page import html
from pyalloc.snapshots.reading import loads
from pyalloc.snapshots.torch_pickle import torch_pickle

SAMPLE = snapshot_of(
    {
        "kv": [
            live(MIB, "request-1", STEP),
            hole(MIB),
            (2 * MIB, MIB + 1, "live", None, ()),
            live(2 * MIB, "<b>", OTHER),
        ],
        "general": [(MIB, MIB, "pending", None, ()), hole(5 * MIB)],
    },
    events=[(1_700_000_000_000_000, MIB), (1_700_000_000_500_000, -MIB)],
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    SAMPLE.save(tmp_path / "one.json")
    again = pyalloc.load_snapshot(tmp_path / "one.json")
    assert again == SAMPLE
    assert json.loads((tmp_path / "one.json").read_text())["schema"] == "pyalloc.snapshot/1"


def test_blocks_are_read_one_at_a_time() -> None:
    (device,) = SAMPLE.devices
    assert len(device.blocks) == 6
    assert [block.state for block in device.blocks] == ["live", "free", "live", "live", "pending", "free"]
    first = device.blocks[0]
    assert (first.address, first.bytes, first.tag, first.site) == (1 << 40, MIB, "request-1", STEP)
    assert device.blocks[-1].tag is None
    assert device.blocks[-1].site == ()
    assert device.blocks_of(device.segments[1]) == device.blocks[4:6]
    with pytest.raises(IndexError):
        device.blocks[6]


def test_figures_of_a_later_version_are_left_out_and_missing_ones_are_0() -> None:
    data = SAMPLE.as_dict()
    data["devices"][0]["ledger"]["something_new"] = 5
    del data["devices"][0]["ledger"]["pools"][0]["largest_free"]
    again = loads(json.dumps(data))
    assert again == SAMPLE


Wrong = Callable[[dict[str, Any]], Any]

WRONG: dict[str, tuple[Wrong, str]] = {
    "another schema": (
        lambda d: d.update(schema="pyalloc.snapshot/2"),
        "this version of pyalloc reads 'pyalloc.snapshot/1'",
    ),
    "no schema": (lambda d: d.pop("schema"), "is not a snapshot of pyalloc"),
    "a schema that is no text": (lambda d: d.update(schema=["pyalloc.snapshot/1"]), "is not a snapshot of pyalloc"),
    "no devices": (lambda d: d.pop("devices"), "it has no 'devices' that is a list"),
    "a device that is none": (lambda d: d.update(devices=[7]), "a device has no 'ledger' that is an object"),
    "other states": (lambda d: d.update(states=["free"]), '"states"'),
    "a size of more than 64 bits": (
        lambda d: d["devices"][0]["blocks"]["requested"].__setitem__(0, 1 << 70),
        "the column 'requested'",
    ),
    "a figure of more than 64 bits": (lambda d: d["devices"][0]["ledger"].update(total=1 << 64), "'total' that is a"),
    "a refusal that is none": (lambda d: d["oom"]["last"].append(None), "a refusal has no 'unix_ms'"),
    "events cut short": (lambda d: d["devices"][0]["events"]["bytes"].pop(), "the columns of events differ in length"),
    "a count that is none": (lambda d: d["oom"]["counts"].update(capacity=float("nan")), "counts has no 'capacity'"),
    "a pid that is a truth": (lambda d: d.update(pid=True), "'pid' that is a whole number of 64 bits"),
    "text for a size": (lambda d: d["devices"][0]["ledger"].update(total="8"), "'total' that is a whole number"),
    "a column cut short": (lambda d: d["devices"][0]["blocks"]["tag"].pop(), "the columns of blocks differ in length"),
    "a column of text": (lambda d: d["devices"][0]["blocks"].update(bytes=["1"] * 6), "the column 'bytes'"),
    "a state that is none": (lambda d: d["devices"][0]["blocks"]["state"].__setitem__(0, 3), "a block's state"),
    "a tag that is none": (lambda d: d["devices"][0]["blocks"]["tag"].__setitem__(0, 9), "a block's tag"),
    "a tag below none": (lambda d: d["devices"][0]["blocks"]["tag"].__setitem__(0, -2), "a block's tag"),
    "a gap": (lambda d: d["devices"][0]["blocks"]["address"].__setitem__(1, 5), "do not lie end to end"),
    "a size below 0": (lambda d: d["devices"][0]["blocks"]["bytes"].__setitem__(1, -1), "not a positive number"),
    "a segment too long": (lambda d: d["devices"][0]["segments"]["bytes"].__setitem__(0, MIB), "do not fill it"),
    "more blocks than there are": (lambda d: d["devices"][0]["segments"]["blocks"].__setitem__(0, 9), "as many blocks"),
    "a frame without a line": (lambda d: d["sites"][0][0].pop("line") and d["sites"][0][0].update(line="x"), "'line'"),
    "a ledger without pools": (lambda d: d["devices"][0]["ledger"].pop("pools"), "'pools' that is a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_snapshot_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, says = WRONG[name]
    data = json.loads(SAMPLE.dumps())
    spoil(data)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(data))
    with pytest.raises(pyalloc.SnapshotError, match=re.escape(says)):
        pyalloc.load_snapshot(path)
    for arguments in (["snapshot", "--html", str(path)], ["snapshot", "--convert", str(path)]):
        assert main([*arguments, "-o", str(tmp_path / "out")]) == 1
    assert main(["diff", str(path), str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(("pyalloc snapshot: ", "pyalloc diff: ")) and str(path) in line for line in lines)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        SAMPLE.dumps().encode()[:-200],
        b"[" * 200_000,
        b"\xff\xfe\x00",
        b"7",
        b"null",
        b'{"a": NaN}',
        b"9" * 5000,
    ],
)
def test_what_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(pyalloc.SnapshotError, match=r"wrong.json is not a snapshot"):
        pyalloc.load_snapshot(path)


def test_what_cannot_be_read_or_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.json"
    SAMPLE.save(good)
    assert main(["snapshot", "--html", str(tmp_path / "none.json"), "-o", str(tmp_path / "x")]) == 1
    assert main(["snapshot", "--html", str(tmp_path), "-o", str(tmp_path / "x")]) == 1
    assert main(["snapshot", "--html", str(good), "-o", str(tmp_path)]) == 1
    assert main(["snapshot", "--html", str(good), "-o", str(tmp_path / "no" / "x")]) == 1
    assert main(["diff", str(good), str(tmp_path / "none.json")]) == 2
    assert main(["diff", str(good), str(good), "--at-least", "much"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert "No such file" in lines[0]
    assert "Is a directory" in lines[1]
    assert "much" in lines[5]


def test_the_pickle_is_what_torch_s_viewers_read() -> None:
    data = torch_pickle(SAMPLE)
    known = {"BINUNICODE", "SHORT_BINUNICODE"}
    names = {operation.name for operation, _, _ in pickletools.genops(data)}
    assert data[:2] == b"\x80\x04"
    assert not names & {"BINUNICODE8", "GLOBAL", "STACK_GLOBAL", "REDUCE", "EMPTY_SET", "BINBYTES", "NEWOBJ"}
    assert names & known
    taken = pickle.loads(data)
    assert taken["device_traces"] == [[]]
    for segment in taken["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["segment_pool_id"] == (0, 0)
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
    first = taken["segments"][0]["blocks"][0]
    assert first["state"] == "active_allocated"
    assert [frame["name"] for frame in first["frames"]] == ["tag request-1", "grow", "handle", "main"]
    assert taken["segments"][1]["blocks"][0]["state"] == "active_pending_free"


def test_a_block_s_place_in_the_program_is_not_torch_s() -> None:
    assert own_frame(STEP) == STEP[1]
    assert own_frame((Frame("<listcomp>", "/app/serve.py", 7), *STEP)) == STEP[1]
    assert own_frame(()) is None
    assert own_frame(STEP[:1]) == STEP[0]


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.data.append(data)


def page_of(*snapshots: Snapshot) -> tuple[str, Elements]:
    text = html(snapshots)
    elements = Elements()
    elements.feed(text)
    return text, elements


def test_the_page_needs_nothing_else_and_lets_no_text_become_markup() -> None:
    nasty = "</script><script>alert(1)</script><!--"
    text, elements = page_of(snapshot_of({"kv": [live(MIB, nasty), hole(MIB)]}))
    assert "alert(1)</script>" not in text
    assert [tag for tag, _ in elements.found].count("script") == 3
    for tag, attributes in elements.found:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert attributes.get("href", "data:") in ("data:,", "data:")
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "fetch(" not in text
    assert "[[" not in re.sub(r"\[\[[0-9\"{\]]", "", "".join(elements.data[-1:]))
    (data,) = [json.loads(one) for one in elements.data if one.startswith('{"schema"')]
    assert data["tags"] == [nasty]


def test_the_page_of_several_has_them_in_order_of_time() -> None:
    later = snapshot_of({"kv": [live(MIB)]}, unix_ms=SAMPLE.unix_ms + 5000)
    _, elements = page_of(later, SAMPLE)
    times = [json.loads(one)["unix_ms"] for one in elements.data if one.startswith('{"schema"')]
    assert times == [SAMPLE.unix_ms, later.unix_ms]
    (summary,) = [json.loads(one) for one in elements.data if one.startswith('[{"unix_ms"')]
    assert [one["unix_ms"] for one in summary] == times
    assert summary[1]["devices"][0]["pools"][0]["allocated"] == MIB


def test_convert_and_html_from_the_command_line(tmp_path: Path) -> None:
    SAMPLE.save(tmp_path / "a.json")
    assert main(["snapshot", "--convert", str(tmp_path / "a.json"), "-o", str(tmp_path / "a.pickle")]) == 0
    assert pickle.loads((tmp_path / "a.pickle").read_bytes())["segments"]
    assert main(["snapshot", "--html", str(tmp_path / "a.json"), "-o", str(tmp_path / "a.html")]) == 0
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
