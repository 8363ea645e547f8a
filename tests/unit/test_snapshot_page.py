"""The page of snapshots in a real browser, where there is one: no console error, and everything on it can be used."""

from __future__ import annotations

import html as markup
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from snapshot_samples import MIB, OTHER, STEP, hole, live, snapshot_of

from pyalloc.snapshots.model import Snapshot
from pyalloc.snapshots.page import html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium")

# Uses the page as a person does, and leaves what it saw in the document.
EXERCISE = """
<script>
"use strict";
const seen = { tips: [], legends: {}, problems: [] };
window.addEventListener("error", (event) => seen.problems.push(event.message));
function point(canvas, x, y) {
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
  seen.tips.push(element("tip").hidden ? "" : element("tip").textContent);
}
for (const colour of ["size", "tag", "site", "stream", "state"]) {
  element("colour").value = colour;
  element("colour").dispatchEvent(new Event("change"));
  seen.legends[colour] = element("map-legend").textContent;
}
for (let y = 34; y < 450; y += 9) for (const x of [3, 60, 300]) point(element("map"), x, y);
for (let times = 0; times < 3; ++times) element("in").click();
element("map-window").scrollTop = 300;
element("whole").click();
const table = () => [...document.querySelectorAll("#pools tbody tr")];
seen.pools = table().map((row) => [...row.children].map((cell) => cell.textContent));
table()[0].click();
seen.chosen = document.querySelectorAll("#pools tr.chosen").length;
seen.alone = element("groups-note").textContent;
table()[0].click();
if (!element("timeline-section").hidden) {
  point(element("timeline"), 76, 60);
  const box = element("timeline").getBoundingClientRect();
  element("timeline").dispatchEvent(new MouseEvent("click", { clientX: box.left + 80, clientY: box.top + 60 }));
}
seen.refused = element("refused-section").hidden ? "" : element("refused-section").textContent;
seen.shown = chosen.snapshot;
const began = performance.now();
render();
seen.milliseconds = performance.now() - began;
element("what").dataset.seen = JSON.stringify(seen);
</script>
"""


def seen_on(folder: Path, *snapshots: Snapshot) -> dict[str, Any]:
    """What EXERCISE saw on the page of these snapshots. Fails for anything on the browser's console."""
    assert BROWSER is not None
    page = folder / "page.html"
    page.write_text(html(snapshots).replace("</body>", EXERCISE + "</body>"))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", "--window-size=1400,1600", page.as_uri()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "HOME": str(folder)}
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    (data,) = re.findall(r'data-seen="([^"]*)"', done.stdout)
    seen: dict[str, Any] = json.loads(markup.unescape(data))
    assert seen["problems"] == []
    return seen


def test_everything_on_it_can_be_used(tmp_path: Path) -> None:
    first = snapshot_of(
        {"weights": [live(30 * MIB, site=OTHER)], "kv": [live(2 * MIB, "request-1", STEP), hole(8 * MIB)]}
    )
    pools = {
        "weights": [live(30 * MIB, site=OTHER)],
        "kv": [live(2 * MIB, "request-1", STEP), (4 * MIB, MIB, "pending", None, ()), live(4 * MIB, "<i>2", STEP)],
    }
    seen = seen_on(tmp_path, first, snapshot_of(pools, unix_ms=first.unix_ms + 9000))
    tips = "\n".join(seen["tips"])
    assert "live, 30.00 MiB (31,457,280 B) in weights" in tips
    assert "tag request-1" in tips
    assert "/app/serve.py:7 in handle" in tips
    assert "pending, 4.00 MiB" in tips
    assert "weights: 30.00 MiB live of 30.00 MiB" in seen["tips"][-1]
    assert "request-1 2.00 MiB" in seen["legends"]["tag"]
    assert "<i>2 4.00 MiB" in seen["legends"]["tag"]
    assert "/app/model.py:3 in load 30.00 MiB" in seen["legends"]["site"]
    assert [row[0] for row in seen["pools"]] == ["weights", "kv"]
    assert seen["chosen"] == 1
    assert seen["alone"] == "30.00 MiB asked for in weights"
    assert "1 by capacity" in seen["refused"]
    assert "9.00 MiB in kv of device 0, capacity" in seen["refused"]
    assert "Tried to allocate 9.00 MiB" in seen["refused"]
    assert seen["shown"] == 0  # the click on the time line


def test_100000_blocks_are_drawn(tmp_path: Path) -> None:
    rows = [
        live(512 * (1 + at % 70), f"request-{at % 300}", STEP if at % 2 else OTHER) if at % 3 else hole(1024)
        for at in range(100_000)
    ]
    seen = seen_on(tmp_path, snapshot_of({"kv": rows}))
    assert any("tag request-" in tip for tip in seen["tips"])
    print(f"drawn in {seen['milliseconds']:.0f} ms")


def test_one_snapshot_s_events_are_its_time_line(tmp_path: Path) -> None:
    begin = 1_700_000_000_000_000
    events = [(begin + at * 1000, 2 * MIB if at % 2 == 0 else -MIB) for at in range(2000)]
    seen = seen_on(tmp_path, snapshot_of({"kv": [live(1000 * MIB)]}, events=events))
    assert "0.000 s\nallocated 2.00 MiB, 2.00 MiB live after it" in seen["tips"][-1]


def test_a_process_that_uses_no_device_has_a_page(tmp_path: Path) -> None:
    import dataclasses

    from pyalloc.snapshots import page

    empty = dataclasses.replace(snapshot_of({}), devices=())
    text = page.html([empty])
    target = tmp_path / "page.html"
    target.write_text(text)
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "CONSOLE" not in done.stderr
    assert "no device was in use" in done.stdout
