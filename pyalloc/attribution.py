"""Tags: who pays for which memory. What is allocated in a tag's scope is charged to it until it is freed."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from ._native import library
from ._words import counted, readable
from .scope import ThreadScope


@dataclass(frozen=True)
class Bill:
    """What a tag pays for, on all devices together; bytes are those asked for.

    bytes, blocks: not freed yet. peak_bytes, peak_blocks: most of them at once. allocations: blocks handed out since
    the tag's first scope. open_scopes: entered and not left, on any thread.
    """

    tag: str
    bytes: int
    peak_bytes: int
    blocks: int
    peak_blocks: int
    allocations: int
    open_scopes: int

    def __repr__(self) -> str:
        return (
            f"<Bill of {self.tag!r}: {readable(self.bytes)} in {counted(self.blocks, 'block')}, peak "
            f"{readable(self.peak_bytes)}, {counted(self.allocations, 'allocation')}, "
            f"{counted(self.open_scopes, 'open scope')}>"
        )


class tag(ThreadScope):
    """What this thread allocates inside is charged to `name` until it is freed, wherever and whenever that is.

        with pyalloc.tag("request-42"):
            output = model(prompt)
        print(pyalloc.bill("request-42").peak_bytes)

    name: any text of 1 to 255 bytes. Scopes nest, and the innermost tag alone pays; they can be entered again, by other
    threads too. A scope belongs to the thread that entered it, and one that is never left ends with that thread;
    autograd's backward threads are not covered. Tasks that take turns on one thread share its scopes: hold none over an
    await. Also a decorator, of functions that are done when they return. Without pyalloc's cache
    (PYTORCH_NO_CUDA_MEMORY_CACHING) nobody is charged. Raises InvalidArgumentError for a bad name, StateError when
    scopes are not left in order; they are left then.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"pyalloc.tag({self._name!r})"

    def __enter__(self) -> tag:
        self._number = library().push_tag(self._name)  # the same for every scope of the tag that is open
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        library().pop_tag(self._number)


def bill(name: str) -> Bill:
    """What the tag pays for now. Known from its first scope on; once nothing is left of a tag (no scope, no block) it
    is forgotten after some thousands of others. Raises InvalidArgumentError for a tag that is not known.
    """
    return Bill(tag=name, **library().bill(name))


def bills() -> list[Bill]:
    """Every tag that is known, oldest first."""
    return [Bill(**one) for one in library().bills()]
