"""What a figure of the core is called in Prometheus: made from its table, so that there is no second list.

A field `margin` in bytes of the table `device` is pyalloc_device_margin_bytes, a counter `lora_overflows` is
pyalloc_device_lora_overflows_total, a counter in nanoseconds is in seconds. A statistic with a history, such as
`allocated_bytes`, is a gauge, a gauge of its peak, and two counters of what came and went: ..._allocated_bytes,
..._peak_allocated_bytes, ..._allocated_allocated_bytes_total, ..._freed_allocated_bytes_total; of all sizes of blocks
together, since small and large ones add up to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..stats_page import Field

GAUGE: Final = "gauge"
COUNTER: Final = "counter"

_BASE_UNITS: Final = {"bytes": ("bytes", 1.0), "ms": ("seconds", 1e-3), "ns": ("seconds", 1e-9)}
_FIGURES: Final = {
    "current": ("", GAUGE, ""),
    "peak": ("peak_", GAUGE, "most at once since the last reset: "),
    "allocated": ("allocated_", COUNTER, "all increases so far: "),
    "freed": ("freed_", COUNTER, "all decreases so far: "),
}
_DRAWING: Final = ("cells", "cell_bytes")  # how a pool's map is drawn
_WORD: Final = re.compile(r"[a-z]{1,30}")
_LONGEST_NAME: Final = 100


@dataclass(frozen=True)
class Metric:
    """One metric of a table. name: without the "_total" that a counter ends in; key: of its value in a record; scale:
    from the record's unit to the metric's.
    """

    name: str
    kind: str
    help: str
    key: str
    scale: float


def metrics_of(table: str, fields: Iterable[Field]) -> list[Metric]:
    """The metrics of a table of a stats page. Where two fields come to one name, as a statistic and the same figure of
    the ledger do, the later field is it.
    """
    found: dict[str, Metric] = {}
    for field in fields:
        if len(field.name) > _LONGEST_NAME or (field.unit and not _WORD.fullmatch(field.unit)):
            continue  # a page is a file that anybody of the user may have written
        if field.type == "stat":
            for figure, (prefix, kind, what) in _FIGURES.items():
                name, scale = _name(table, prefix, field, counted=True)
                found[name] = Metric(name, kind, what + field.help, f"{field.name}.all.{figure}", scale)
        elif field.type == "int64" and _says_something(field):
            name, scale = _name(table, "", field)
            found[name] = Metric(name, field.kind, field.help, field.name, scale)
    return list(found.values())


def all_metrics(tables: Mapping[str, Iterable[Field]]) -> list[tuple[str, Metric]]:
    """The metrics of every table that has any, each with its table's name. Tags are not among them: one a request would
    be more series than Prometheus can hold.
    """
    return [(table, metric) for table in ("process", "device", "pool") for metric in metrics_of(table, tables[table])]


def _says_something(field: Field) -> bool:
    """Not what never changes, how many records the page has, or what a clock of the host's own shows."""
    return field.kind == COUNTER or (
        field.kind == GAUGE and field.unit not in ("", "ns") and field.name not in _DRAWING
    )


def _name(table: str, prefix: str, field: Field, counted: bool = False) -> tuple[str, float]:
    stem = field.name
    if counted or field.unit in _BASE_UNITS:
        stem = stem.removesuffix(f"_{field.unit}")
    if field.kind == COUNTER and stem.endswith("_total"):
        # Without "_total" it would be the name of the gauge of what is there now.
        prefix, stem = "ever_", stem.removesuffix("_total")
    unit, scale = _BASE_UNITS.get(field.unit, (field.unit if counted else "", 1.0))
    if unit == f"{stem}s":
        stem, unit = unit, ""
    return f"pyalloc_{table}_{prefix}{stem}{'_' if unit else ''}{unit}", scale
