"""Snapshots as one page for a browser: a file that needs nothing else, and no network.

The page is page_files/page.html with its style and scripts put in. Each snapshot is a JSON text of its own in it, read
when it is shown; what the time line needs of all of them stands apart. Text of the program's own (tags, file names)
reaches the page as data only, so it can make neither elements nor scripts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .._native import package_file
from ..errors import LibraryError
from .model import Snapshot

_SCRIPTS: Final = ("format.js", "model.js", "bars.js", "heap_map.js", "groups.js", "timeline.js", "main.js")


def html(snapshots: Sequence[Snapshot]) -> str:
    """The page of one snapshot, or of several with a time line, oldest first."""
    ordered = sorted(snapshots, key=lambda one: one.unix_ms)
    parts = {
        "STYLE": _text("page.css"),
        "SUMMARY": _json(
            [
                {"unix_ms": one.unix_ms, "devices": [_figures(device.ledger.as_dict()) for device in one.devices]}
                for one in ordered
            ]
        ),
        "SNAPSHOTS": "\n".join(
            f'<script type="application/json" class="snapshot">{_json(one.as_dict())}</script>' for one in ordered
        ),
        "SCRIPT": "\n".join(_text(name) for name in _SCRIPTS),
    }
    page = _text("page.html")
    pieces = []
    for name, part in parts.items():  # in the order of the page, so that no part is searched for the next one's place
        before, page = page.split(f"[[{name}]]")
        pieces += [before, part]
    return "".join([*pieces, page])


def _figures(ledger: dict[str, Any]) -> dict[str, Any]:
    pools = [{key: pool[key] for key in ("name", "requested", "allocated", "reserved")} for pool in ledger["pools"]]
    return {"device": ledger["device"], "reserved": ledger["reserved"], "pools": pools}


def _json(data: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c")


def _text(name: str) -> str:
    path = package_file("snapshots", "page_files", name)
    if path is None:
        raise LibraryError(f"the package has no snapshots/page_files/{name}: install pyalloc again")
    return Path(path).read_text(encoding="utf-8")
