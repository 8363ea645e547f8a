"""Where compiled bridges are kept, so that each is compiled once per user and machine.

An entry is a folder named by a key over everything its library depends on. It is made under a file lock in a folder of
its own and then renamed, so a reader sees a whole entry or none; one whose digest does not fit counts as absent and is
made again. Entries are never changed.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from . import errors

_log = logging.getLogger("pyalloc")

LIBRARY: Final = "libpyalloc_bridge.so"
RECORD: Final = "build.json"


def find(key: str) -> Path | None:
    """The whole entry of this key, if there is one, also in a cache that cannot be written."""
    for folder in (_wanted_folder(), _fallback_folder()):
        entry = folder / key
        if _is_whole(entry) and (folder == _wanted_folder() or _is_private(folder)):
            return entry
    return None


def find_like(facts: dict[str, str]) -> Path | None:
    """An entry that fits in all but the compiler: for machines that run the result but cannot compile."""
    for record_path in sorted(_wanted_folder().glob(f"*/{RECORD}")):
        record = _read_record(record_path.parent)
        if record is not None and record.get("facts") == facts and _is_whole(record_path.parent):
            return record_path.parent
    return None


@contextlib.contextmanager
def making(key: str) -> Iterator[tuple[Path, Path | None]]:
    """Holds the key's lock and yields an empty folder to make the entry in, for publish(); and the entry itself when
    another process made it while this one waited. Raises BridgeError where nothing can be written.
    """
    cache = _writable_folder()
    with (
        _locked(cache / f"{key}.lock"),
        tempfile.TemporaryDirectory(prefix="making-", dir=cache, ignore_cleanup_errors=True) as scratch,
    ):
        folder = Path(scratch, key)
        folder.mkdir()
        yield folder, find(key)


def publish(key: str, folder: Path, record: dict[str, Any]) -> Path:
    """Turns a finished folder of making() into the key's entry, in place of a damaged one. Returns its path."""
    digest = hashlib.sha256((folder / LIBRARY).read_bytes()).hexdigest()
    (folder / RECORD).write_text(json.dumps({**record, "sha256": digest}, indent=1), encoding="utf-8")
    entry = folder.parent.parent / key
    if not _is_whole(entry):
        shutil.rmtree(entry, ignore_errors=True)
    try:
        folder.rename(entry)
    except OSError:
        if not _is_whole(entry):  # else a process that has no locks was quicker
            raise
    return entry


def log_path(key: str) -> Path:
    """Where the compiler's output is kept when it failed."""
    return _writable_folder() / f"{key}.log"


def _wanted_folder() -> Path:
    explicit = os.environ.get("PYALLOC_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(explicit) if explicit else Path(home, "pyalloc")


def _fallback_folder() -> Path:
    return Path(tempfile.gettempdir(), f"pyalloc-{os.getuid()}")


def _writable_folder() -> Path:
    """$PYALLOC_CACHE, $XDG_CACHE_HOME/pyalloc or ~/.cache/pyalloc, made if need be; where that cannot be written, a
    private folder of this user under the temporary directory. Raises BridgeError.
    """
    wanted, fallback = _wanted_folder(), _fallback_folder()
    if _can_write(wanted):
        return wanted
    if _can_write(fallback) and _is_private(fallback):
        _log.info("the bridge's cache is in %s, because %s cannot be written", fallback, wanted)
        return fallback
    raise errors.BridgeError(f"neither {wanted} nor {fallback} can be written; set PYALLOC_CACHE to a folder that can")


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_private(folder: Path) -> bool:
    """Whether nobody else could have put a library there: the temporary directory is shared."""
    facts = folder.lstat()
    return not folder.is_symlink() and facts.st_uid == os.getuid() and not facts.st_mode & 0o022


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock between processes. Where the file system has none, the final rename keeps entries whole."""
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _log.info("no file lock in %s (%s): going on without one", path.parent, error)
        yield


def _read_record(entry: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((entry / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _is_whole(entry: Path) -> bool:
    record = _read_record(entry)
    if record is None:
        return False
    try:
        return bool(record.get("sha256") == hashlib.sha256((entry / LIBRARY).read_bytes()).hexdigest())
    except OSError:
        return False
