"""Standard output whose reader may close it early, as `head` does: for the commands, pyalloc's and pyalloc-top's."""

import os
import sys
from collections.abc import Callable


def until_closed(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; it ends quietly, with 0, once nobody reads what it prints."""
    code = 0
    try:
        try:
            code = command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # what is still buffered goes nowhere, or the interpreter's end would report it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
