"""diff(): what grew between two snapshots, by pool, size, tag and call site. Live blocks count, in bytes asked for."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .._words import counted, readable, signed
from .model import STATES, Frame, Snapshot, own_frame

SCHEMA: Final = "pyalloc.diff/1"
_LIVE: Final = STATES.index("live")


@dataclass(frozen=True)
class Kind:
    """What blocks have in common; None where they were not told apart by it, or it is not known.

    size_class: the power of two that their bytes, rounded as allocated, are at most. tag: "request-*" stands for all
    tags that differ in their numbers alone. site: "file:line in function" that allocated them.
    """

    device: int | None = None
    pool: str | None = None
    size_class: int | None = None
    tag: str | None = None
    site: str | None = None

    def __str__(self) -> str:
        return self.words()

    def words(self, tags: int = 0) -> str:
        """The kind for people; `tags` says of how many tags it is."""
        parts = []
        if self.pool is not None:
            parts.append(self.pool + (f" of device {self.device}" if self.device else ""))
        if self.size_class is not None:
            parts.append(f"{readable(self.size_class // 2)} to {readable(self.size_class)}")
        if self.tag is not None:
            parts.append(f"tag {self.tag}" + (f" ({tags} tags)" if tags > 1 else ""))
        if self.site is not None:
            parts.append(self.site)
        return ", ".join(parts) or "everything"


@dataclass(frozen=True)
class Change:
    """How the live blocks of one kind changed. bytes, blocks: after less before, and what there was before.

    size: of the bytes asked for, those of most of the blocks that came; 0 where none did. tags: how many tags of the
    kind hold more than before.
    """

    kind: Kind
    bytes: int
    blocks: int
    before_bytes: int
    before_blocks: int
    size: int
    tags: int

    def __str__(self) -> str:
        return self.kind.words(self.tags)

    def __repr__(self) -> str:
        return f"<Change {signed(self.bytes)}, {self.blocks:+,} blocks: {self}>"


@dataclass(frozen=True)
class Difference:
    """What changed from one snapshot to another; each tuple has what grew most first.

    milliseconds: between them. same_process: both are of one. live: all blocks together. changes: by everything that
    tells blocks apart. pools, sizes, tags, sites: by one of these; blocks without a tag, or a known site, are in none
    of the last two. reserved: how much more each pool has mapped, by "kv" or "kv of device 1". str() is all of it for
    people, as `pyalloc diff` prints it.
    """

    milliseconds: int
    same_process: bool
    live: Change
    changes: tuple[Change, ...]
    pools: tuple[Change, ...]
    sizes: tuple[Change, ...]
    tags: tuple[Change, ...]
    sites: tuple[Change, ...]
    reserved: dict[str, int]

    def grew(self, at_least: int = 1) -> tuple[Change, ...]:
        """Of `changes`, those of so many bytes or more."""
        return tuple(one for one in self.changes if one.bytes >= at_least)

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and text."""
        return {"schema": SCHEMA, **asdict(self)}

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def __repr__(self) -> str:
        return (
            f"<Difference over {abs(self.milliseconds) / 1000:.1f} s: {signed(self.live.bytes)} live, "
            f"{self.live.blocks:+,} blocks, {counted(len(self.changes), 'change')}; print() shows all>"
        )


def diff(before: Snapshot, after: Snapshot) -> Difference:
    """What grew, and what shrank, from one snapshot to a later one.

        before = pyalloc.snapshot()
        serve(requests)
        for change in pyalloc.diff(before, pyalloc.snapshot()).grew():
            print(change.bytes, change)

    Call sites are known where torch recorded memory history. Snapshots of different processes can be compared, too.
    Raises TypeError for anything but two snapshots.
    """
    for one in (before, after):
        if not isinstance(one, Snapshot):
            raise TypeError(f"diff() of {one!r}; expected a Snapshot, as snapshot() and load_snapshot(path) return")
    families = _families(before, after)
    old, new = _groups(before, families), _groups(after, families)

    def by(*parts: str) -> tuple[Change, ...]:
        merged = [_merged(groups, parts) for groups in (old, new)]
        none = _Group()
        kinds = [kind for kind in {**merged[0], **merged[1]} if getattr(kind, parts[-1]) is not None or len(parts) > 2]
        changes = [_change(kind, merged[0].get(kind, none), merged[1].get(kind, none)) for kind in kinds]
        return tuple(sorted((one for one in changes if one.bytes or one.blocks), key=lambda one: -one.bytes))

    everything = [_merged(groups, ()).get(Kind(), _Group()) for groups in (old, new)]
    return Difference(
        milliseconds=after.unix_ms - before.unix_ms,
        same_process=(before.pid, before.program) == (after.pid, after.program),
        live=_change(Kind(), *everything),
        changes=by("device", "pool", "size_class", "tag", "site"),
        pools=by("device", "pool"),
        sizes=by("size_class"),
        tags=by("tag"),
        sites=by("site"),
        reserved=_reserved(before, after),
    )


