"""This process's figures, from the core itself: no stats page is needed, and none is read."""

from __future__ import annotations

import os
import sys
from typing import Any

from .. import errors
from .._native import Library, library
from ..stats import device_stats
from ..stats_page import Device, Field, Pool, Sample
from .families import Measured


def own_fields() -> dict[str, tuple[Field, ...]]:
    """The tables of figures, as a stats page of this process describes them."""
    return {table["name"]: tuple(Field(**field) for field in table["fields"]) for table in library().page_fields}


def own_process(devices: bool = True) -> Measured:
    """What holds now, exact; walks the heaps, so not for a hot loop. Devices that are not in use are left out: all in a
    child that was forked while they were. devices=False asks nothing of the driver; else raises DriverError when it
    does not answer. Raises LibraryError.
    """
    core = library()
    process: dict[str, Any] = {
        "pid": os.getpid(),
        "program": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else "",
        "version": core.version(),
        **{f"oom_{reason}": count for reason, count in core.oom()["counts"].items()},
    }
    found = (_device(core, number) for number in range(core.device_count() if devices else 0))
    return Measured(Sample(process, tuple(one for one in found if one is not None), (), ()), own_fields())


def _device(core: Library, number: int) -> Device | None:
    try:
        ledger, pools = core.ledger(number)
    except errors.StateError:  # a forked child's
        return None
    if not ledger["total"]:
        return None
    values: dict[str, Any] = {"device": number, "escapes": sum(core.escapes(number).values()), **_model(number)}
    for name, value in device_stats(number).items():
        if isinstance(value, dict):
            values |= {
                f"{name}.{kind}.{figure}": one for kind, of_kind in value.items() for figure, one in of_kind.items()
            }
        else:
            values[name] = value
    of_pools = (Pool({"device": number, "name": name, **figures}) for name, figures in pools.items())
    return Device(values | ledger, tuple(of_pools))


def _model(number: int) -> dict[str, str]:
    """The device's name and UUID, which torch knows; nothing without it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    found = torch.cuda.get_device_properties(number)
    return {"name": found.name, "uuid": f"GPU-{found.uuid}"}
