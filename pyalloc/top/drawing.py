"""Numbers as short text, bars, strips and sparklines. Pure: values in, rich Text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

_UNITS: Final = ("B", "K", "M", "G", "T", "P")
_MINUTE: Final = 60


@dataclass(frozen=True)
class Glyphs:
    """The characters that pictures are made of. shades: of a cell, from idle or empty to wholly live."""

    live: str
    idle: str
    rest: str
    levels: str
    shades: str
    order: tuple[str, str]
    cursor: str


UNICODE: Final = Glyphs("█", "▒", "·", " ▁▂▃▄▅▆▇█", "·░▒▓█", ("▼", "▲"), "▶")
ASCII: Final = Glyphs("#", "=", ".", " .:-=+*#@", ".-+*#", ("v", "^"), ">")


@dataclass(frozen=True)
class Thresholds:
    """From which share of its limit something is to be looked at, and is short."""

    look: float = 0.75
    short: float = 0.90

    def style(self, share: float) -> str:
        """Of a figure with this share."""
        return "red" if share >= self.short else "yellow" if share >= self.look else "green"

    def mark(self, share: float) -> str:
        """The same without colour."""
        return "!" if share >= self.short else "+" if share >= self.look else " "

    def marked(self, share: float) -> Text:
        """Both."""
        mark = self.mark(share)
        return Text(mark, f"bold {self.style(share)}" if mark != " " else "")


def clean(text: str) -> str:
    """Text of another process, without what a terminal would take for a command."""
    return "".join(char if char.isprintable() else "?" for char in text)


def size(value: int | float | None) -> str:
    """Bytes in at most 5 characters: 512B, 1.5K, 64M, 1.25G."""
    if value is None:
        return "-"
    scaled, unit = float(value), 0
    while scaled >= 1000 and unit < len(_UNITS) - 1:
        scaled /= 1024
        unit += 1
    digits = 0 if unit == 0 or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:.{digits}f}{_UNITS[unit]}"


def count(value: int | float | None) -> str:
    """A number of things in at most 5 characters: 7, 999, 12.3k, 4.56M."""
    if value is None:
        return "-"
    if value < 1000:
        return f"{value:.0f}"
    scaled, unit = value / 1000, "k"
    for bigger in ("M", "G", "T"):
        if scaled < 1000:
            break
        scaled, unit = scaled / 1000, bigger
    return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"


def percent(share: float | None) -> str:
    """0 to 1 as 0% to 100%."""
    return "-" if share is None else f"{share * 100:.0f}%"


def ago(seconds: float) -> str:
    """How long ago, in at most 4 characters."""
    seconds = max(0.0, seconds)
    for unit, factor in (("d", 24 * 60 * _MINUTE), ("h", 60 * _MINUTE), ("m", _MINUTE)):
        if seconds >= factor:
            return f"{min(999, seconds / factor):.0f}{unit}"
    return f"{seconds:.0f}s"


def bar(width: int, live: int, held: int, whole: int, glyphs: Glyphs, style: str) -> Text:
    """Live memory, what is held beyond it, and what is left of `whole`."""
    live, held = max(0, live), max(0, held)
    whole = max(whole, live, held, 1)
    filled = min(width, round(width * live / whole))
    if live > 0:
        filled = max(1, filled)
    ends = max(filled, min(width, round(width * held / whole)))
    return Text.assemble(
        (glyphs.live * filled, style), (glyphs.idle * (ends - filled), "blue"), (glyphs.rest * (width - ends), "dim")
    )


def strip(width: int, live: Sequence[int], idle: Sequence[int], glyphs: Glyphs) -> Text:
    """How full each part of a pool's segments is, end to end; what is idle is the lightest."""
    text = Text()
    cells = len(live)
    width = min(width, cells)
    for at in range(width):
        first, end = at * cells // width, max(at * cells // width + 1, (at + 1) * cells // width)
        share = sum(live[first:end]) / (end - first) / 255
        spare = sum(idle[first:end]) / (end - first) / 255
        level = 0 if share <= 0 else min(len(glyphs.shades) - 1, 1 + int(share * (len(glyphs.shades) - 1)))
        style = "blue" if spare > 0.5 else "green" if share >= 0.9 else "yellow" if share > 0 else "dim"
        text.append(glyphs.shades[level], style)
    return text


def sparkline(width: int, values: Iterable[float], glyphs: Glyphs, highest: float | None = None) -> Text:
    """The last `width` values, against the highest of them, or the one that is given."""
    shown = list(values)[-width:]
    top = highest if highest is not None else max(shown, default=0)
    levels = glyphs.levels
    marks = "".join(
        levels[0 if value <= 0 or top <= 0 else max(1, min(len(levels) - 1, round(value / top * (len(levels) - 1))))]
        for value in shown
    )
    return Text(marks.rjust(width), "cyan")
