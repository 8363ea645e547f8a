"""Which device a caller means."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TypeAlias

from . import errors
from ._native import library

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "int | str | torch.device | None"
MOST_DEVICES = 64  # of a process; all of them, while it is not known how many there are


def device_number(device: Device) -> int:
    """The number of a device given as one, as a torch.device or as its text, "cuda:1"; None and "cuda": torch's current
    one, 0 before CUDA is in use. Raises InvalidArgumentError for anything else, and for a device that does not exist.
    """
    torch = sys.modules.get("torch")
    number: object = device
    if isinstance(device, str) and (text := re.fullmatch(r"cuda(?::([0-9]{1,9}))?", device)):
        number = None if text[1] is None else int(text[1])
    elif torch is not None and isinstance(device, torch.device) and device.type == "cuda":
        number = device.index
    if number is None:
        return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0
    end = library().device_count() or MOST_DEVICES
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < end:
        raise errors.InvalidArgumentError(f'device {device!r}; expected 0 to {end - 1}, or as in "cuda:0"')
    return number
