"""Memory snapshots that torch writes, in the pickle protocol that its viewers read.

The viewer at pytorch.org/memory_viz knows protocols up to 4, and torch.cuda.memory._dump_snapshot writes Python's
default, which is 5 from Python 3.14 on.
"""

import functools
import pickle
from typing import Any, Final

VIEWER_PROTOCOL: Final = 4


class _Pickle:
    """The module pickle, but for its default protocol."""

    def __init__(self) -> None:
        self.dump = functools.partial(pickle.dump, protocol=VIEWER_PROTOCOL)
        self.dumps = functools.partial(pickle.dumps, protocol=VIEWER_PROTOCOL)

    def __getattr__(self, name: str) -> Any:
        return getattr(pickle, name)


def write_for_viewers() -> None:
    """Makes torch's functions that write snapshots use the viewers' protocol, where Python's default is a newer one."""
    if pickle.DEFAULT_PROTOCOL <= VIEWER_PROTOCOL:
        return
    from torch.cuda import _memory_viz, memory

    modules: tuple[Any, ...] = (memory, _memory_viz)
    for module in modules:
        module.pickle = _Pickle()
