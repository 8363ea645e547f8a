"""watch_leaks(): warns when a pool keeps growing and nothing is given back, and says what can be proved of the cause.

It looks at the figures of pools now and then, on a thread of its own or when the program tells it to; nothing runs for
an allocation. What counts of a window is its low-water, the least that was live in it: what comes and goes is not in
that, only what stays.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

from .. import errors
from .._native import library
from .._words import counted, readable
from ..devices import MOST_DEVICES, Device, device_number
from .capture import snapshot
from .comparison import Change, diff
from .model import STATES, Snapshot

_log = logging.getLogger("pyalloc")

_LOOKS = 4  # at the figures, in a window of the thread
_REMEMBERED = 4  # times `windows`: growth up to a level that was held so lately is a cache that fills again
_FIGURES = ("bytes", "blocks", "reserved")


@dataclass(frozen=True)
class Leak:
    """A pool that kept growing.

    device, pool: which. windows: in how many after each other. bytes, blocks: how much more is live than in the first
    of them, in bytes asked for. cause: "tensors" (of the kinds that `changes` has, the most grown first), "adapters"
    (of the lora pool), "second model" (weights of the sizes that were there already), or "cache": what is mapped
    grew and what is live did not, which is no leak. str() says it in words.
    """

    device: int
    pool: str
    windows: int
    bytes: int
    blocks: int
    reserved: int
    cause: str
    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        return f"<Leak ({self.cause}): {self}>"

    def __str__(self) -> str:
        pool = self.pool + (f" of device {self.device}" if self.device else "")
        grew = f"{readable(max(0, self.bytes))} in {self.blocks:,} blocks"
        if self.cause == "cache":
            return (
                f"pool {pool} has {readable(self.reserved)} more mapped than {self.windows} windows ago and no more "
                "live: kept for reuse, not a leak; torch.cuda.empty_cache() gives it back"
            )
        text = f"pool {pool} grew by {grew} in {self.windows} windows and gave nothing back: "
        if self.cause == "second model":
            text += "what came has the sizes of the weights that were there, so a further copy of the model is resident"
        elif self.cause == "adapters":
            text += "adapters are loaded and none is unloaded"
        else:
            text += "tensors that are kept"
        if self.changes:
            first = self.changes[0]
            text += f"; most of it {readable(first.bytes)} in {first.blocks:,} blocks of {first}"
        return text


class LeakWatch:
    """What watch_leaks() returns. Also a context manager, which stops it. leaks: what it has found, oldest first."""

    def __init__(
        self,
        windows: int,
        interval: float | None,
        looks: int,
        least_bytes: int,
        least_blocks: int,
        device: int | None,
        on_leak: Callable[[Leak], object] | None,
    ) -> None:
        self.leaks: list[Leak] = []
        self._windows, self._looks = windows, looks
        self._least = {"bytes": least_bytes, "blocks": least_blocks, "reserved": least_bytes}
        self._device, self._on_leak = device, on_leak
        self._pools: dict[tuple[int, str], _Series] = {}
        self._earlier: Snapshot | None = None  # of the time when a pool had grown for half of the windows
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if interval is not None:
            arguments = (interval / looks,)
            self._thread = threading.Thread(target=self._run, args=arguments, name="pyalloc-leaks", daemon=True)
            self._thread.start()

    def step(self) -> list[Leak]:
        """Looks at the pools once, and returns what it has found at the end of a window. For a program that calls it
        from its own loop (interval=None). Raises DriverError and StateError as snapshot() does.
        """
        with self._lock:
            found = self._look()
        for leak in found:
            self.leaks.append(leak)
            _log.log(logging.INFO if leak.cause == "cache" else logging.WARNING, "%s", leak)
            if self._on_leak is not None:
                self._on_leak(leak)
        return found

    def stop(self) -> None:
        """Ends the watch and its thread. Harmless when it has ended, and from on_leak."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __repr__(self) -> str:
        state = "stopped" if self._stopping.is_set() else "watching" if self._thread is not None else "by step()"
        return f"<LeakWatch ({state}): {counted(len(self.leaks), 'leak')} found>"

    def __enter__(self) -> LeakWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, seconds: float) -> None:
        while not self._stopping.wait(seconds):
            try:
                self.step()
            except errors.PyallocError as error:
                _log.warning("pyalloc no longer watches for leaks: %s", error)
                return
            except Exception:  # on_leak's
                _log.exception("pyalloc's watch for leaks: on_leak failed")

    def _look(self) -> list[Leak]:
        core = library()
        names = core.pool_names()
        devices = range(core.device_count() or MOST_DEVICES) if self._device is None else (self._device,)
        for device in devices:
            for number, name in enumerate(names):
                stats = core.pool_stats(device, number)
                if not stats["reserved"] and (device, name) not in self._pools:
                    continue  # never used
                series = self._pools.setdefault((device, name), _Series(self._windows))
                series.look({"bytes": stats["requested"], "blocks": stats["blocks"], "reserved": stats["reserved"]})
        ended = [(key, one) for key, one in self._pools.items() if one.looks >= self._looks]
        for _, series in ended:
            series.end_window()
        found = [self._leak(*key, series) for key, series in ended if series.suspect(self._least)]
        rising = max((series.rising(self._least) for _, series in ended), default=0)
        if not ended:
            return found
        if found or rising < self._windows // 2:
            self._earlier = None
        elif self._earlier is None:
            self._earlier = snapshot()
        return found

    def _leak(self, device: int, pool: str, series: _Series) -> Leak:
        live = series.live_grows(self._least)
        changes: tuple[Change, ...] = ()
        cause = "tensors" if live else "cache"
        if live and self._earlier is not None:
            now = snapshot()
            grown = diff(self._earlier, now).grew()
            changes = tuple(one for one in grown if (one.kind.device, one.kind.pool) == (device, pool))
            if pool == "weights" and _same_sizes_again(self._earlier, now, device):
                cause = "second model"
        if live and pool == "lora":
            cause = "adapters"
        leak = Leak(
            device=device,
            pool=pool,
            windows=self._windows,
            bytes=series.growth("bytes"),
            blocks=series.growth("blocks"),
            reserved=series.growth("reserved"),
            cause=cause,
            changes=changes,
        )
        series.forget()  # should it go on, it is told again after as many windows
        return leak


