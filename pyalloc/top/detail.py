"""One process on one device: its account, its pools and where they are full, its last minutes, tags and events."""

from __future__ import annotations

from rich.text import Text

from .columns import fitting, heading, line
from .drawing import Glyphs, bar, clean, count, percent, size, sparkline, strip
from .model import Row, pools_in_use
from .view import PoolRow, Screen, event_lines, label, limit_of, pool_columns, tag_lines

_MAP_LEFT = 12
_FEW = 6


def detail_lines(row: Row, screen: Screen) -> list[Text]:
    """Every line; the screen shows the part that there is room for."""
    return [
        *_account(row, screen),
        Text(),
        *_pools(row, screen),
        Text(),
        *_map(row, screen),
        Text(),
        *_history(row, screen),
        *_section("TAGS THAT HOLD MOST", tag_lines([row], screen.width)[: _FEW + 1]),
        *_section("EVENTS", event_lines([row], screen.width)[: 2 * _FEW]),
        *_refusals(row, screen),
    ]


def _section(title: str, lines: list[Text]) -> list[Text]:
    return [Text(), Text(title, "bold"), *lines] if len(lines) > 1 else []


def _account(row: Row, screen: Screen) -> list[Text]:
    device, process = row.device, row.process
    values = device.values
    figures = [
        ("reserved", size(device.reserved)),
        ("allocated", size(device.allocated)),
        ("requested", size(device.requested)),
        ("idle", size(device.idle)),
        ("shelf", size(device.shelf)),
        ("peak allocated", size(values.get("allocated_bytes.all.peak"))),
        ("limit", size(limit_of(device))),
        ("left before out-of-memory", size(values.get("margin"))),
        ("activation peak", size(values.get("activation_peak"))),
        ("blocks", count(values.get("allocation.all.current"))),
        ("waiting for events", count(values.get("pending_frees"))),
    ]
    rates = [(f"{name.replace('_', ' ')}/s", count(value)) for name, value in row.track.rates.items()]
    lora = [
        ("LoRA reserve", size(values.get("reserve"))),
        ("of it unused", size(values.get("set_aside"))),
        ("overflows", count(values.get("lora_overflows"))),
        ("prepares", count(values.get("lora_prepares"))),
        ("workspace escapes", count(values.get("escapes"))),
    ]
    fragmentation = [(kind.replace("_", " "), percent(value)) for kind, value in device.fragmentation().items()]
    total = int(values.get("total") or 0)
    share = device.allocated / limit_of(device) if limit_of(device) else 0.0
    use = bar(
        max(10, screen.width - 2),
        device.allocated,
        device.reserved,
        total,
        screen.glyphs,
        screen.thresholds.style(share),
    )
    return [
        Text(f"{process.pid}  {label(process.program)}"[: screen.width], "bold"),
        Text(
            f"GPU {device.number} {clean(values['name'])} {clean(values.get('uuid', ''))}, pyalloc "
            f"{clean(process.sample.process.get('version', ''))}, {process.state}"[: screen.width]
        ),
        use + screen.thresholds.marked(share),
        *_facts(figures, screen.width),
        *_facts([("fragmentation", ""), *fragmentation], screen.width),
        *_facts(rates, screen.width),
        *_facts(lora, screen.width),
    ]


def _facts(pairs: list[tuple[str, str]], width: int) -> list[Text]:
    """Names and figures side by side, on as many lines as they need."""
    lines = [Text()]
    for name, figure in pairs:
        part = Text.assemble((f"{name} " if figure else f"{name}: ", "dim"), figure)
        if lines[-1].cell_len and lines[-1].cell_len + 2 + part.cell_len > width:
            lines.append(Text())
        lines[-1] = lines[-1] + Text("  " if lines[-1].cell_len and not lines[-1].plain.endswith(": ") else "") + part
    return lines


def _pools(row: Row, screen: Screen) -> list[Text]:
    columns = fitting(pool_columns(screen), screen.width)
    return [
        heading(columns, "", ""),
        *(line(columns, PoolRow(row, pool)) for pool in pools_in_use(row.device)),
    ]


def _map(row: Row, screen: Screen) -> list[Text]:
    """Each pool's segments end to end, as long as its share of the largest pool's."""
    pools = [pool for pool in pools_in_use(row.device) if pool.values.get("cells")]
    if not pools:
        return [Text("no memory is mapped", "dim")]
    room = max(8, screen.width - _MAP_LEFT - 1)
    largest = max(pool.reserved for pool in pools) or 1
    lines = [Text("SEGMENTS, END TO END", "bold") + Text(f"   {_legend(screen.glyphs)}"[:room], "dim")]
    for pool in pools:
        cells = int(pool.values["cells"])
        live, idle = pool.values.get("live_cells", b"")[:cells], pool.values.get("idle_cells", b"")[:cells]
        width = max(1, min(room, round(room * pool.reserved / largest)))
        drawn = strip(width, _stretched(live, width), _stretched(idle, width), screen.glyphs)
        lines.append(Text(f"{clean(pool.name)[:_MAP_LEFT]:<{_MAP_LEFT}} ") + drawn)
    return lines


def _stretched(cells: bytes, width: int) -> bytes:
    """The same with at least `width` cells, so that a short list fills its place."""
    return bytes(cells[at * len(cells) // width] for at in range(width)) if 0 < len(cells) < width else cells


def _legend(glyphs: Glyphs) -> str:
    return f"{glyphs.shades[-1]} full of blocks  {glyphs.shades[1:-1]} partly  {glyphs.shades[0]} idle"


def _history(row: Row, screen: Screen) -> list[Text]:
    track = row.track
    room = max(10, screen.width - 32)
    top = max(track.reserved, default=0.0)
    series = (
        ("reserved", track.reserved, size(row.device.reserved), size(top), top),
        ("allocated", track.allocated, size(row.device.allocated), size(max(track.allocated, default=0)), top),
        (
            "allocations/s",
            track.allocations,
            count(row.track.rates["allocations"]),
            count(max(track.allocations, default=0)),
            None,
        ),
        (
            "driver calls/s",
            track.driver_calls,
            count(row.track.rates["driver_calls"]),
            count(max(track.driver_calls, default=0)),
            None,
        ),
    )
    return [
        Text(f"{name:<14} {now:>6} ") + sparkline(room, values, screen.glyphs, highest) + Text(f" {most:>6}", "dim")
        for name, values, now, most, highest in series
    ]


def _refusals(row: Row, screen: Screen) -> list[Text]:
    process = row.process.sample.process
    if not row.process.ooms:
        return []
    reasons = [(name.removeprefix("oom_"), count(value)) for name, value in process.items() if name.startswith("oom_")]
    message = Text(clean(process.get("last_oom", "")), "red")
    return [Text(), Text("OUT OF MEMORY", "bold"), *_facts(reasons, screen.width), *_wrapped(message, screen.width)]


def _wrapped(text: Text, width: int) -> list[Text]:
    lines = [Text(style=text.style)]
    for word in text.plain.split():
        if lines[-1].cell_len and lines[-1].cell_len + 1 + len(word) > width:
            lines.append(Text(style=text.style))
        lines[-1].append((" " if lines[-1].plain else "") + word)
    return lines
