"""watch_leaks() on made-up figures: what leaks, and what only looks as if it did."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from snapshot_samples import MIB, STEP, live, snapshot_of

import pyalloc
from pyalloc.snapshots import leak_watch
from pyalloc.snapshots.model import Snapshot


class Pools:
    """Stands in for the core: pools of a device whose figures a test sets."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, int]] = {}
        self.rows: dict[str, list[Any]] = {}

    def set(self, pool: str, requested: int, blocks: int | None = None, reserved: int | None = None) -> None:
        self.figures[pool] = {
            "requested": requested,
            "blocks": requested // MIB if blocks is None else blocks,
            "reserved": max(requested, 2 * MIB) if reserved is None else reserved,
        }
        self.rows[pool] = [live(MIB, f"request-{at}", STEP) for at in range(max(1, requested // MIB))]

    def pool_names(self) -> list[str]:
        return list(self.figures)

    def device_count(self) -> int:
        return 1

    def pool_stats(self, _: int, number: int) -> dict[str, int]:
        return self.figures[list(self.figures)[number]]

    def parse_size(self, text: int | str) -> int:
        return {"1MiB": MIB}.get(str(text)) or int(text)

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.rows)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Pools:
    made = Pools()
    monkeypatch.setattr(leak_watch, "library", lambda: made)
    monkeypatch.setattr(leak_watch, "snapshot", made.snapshot)
    return made


def found_in(pools: Pools, levels: Callable[[int], int], windows: int = 60, pool: str = "kv") -> list[pyalloc.Leak]:
    """What a watch finds when a pool has so many bytes in each window."""
    watch = pyalloc.watch_leaks(windows=8, interval=None)
    for window in range(windows):
        pools.set(pool, levels(window))
        watch.step()
    return watch.leaks


HEALTHY: dict[str, Callable[[int], int]] = {
    "constant": lambda at: 500 * MIB,
    "comes and goes": lambda at: (100 + 300 * (at % 2)) * MIB,
    "a sawtooth of five windows": lambda at: (100 + 50 * (at % 5)) * MIB,
    "a ramp that ends in time": lambda at: min(at, 7) * 100 * MIB,
    "fills ever more slowly": lambda at: int(1000 * MIB * (1 - 0.7**at)),
    "shrinks": lambda at: (1000 - at) * MIB,
    "one step up": lambda at: (100 if at < 20 else 900) * MIB,
    "a step up now and then": lambda at: (100 + 100 * (at // 6)) * MIB,
    "fills again after it was emptied": lambda at: 900 * MIB if at < 12 else (at - 12) % 24 * 30 * MIB,
    "grows by next to nothing": lambda at: 500 * MIB + at * 512,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_healthy_raises_no_alarm(name: str, pools: Pools) -> None:
    assert found_in(pools, HEALTHY[name]) == []


def test_a_leak_is_found_and_named(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pyalloc"):
        leaks = found_in(pools, lambda at: (100 + 2 * at) * MIB, windows=9)
    (leak,) = leaks
    assert (leak.pool, leak.cause, leak.bytes, leak.blocks, leak.windows) == ("kv", "tensors", 16 * MIB, 16, 8)
    assert leak.changes[0].kind.tag == "request-*"
    assert leak.changes[0].kind.site == "/app/serve.py:7 in handle"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "pool kv grew by 16.00 MiB in 16 blocks in 8 windows" in caplog.text
    assert "/app/serve.py:7 in handle" in caplog.text


def test_a_leak_that_goes_on_is_told_again_after_as_many_windows(pools: Pools) -> None:
    assert len(found_in(pools, lambda at: (100 + at) * MIB, windows=17)) == 2


def test_a_leak_of_many_small_blocks_is_found_by_their_number(pools: Pools) -> None:
    watch = pyalloc.watch_leaks(windows=8, interval=None)
    for window in range(9):
        pools.set("general", 50 * MIB + window * 8 * 512, blocks=1000 + window * 8)
        watch.step()
    (leak,) = watch.leaks
    assert (leak.blocks, leak.cause) == (64, "tensors")


def test_what_is_only_mapped_is_a_cache_and_no_warning(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    watch = pyalloc.watch_leaks(windows=8, interval=None)
    with caplog.at_level(logging.INFO, "pyalloc"):
        for window in range(9):
            pools.set("general", 50 * MIB, reserved=(60 + window) * MIB)
            watch.step()
    (leak,) = watch.leaks
    assert (leak.cause, leak.reserved, leak.bytes) == ("cache", 8 * MIB, 0)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "not a leak" in str(leak)


def test_adapters_are_named(pools: Pools) -> None:
    (leak,) = found_in(pools, lambda at: at * 4 * MIB, windows=9, pool="lora")
    assert leak.cause == "adapters"
    assert "none is unloaded" in str(leak)


@pytest.mark.parametrize(("again", "cause"), [(True, "second model"), (False, "tensors")])
def test_a_second_model_is_named_only_where_the_sizes_prove_it(again: bool, cause: str, pools: Pools) -> None:
    model = [live(4 * MIB), live(4 * MIB), live(MIB), live(3 * MIB)]
    watch = pyalloc.watch_leaks(windows=8, interval=None)
    for window in range(9):
        pools.set("weights", (window + 1) * 12 * MIB)
        pools.rows["weights"] = [*model, *(model if again else [live(12 * MIB)]) * window]
        watch.step()
    assert [leak.cause for leak in watch.leaks] == [cause]


def test_within_a_window_the_least_counts(pools: Pools) -> None:
    watch = pyalloc.watch_leaks(windows=8, interval=None, steps=5)
    for step in range(300):  # each step has more at its height than the last, and none of it stays
        pools.set("kv", (100 if step % 5 == 3 else 200 + step) * MIB)
        watch.step()
    assert watch.leaks == []


def test_the_thread_looks_by_itself_and_stops(pools: Pools) -> None:
    pools.set("kv", 0)
    level = iter(range(1, 1 << 30))
    pools.pool_stats = lambda *_: {"requested": (at := next(level)) * MIB, "blocks": at, "reserved": at * MIB}  # type: ignore[method-assign,assignment]
    found = threading.Event()
    with pyalloc.watch_leaks(interval=0.004, windows=2, on_leak=lambda leak: (found.set(), watch.stop())) as watch:
        assert found.wait(60)
    assert threading.active_count() == 1 or "pyalloc-leaks" not in {one.name for one in threading.enumerate()}
    watch.stop()


def test_on_leak_s_error_ends_nothing(pools: Pools, caplog: pytest.LogCaptureFixture) -> None:
    pools.set("kv", 0)
    level = iter(range(1, 1 << 30))
    pools.pool_stats = lambda *_: {"requested": (at := next(level)) * MIB, "blocks": at, "reserved": at * MIB}  # type: ignore[method-assign,assignment]
    twice = threading.Semaphore(0)

    def fail(_: pyalloc.Leak) -> None:
        twice.release()
        raise ValueError("no pager")

    with pyalloc.watch_leaks(interval=0.004, windows=2, on_leak=fail):
        assert twice.acquire(timeout=60)
        assert twice.acquire(timeout=60)
    assert "no pager" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"windows": 1},
        {"windows": True},
        {"steps": 0},
        {"least_blocks": 0},
        {"interval": 0},
        {"interval": -1.0},
        {"interval": float("nan")},
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], pools: Pools) -> None:
    with pytest.raises(pyalloc.InvalidArgumentError, match=next(iter(given))):
        pyalloc.watch_leaks(**given)