@dataclass
class _Group:
    """Live blocks of one kind: how many of each size, as asked for, and how many bytes of each tag."""

    sizes: Counter[int] = field(default_factory=Counter)
    tags: Counter[str | None] = field(default_factory=Counter)

    def add(self, size: int, tag: str | None, count: int) -> None:
        self.sizes[size] += count
        self.tags[tag] += size * count

    @property
    def bytes(self) -> int:
        return sum(size * count for size, count in self.sizes.items())

    @property
    def blocks(self) -> int:
        return self.sizes.total()


def _groups(snapshot: Snapshot, families: dict[str, str]) -> dict[Kind, _Group]:
    # Kinds are looked up by their columns' values: to make one for each block would take seconds.
    groups: dict[tuple[object, ...], _Group] = defaultdict(_Group)
    for device in snapshot.devices:
        blocks = device.blocks
        tags: list[str | None] = [*blocks.tags, None]  # NONE is the last place
        kept_families = [*(families[tag] for tag in blocks.tags), None]
        sites = [*map(_site_text, blocks.sites), None]
        for segment in device.segments:
            part = slice(segment.first, segment.first + segment.blocks)
            columns = (blocks.state, blocks.bytes, blocks.requested, blocks.tag, blocks.site)
            alike = Counter(zip(*(column[part] for column in columns), strict=True))
            for (state, size, requested, tag, site), count in alike.items():
                if state == _LIVE:
                    size_class = 1 << (size - 1).bit_length()
                    kind = (device.ledger.device, segment.pool, size_class, kept_families[tag], sites[site])
                    groups[kind].add(requested, tags[tag], count)
    return {Kind(*kind): group for kind, group in groups.items()}  # type: ignore[arg-type]


def _site_text(site: tuple[Frame, ...]) -> str | None:
    frame = own_frame(site)
    return None if frame is None else str(frame)


def _families(*snapshots: Snapshot) -> dict[str, str]:
    """What each tag counts as: its text with a star for each number, where several tags have that in common."""
    names = {tag for one in snapshots for device in one.devices for tag in device.blocks.tags}
    stars = {tag: re.sub(r"\d+", "*", tag) for tag in names}
    shared = Counter(stars.values())
    return {tag: star if shared[star] > 1 else tag for tag, star in stars.items()}


def _merged(groups: dict[Kind, _Group], parts: tuple[str, ...]) -> dict[Kind, _Group]:
    """The groups of those kinds that have these parts in common."""
    merged: dict[Kind, _Group] = defaultdict(_Group)
    for kind, group in groups.items():
        into = merged[Kind(**{part: getattr(kind, part) for part in parts})]
        into.sizes.update(group.sizes)
        into.tags.update(group.tags)
    return merged


def _change(kind: Kind, before: _Group, after: _Group) -> Change:
    came = after.sizes - before.sizes
    return Change(
        kind=kind,
        bytes=after.bytes - before.bytes,
        blocks=after.blocks - before.blocks,
        before_bytes=before.bytes,
        before_blocks=before.blocks,
        size=came.most_common(1)[0][0] if came else 0,
        tags=len([tag for tag in after.tags - before.tags if tag is not None]),
    )


def _reserved(before: Snapshot, after: Snapshot) -> dict[str, int]:
    grown: Counter[str] = Counter()
    for sign, snapshot in ((-1, before), (1, after)):
        for device in snapshot.devices:
            for pool in device.ledger.pools:
                grown[str(Kind(device=device.ledger.device, pool=pool.name))] += sign * pool.reserved
    return {name: size for name, size in grown.most_common() if size}


# --- for people ---


def lines(difference: Difference, most: int = 10) -> Iterator[str]:
    """The difference as text: what happened altogether, what grew most, then by one thing at a time."""
    live = difference.live
    if live.bytes or live.blocks:
        yield (
            f"live memory {'shrank' if live.bytes < 0 else 'grew'} by {signed(live.bytes).lstrip('+-')}, "
            f"{live.blocks:+,} blocks, from {readable(live.before_bytes)} in {live.before_blocks:,}"
        )
    elif not difference.changes:
        yield "nothing changed: live memory is of the same sizes, pools, tags and call sites"
    yield from _section("what changed", difference.changes, most)
    for title, changes in (
        ("by pool", difference.pools),
        ("by size", difference.sizes),
        ("by tag", difference.tags),
        ("by call site", difference.sites),
    ):
        yield from _section(title, changes, most)
    if difference.changes and not difference.sites:
        yield ""
        yield "call sites are not known: torch.cuda.memory._record_memory_history() or sample_stacks keeps them"
    for name, size in difference.reserved.items():
        grown = [one for one in difference.pools if str(one.kind) == name and one.bytes > 0]
        if size > 0 and not grown:
            yield f"{name} has {signed(size)} mapped and no more live: kept for reuse, not a leak"


def _section(title: str, changes: tuple[Change, ...], most: int) -> Iterator[str]:
    if not changes:
        return
    shown = sorted(changes, key=lambda one: -abs(one.bytes))[:most]
    yield ""
    yield f"{title:<16}{'bytes':>14}{'blocks':>10}"
    for one in sorted(shown, key=lambda one: -one.bytes):
        of_size = f", mostly of {readable(one.size)}" if one.size and one.blocks > 1 else ""
        yield f"{'':<16}{signed(one.bytes):>14}{one.blocks:>+10,}  {one}{of_size}"
    if len(changes) > most:
        yield f"{'':<16}and {len(changes) - most} more"
