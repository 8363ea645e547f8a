"""Tables whose columns go, from the right, where the terminal is too narrow for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.text import Text

Item = TypeVar("Item")


@dataclass(frozen=True)
class Column(Generic[Item]):
    """sort: the key of model.SORT_KEYS that sorts by it, empty for none. grows: takes what room is left."""

    title: str
    width: int
    cell: Callable[[Item, int], Text | str]
    sort: str = ""
    right: bool = True
    grows: bool = False


def fitting(columns: Sequence[Column[Item]], width: int) -> list[tuple[Column[Item], int]]:
    """The columns that there is room for, with the widths that they get."""
    kept: list[Column[Item]] = []
    used = 0
    for column in columns:
        needed = column.width + (1 if kept else 0)
        if used + needed > width and kept:
            break
        kept.append(column)
        used += needed
    left = max(0, width - used)
    return [(column, column.width + (left if column.grows else 0)) for column in kept]


def heading(columns: Sequence[tuple[Column[Item], int]], sort: str, order: str) -> Text:
    """The line of titles; the column that rows are sorted by has a mark and another colour."""
    parts = []
    for column, width in columns:
        sorted_by = bool(column.sort) and column.sort == sort
        title = column.title + (order if sorted_by else "")
        parts.append(Text(_fit(title, width, column.right), style="bold reverse" if sorted_by else "bold"))
    return Text(" ").join(parts)


def line(columns: Sequence[tuple[Column[Item], int]], item: Item, style: str = "") -> Text:
    """One item's cells."""
    parts = []
    for column, width in columns:
        cell = column.cell(item, width)
        text = cell if isinstance(cell, Text) else Text(cell)
        text = text.copy()
        text.truncate(width)
        pad = width - text.cell_len
        parts.append(Text(" " * pad) + text if column.right else text + Text(" " * pad))
    joined = Text(" ").join(parts)
    if style:
        joined.stylize(style)
    return joined


def _fit(title: str, width: int, right: bool) -> str:
    title = title[:width]
    return title.rjust(width) if right else title.ljust(width)
