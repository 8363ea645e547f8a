#!/usr/bin/env python3
"""Writes the parts of the documentation that come from somewhere else: between marks in README.md, and whole pages.

    tools/docs.py options            the tables of options, from the library's own and pyalloc/torch_options.py
    tools/docs.py demo DEMO.json     the table of figures and the chart, from `tools/demo --json | tail -n 1 >DEMO.json`
    tools/docs.py bench              the tables of tools/bench/results/report.json, which tools/bench/report.py writes
    tools/docs.py compat             allocator_cpp/torch_bridge/COMPATIBILITY.md, by running tools/compatibility
    tools/docs.py complaints         tests/COMPLAINTS.md, from the marks in the tests

With --check, `options` changes nothing and fails when README.md is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
CHART = ROOT / "examples" / "serve_trace.svg"
RESULTS = ROOT / "tools" / "bench" / "results" / "report.json"
GIB = 1 << 30


def replace_block(text: str, name: str, block: str) -> str:
    """The text with what stands between the marks of `name` replaced. ValueError when the marks are missing."""
    begin, end = f"<!-- {name}: written by tools/docs.py -->\n", f"<!-- {name}: end -->\n"
    if begin not in text or end not in text:
        raise ValueError(f"README.md has no marks {begin.strip()} and {end.strip()}")
    head, rest = text.split(begin, 1)
    return head + begin + block + end + rest.split(end, 1)[1]


# --- options ---


def readable_size(text: str) -> str:
    """Bytes as the options write them: 64MiB, or the number when it is not a whole count of a unit."""
    number = int(text)
    for unit, factor in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return text


def options_table(options: list[dict[str, str]]) -> str:
    """Markdown of the rows of pyalloc_config_json: key, default, type, unit and help."""
    lines = ["| option | default | values | what it does |", "| --- | --- | --- | --- |"]
    for row in options:
        default = readable_size(row["default"]) if row["type"] == "size" else row["default"]
        unit = f" {row['unit']}" if row["unit"] and row["type"] != "size" else ""
        expected = row["expected"].replace("|", "\\|")
        lines.append(f"| `{row['key']}` | `{default}`{unit} | {expected} | {row['help']} |")
    return "\n".join(lines) + "\n"


def torch_options_table(options: dict[str, tuple[str, str]]) -> str:
    """Markdown of pyalloc.torch_options.TABLE: options with one outcome and meaning share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, row in options.items():
        rows.setdefault(row, []).append(f"`{name}`")
    lines = ["| option of torch's | under pyalloc | |", "| --- | --- | --- |"]
    for (outcome, meaning), names in rows.items():
        text = f"`{meaning}`" if outcome == "translated" else meaning
        lines.append(f"| {', '.join(names)} | {outcome} | {text} |")
    return "\n".join(lines) + "\n"


def with_options(text: str) -> str:
    """README.md's text with both tables of options as they are now."""
    from pyalloc import torch_options

    text = replace_block(text, "options", options_table(library_options()))
    return replace_block(text, "torch_options", torch_options_table(dict(torch_options.TABLE)))


def library_options() -> list[dict[str, str]]:
    from pyalloc import _native

    return _native.library().config()


# --- demo ---


def figures_table(report: dict[str, Any]) -> str:
    """Markdown of the demo's last line: pyalloc beside native."""
    ours, native = report["pyalloc"], report["native"]
    rows = [
        ("live peak", lambda r: f"{r['live_peak_bytes'] / GIB:.2f} GiB"),
        ("reserved peak", lambda r: f"{r['reserved_peak_bytes'] / GIB:.2f} GiB"),
        ("reserved / live", lambda r: f"{r['reserved_peak_bytes'] / r['live_peak_bytes']:.3f}"),
        ("driver calls", lambda r: f"{r['driver_calls']:,}"),
        ("time per allocation", lambda r: f"{r['ns_per_op'] / 1000:.2f} us"),
    ]
    where = "a simulated GPU" if report["simulated"] else ours["device"]
    title = f"{ours['requests']} requests, {ours['tokens']:,} tokens, {ours['steps']:,} steps on {where}"
    lines = [f"| {title} | pyalloc | native |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {cell(ours)} | {cell(native)} |" for name, cell in rows]
    return "\n".join(lines) + "\n"


