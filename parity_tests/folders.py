"""Temporary folders that are removed with their owner or, if it was killed, when the next one is created."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "attention-parity-"


class Folder:
    """Create a temporary folder, locked while its owner lives, and remove folders without a live owner.

    Raises: OSError if none can be created.
    """

    def __init__(self) -> None:
        remove_abandoned()
        lock = None
        while lock is None:  # another process may take it for abandoned before it is locked
            self.name = tempfile.mkdtemp(prefix=PREFIX)
            lock = locked(self.name)
        self._lock = lock

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *error: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.name, ignore_errors=True)
        os.close(self._lock)


def locked(path: str) -> int | None:
    """Lock a folder and return the descriptor; None if it is locked by another process, or gone.

    The kernel releases the lock when its owner ends, however it ends.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            return descriptor
    os.close(descriptor)
    return None


def remove_abandoned() -> None:
    """Remove this user's folders whose owners are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = locked(str(path)) if path.lstat().st_uid == os.getuid() else None
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
