"""Several workers at once, for what does not depend on time: replays are exact however busy the machine is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Any

from .errors import BenchError
from .workers import Workers

Task = Callable[[Workers], Any]


class Pool:
    """`size` workers, each with a thread that gives it tasks; use it in a `with` block."""

    def __init__(self, size: int) -> None:
        self._own = threading.local()
        self._started: list[Workers] = []
        self._threads = ThreadPoolExecutor(size)

    def run(self, tasks: Mapping[Any, Task], done: Callable[[Any], None]) -> dict[Any, Any]:
        """The results by key; `done(key)` is called after each. Raises the first task's BenchError, naming its key."""
        futures: dict[Future[Any], Any] = {self._threads.submit(self._one, task): key for key, task in tasks.items()}
        results = {}
        try:
            for future in as_completed(futures):
                key = futures[future]
                results[key] = future.result()
                done(key)
        except BenchError as error:
            self._threads.shutdown(wait=False, cancel_futures=True)
            raise BenchError(f"{key}: {error}") from error
        return {key: results[key] for key in tasks}

    def _one(self, task: Task) -> Any:
        workers = getattr(self._own, "workers", None)
        if workers is None:
            workers = self._own.workers = Workers()
            self._started.append(workers)
        return task(workers)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)
        for workers in self._started:
            workers.__exit__(kind, error, trace)
