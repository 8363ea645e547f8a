"""Where a user's processes leave what others of that user's may look at, and the name that a process has there.

The folder is $PYALLOC_SHARED_FOLDER, else /dev/shm, and in it pyalloc-<uid>. Names are of one process for ever: process
ids repeat, also between containers that share the folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from . import errors

SHARED_MEMORY = Path("/dev/shm")


def user_folder(uid: int) -> Path:
    """The folder of a user; it may not exist."""
    return Path(os.environ.get("PYALLOC_SHARED_FOLDER") or SHARED_MEMORY) / f"pyalloc-{uid}"


def made_user_folder() -> Path:
    """The folder of this process's user, made if there is none. Raises StateError for one that is not that user's
    alone, and OSError.
    """
    folder = user_folder(os.geteuid())
    with contextlib.suppress(FileExistsError):  # by an earlier process, or by somebody else: looked at below
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise errors.StateError(f"{folder} is not a folder of user {os.geteuid()} alone (mode 0700); remove it")
    return folder


def process_name(pid: int) -> str:
    """ "<pid namespace>-<pid>-<start time>" of a process in this process's pid namespace. Raises ProcessLookupError."""
    try:
        # The command's name stands in brackets and may hold anything; the start time is the 22nd field.
        started = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        return f"{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{started}"
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError) as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
