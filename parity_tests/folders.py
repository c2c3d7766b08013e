"""Temporary folders, which go with their owner: at the latest as the next one is made, if that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "attention-parity-"


class Folder:
    """A temporary folder, locked as long as its owner lives; making one removes those that nobody owns any longer.

    Raises: OSError if none can be made.
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
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.name, ignore_errors=True)
        os.close(self._lock)


def locked(path: str) -> int | None:
    """The descriptor that holds the lock of a folder; None if another process does, or it is gone.

    The kernel gives the lock up as its owner ends, however that happens.
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
