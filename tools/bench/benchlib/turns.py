"""In a job's process: allocators take turns in the same moments of the same machine.

Each allocator has a racer, a fresh process that stays alive. A round is one short pass of every racer, one after the
other, in an order that is turned round each time; so whatever else the machine does in these milliseconds meets all of
them. Rounds go on until the ratios are known well enough, or the time is up.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from . import allocator_setup, latency_job
from .errors import BenchError
from .ratios import known

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h: the signal at the parent's death
Samples = dict[str, dict[str, list[float]]]  # name -> allocator -> a value for each round


def run(_: str, options: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """options: allocators ("pyalloc stats_page=off": with options of its own), cases (in this order, each in the
    processes of the one before), scale; rounds at least, seconds of a case at most, least_seconds of it where there is
    a least, width (ratios.known). Answers `samples`.
    """
    racers: list[Racer] = []
    samples: Samples = {}
    try:
        for allocator in options["allocators"]:
            racers.append(Racer(allocator, library, racers))
        for case in options["cases"]:
            _race(racers, case, options, samples)
    finally:
        for racer in racers:
            racer.end()
    return {"samples": samples}


def _race(racers: list[Racer], case: str, options: dict[str, Any], samples: Samples) -> None:
    for racer in racers:
        racer.ask({"case": case, "scale": options["scale"]})  # prepares, and makes a pass that does not count
    names: list[str] = []
    began = time.monotonic()
    until = began + options["seconds"]
    for number in itertools.count():
        for racer in racers if number % 2 == 0 else reversed(racers):
            for name, ns in racer.ask({"case": None}).items():
                samples.setdefault(name, {}).setdefault(racer.allocator, []).append(ns)
                names += [name] if name not in names else []
        if number + 1 < options["rounds"] or time.monotonic() - began < options.get("least_seconds", 0):
            continue
        if time.monotonic() > until or all(known(samples[name], options["width"]) for name in names):
            return


class Racer:
    """A forked process with one allocator; it makes a pass whenever it is asked."""

    def __init__(self, allocator: str, library: ctypes.CDLL, others: list[Racer]) -> None:
        self.allocator = allocator
        questions, asking = os.pipe()
        answering, answers = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also out of a loop in native code
                for descriptor in (asking, answering, *(one for other in others for one in other._ends())):
                    os.close(descriptor)
                _serve(allocator, library, questions, answers)
                code = 0
            except BaseException:  # a forked child must not go back into the job
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(questions)
        os.close(answers)
        self._asking, self._answering = os.fdopen(asking, "w"), os.fdopen(answering)

    def _ends(self) -> tuple[int, int]:
        return self._asking.fileno(), self._answering.fileno()

    def ask(self, question: dict[str, Any]) -> dict[str, float]:
        try:
            print(json.dumps(question), file=self._asking, flush=True)
            line = self._answering.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchError(f"the process of {self.allocator} is gone; its output above says why")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.allocator}: {answer['error']}")
        return answer

    def end(self) -> None:
        for file in (self._asking, self._answering):
            try:
                file.close()
            except BrokenPipeError:
                continue  # it died before; ask() said so
        os.waitpid(self._process, 0)


def _serve(allocator: str, library: ctypes.CDLL, questions: int, answers: int) -> None:
    """Questions: a case to start, or None for the next pass of the one that runs."""
    native: latency_job.Native | None = None
    passes: Iterator[latency_job.Pass] = iter(())
    with os.fdopen(questions) as asked, os.fdopen(answers, "w") as told:
        for line in asked:
            question = json.loads(line)
            try:
                if native is None:
                    allocator_setup.prepare_device(None, "immediate")
                    name, *settings = allocator.split()
                    allocator_setup.choose(name, dict(setting.split("=") for setting in settings))
                    native = latency_job.Native(library)
                if question["case"] is not None:
                    close = getattr(passes, "close", None)
                    if close is not None:
                        close()
                    passes = latency_job.start(question["case"], native, question["scale"])
                answer: dict[str, Any] = next(passes)
            except BenchError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=told, flush=True)
