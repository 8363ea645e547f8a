"""The keyboard of a terminal: one key at a time, by name, without waiting for Enter."""

from __future__ import annotations

import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

# What terminals send for keys that are no character.
_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[7~": "home",
    "\x1b[8~": "end",
    "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn",
    "\x1bOP": "f1",
    "\x1bOR": "f3",
    "\x1bOS": "f4",
    "\x1b[11~": "f1",
    "\x1b[13~": "f3",
    "\x1b[14~": "f4",
    "\x1b[[A": "f1",
    "\x1b[[C": "f3",
    "\x1b[[D": "f4",
    "\x1b[17~": "f6",
    "\x1b[21~": "f10",
}
_SINGLE: Final = {"\r": "enter", "\n": "enter", "\t": "tab", " ": "space", "\x7f": "backspace", "\x08": "backspace"}
_REST_S: Final = 0.05  # in which the rest of a sequence follows its escape


def names(text: str) -> Iterator[str]:
    """The keys in what a terminal sent. Sequences nobody knows are left out."""
    while text:
        if text[0] != "\x1b":
            char, text = text[0], text[1:]
            if char == "\x03":
                yield "ctrl-c"
            elif char in _SINGLE or char.isprintable():
                yield _SINGLE.get(char, char)
            continue
        known = next((one for one in sorted(_SEQUENCES, key=len, reverse=True) if text.startswith(one)), None)
        if known is not None:
            yield _SEQUENCES[known]
            text = text[len(known) :]
        elif text[1:2] in ("[", "O"):
            end = next((at for at in range(2, len(text)) if text[at].isalpha() or text[at] == "~"), len(text) - 1)
            text = text[end + 1 :]
        else:
            yield "esc"
            text = text[1:]


class Keyboard:
    """The terminal of `file`, one key at a time; as it was before, when left."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._before: list[Any] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        # A terminal of another size wakes the wait, as a key does.
        self._wake_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._resize_before = signal.signal(signal.SIGWINCH, lambda *_: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, self._resize_before)
        signal.set_wakeup_fd(self._wake_before)
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def wait(self, seconds: float) -> list[str] | None:
        """The keys pressed in at most `seconds`; returns early for one, or a terminal of another size. None: the
        terminal is gone.
        """
        ready, _, _ = select.select([self._file, self._wake_read], [], [], max(0.0, seconds))
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._file not in ready:
            return []
        sent = self._read()
        if sent.endswith("\x1b") and select.select([self._file], [], [], _REST_S)[0]:
            sent += self._read()
        return list(names(sent)) if sent else None

    def _read(self) -> str:
        try:
            return os.read(self._file, 1024).decode(errors="ignore")
        except OSError:  # hung up
            return ""