def chart(report: dict[str, Any]) -> str:
    """SVG: live and reserved memory of both runs over the steps."""
    width, height, left, right, top, bottom = 860, 340, 48, 150, 40, 40
    ours, native = report["pyalloc"]["timeline"], report["native"]["timeline"]
    last_step = max(ours[-1][0], native[-1][0])
    highest = max(row[2] for row in ours + native) / GIB * 1.05
    tick = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if highest / step <= 6)

    def x(step: float) -> float:
        return left + (width - left - right) * step / last_step

    def y(gib: float) -> float:
        return height - bottom - (height - top - bottom) * gib / highest

    def points(rows: list[list[int]], column: int) -> str:
        return " ".join(f"{x(row[0]):.1f},{y(row[column] / GIB):.1f}" for row in rows)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="22" font-size="15" fill="#1f2328">Device memory while serving '
        f"{report['pyalloc']['requests']} requests of a real trace (GiB)</text>",
    ]
    level = 0
    while level * tick <= highest:
        at = y(level * tick)
        parts.append(f'<path d="M{left} {at:.1f}H{width - right}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#57606a">{level * tick:g}</text>')
        level += 1
    corner = f'x="{width - right}" y="{height - 14}" text-anchor="end"'
    parts.append(f'<text {corner} fill="#57606a">step {last_step:,}</text>')
    base = f"{x(ours[-1][0]):.1f},{y(0):.1f} {x(0):.1f},{y(0):.1f}"
    parts.append(f'<polygon points="{points(ours, 1)} {base}" fill="#cfe3fa"/>')
    labels = (("reserved, native", native, "#c2410c"), ("reserved, pyalloc", ours, "#1d4ed8"))
    ends = [y(rows[-1][2] / GIB) for _, rows, _ in labels]
    if abs(ends[0] - ends[1]) < 18:
        ends[0], ends[1] = (ends[1] - 18, ends[1]) if ends[0] <= ends[1] else (ends[1] + 18, ends[1])
    for (name, rows, colour), at in zip(labels, ends, strict=True):
        parts.append(f'<polyline points="{points(rows, 2)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{width - right + 8}" y="{at + 4:.1f}" fill="{colour}">{name}</text>')
    live = y(ours[len(ours) // 2][1] / GIB / 2)
    parts.append(f'<text x="{x(last_step / 2):.0f}" y="{live:.0f}" text-anchor="middle" fill="#1e4e8c">live</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


# --- bench ---


def bench_tables(report: dict[str, Any]) -> str:
    """Markdown of a whole report of the benchmarks."""
    sys.path.insert(0, str(ROOT / "tools" / "bench"))
    from benchlib import pages

    return pages.readme(report) + "\n"


# --- pages ---


def write_page(part: str) -> int:
    """Writes one of the pages that are made whole. Returns the number of things in it that must not be."""
    sys.path.insert(0, str(ROOT / "tools"))
    if part == "complaints":
        import complaints

        complaints.PAGE.write_text(complaints.page(), encoding="utf-8")
        return 0
    import torch
    from compatibility import table

    found = table.verdicts(table.collect())
    table.PAGE.write_text(table.page(found, torch.__version__), encoding="utf-8")
    for problem in table.problems(found):
        print(problem, file=sys.stderr)
    return len(table.problems(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="options: change nothing, fail when out of date")
    parser.add_argument("part", choices=("options", "demo", "bench", "compat", "complaints"))
    parser.add_argument("file", nargs="?", type=Path, help="demo: its JSON line; bench: another report.json")
    args = parser.parse_args()
    if args.part in ("compat", "complaints"):
        return int(write_page(args.part) > 0)
    text = README.read_text(encoding="utf-8")
    if args.part == "options":
        new = with_options(text)
        if args.check:
            if new != text:
                print("README.md: a table of options is out of date; tools/docs.py options writes it", file=sys.stderr)
            return int(new != text)
    elif args.part == "bench":
        report = json.loads((args.file or RESULTS).read_text(encoding="utf-8"))
        new = replace_block(text, "bench", bench_tables(report))
    else:
        if args.file is None:
            parser.error("demo: name the file that holds the demo's JSON line")
        report = json.loads(args.file.read_text(encoding="utf-8"))
        new = replace_block(text, "demo", figures_table(report))
        CHART.write_text(chart(report), encoding="utf-8")
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