def watch_leaks(
    *,
    windows: int = 10,
    interval: float | None = 60.0,
    steps: int = 1,
    least_bytes: int | str = "1MiB",
    least_blocks: int = 64,
    device: Device = None,
    on_leak: Callable[[Leak], object] | None = None,
) -> LeakWatch:
    """Watches for pools that only grow, and logs a warning for each (logger "pyalloc").

        watch = pyalloc.watch_leaks()
        ...
        watch.stop()

    A pool is suspected when the least that was live in a window, in bytes or in blocks, has grown in each of `windows`
    windows after each other, by least_bytes or least_blocks or more altogether, past what it held lately, and not
    ever more slowly: what comes and goes, fills up and levels off, or fills again is not. Growth that would have ended
    after so many windows cannot be told from a leak: choose windows that are longer than the program's cycles, and more
    of them than it takes to warm up. In half of the windows' time a snapshot is taken, and one at the end; the warning
    names what grew between them, by size, tag, and call site where torch records memory history.

    interval: seconds of a window, in which the watch's daemon thread looks four times. None: no thread; the program
    calls step(), and a window is `steps` of these calls. device: None for all. on_leak: called with each Leak, on the
    thread that found it. Raises InvalidArgumentError for values that make no sense.
    """
    for name, value, least in (("windows", windows, 2), ("steps", steps, 1), ("least_blocks", least_blocks, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise errors.InvalidArgumentError(f"watch_leaks was given {name}={value!r}; expected {least} or more")
    if interval is not None and not interval > 0:
        raise errors.InvalidArgumentError(f"watch_leaks was given interval={interval!r}; expected seconds, or None")
    looks = steps if interval is None else _LOOKS
    size = max(1, library().parse_size(least_bytes))
    number = None if device is None else device_number(device)
    return LeakWatch(windows, interval, looks, size, least_blocks, number, on_leak)


@dataclass
class _Series:
    """The low-waters of one pool's windows: the last `windows` + 1, and those before them that are remembered."""

    windows: int
    looks: int = 0
    now: dict[str, int] = field(default_factory=dict)
    lows: dict[str, deque[int]] = field(default_factory=dict)

    def look(self, figures: dict[str, int]) -> None:
        self.now = {name: min(value, self.now.get(name, value)) for name, value in figures.items()}
        self.looks += 1

    def end_window(self) -> None:
        for name in _FIGURES:
            lows = self.lows.setdefault(name, deque(maxlen=(_REMEMBERED + 1) * self.windows + 1))
            lows.append(self.now[name])
        self.now, self.looks = {}, 0

    def forget(self) -> None:
        """The level that was told is where the next growth begins."""
        for lows in self.lows.values():
            level = lows[-1]
            lows.clear()
            lows.append(level)

    def growth(self, name: str) -> int:
        lows = list(self.lows[name])[-self.windows - 1 :]
        return lows[-1] - lows[0]

    def rising(self, least: dict[str, int]) -> int:
        """For how many windows, up to now, a figure has grown in each."""
        return max(self._rising(name) for name in least)

    def _rising(self, name: str) -> int:
        lows = list(self.lows[name])
        count = 0
        for before, after in reversed(list(pairwise(lows))):
            if after <= before:
                break
            count += 1
        return count

    def live_grows(self, least: dict[str, int]) -> bool:
        return self._grows("bytes", least) or self._grows("blocks", least)

    def suspect(self, least: dict[str, int]) -> bool:
        """Live memory grows; or what is mapped, while what is live does not in any window."""
        if self.live_grows(least):
            return True
        return self._grows("reserved", least) and self.growth("bytes") <= 0

    def _grows(self, name: str, least: dict[str, int]) -> bool:
        lows = list(self.lows[name])
        last, earlier = lows[-self.windows - 1 :], lows[: -self.windows - 1]
        if len(last) <= self.windows or any(after <= before for before, after in pairwise(last)):
            return False
        if last[-1] - max(last[0], *earlier, 0) < least[name]:
            return False
        middle = last[self.windows // 2]
        # Per window; growth that has halved is about to end.
        first_half, second_half = (
            (middle - last[0]) / (self.windows // 2),
            (last[-1] - middle) / (self.windows - self.windows // 2),
        )
        return second_half > first_half / 2


def _same_sizes_again(earlier: Snapshot, now: Snapshot, device: int) -> bool:
    """Whether the weights that came have the sizes of those that were there, in the same proportions. One size alone
    proves nothing.
    """
    old, new = (_weight_sizes(one, device) for one in (earlier, now))
    came = new - old
    if len(old) < 2 or set(came) != set(old):
        return False
    return all(came[size] * old.total() == old[size] * came.total() for size in old)


def _weight_sizes(snapshot: Snapshot, number: int) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for device in snapshot.devices:
        if device.ledger.device != number:
            continue
        for segment in device.segments:
            if segment.pool == "weights":
                part = slice(segment.first, segment.first + segment.blocks)
                live = zip(device.blocks.state[part], device.blocks.requested[part], strict=True)
                sizes.update(size for state, size in live if STATES[state] == "live")
    return sizes
