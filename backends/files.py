"""Reading and atomic writing of regular files."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4


class FileError(OSError):
    """A path cannot be read or written as a regular file."""


UNIQUE = "[0-9a-f]" * 32
"""A part of the name of what is temporary, as a pattern: the hexadecimal digits of a UUID."""

KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


def check_regular(path: Path, given: str | Path) -> None:
    """Refuse anything but regular files: reading a FIFO or device may never end, and replacing one breaks its users.

    Raises: FileError, with the original path; FileNotFoundError.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a circle of links, or a name that no file can have
        raise FileError(f"{given}: not a valid path for a file: {getattr(error, 'strerror', None) or error}") from error
    if kind != stat.S_IFREG:
        raise FileError(f"{given}: this is a {KINDS.get(kind, 'device')}, expected a regular file")


def replaceable_file(path: str | Path) -> Path:
    """The file that is written for a path: links are followed.

    Write access is tested without leaving a trace; what killed writers left is removed.
    Raises: FileError if it is not a regular file, or cannot be written.
    """
    target = _target(path)
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(f"{path} is read-only")
    if not target.parent.is_dir():
        raise FileError(f"{path} cannot be written: there is no folder {target.parent}")
    remove_abandoned(target.parent.glob(f"{glob.escape(target.name)}.{UNIQUE}.partial"), Path.unlink)
    try:
        with _partial(target):
            pass
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error
    return target


def write_file(path: str | Path, content: bytes | str) -> None:
    """Write a file atomically: a reader finds the old file or the new one, never a part.

    Raises: FileError if the path is not a regular file; OSError if it cannot be written.
    """
    target = _target(path)
    with _partial(target) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)


def _target(path: str | Path) -> Path:
    target = Path(path) if "\0" in str(path) else Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        check_regular(target, path)
    return target


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A new file beside the target, by a name of its own, since others may write the same target; gone at the end."""

    def make() -> Path:
        path = target.with_name(f"{target.name}.{uuid4().hex}.partial")
        path.touch(exist_ok=False)
        return path

    path, lock = create_locked(make)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


# ------------------------------------------------------------------------------------------------ temporary ones


def create_locked(make: Callable[[], Path]) -> tuple[Path, int]:
    """A file or folder that was made, and the descriptor that holds its lock as long as this process lives."""
    while True:
        path = make()
        try:
            lock = try_lock(path)
        except OSError:  # a file system without locks: nothing is taken for abandoned there
            lock = os.open(path, os.O_RDONLY)
        if lock is not None:  # else another process took it for abandoned before it was locked, and removes it
            return path, lock


def remove_abandoned(paths: Iterable[Path], remove: Callable[[Path], object]) -> None:
    """Remove those files or folders of this user whose owners are gone."""
    for path in paths:
        with suppress(OSError):
            lock = try_lock(path) if path.lstat().st_uid == os.getuid() else None
            if lock is not None:
                try:
                    remove(path)
                finally:
                    os.close(lock)


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock of a file or folder; None if another process does, or it is gone.

    The kernel gives the lock up as its owner ends, however that happens.
    Raises: OSError if there can be no lock.
    """
    with ExitStack() as stack, suppress(BlockingIOError, FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
            stack.pop_all()
            return descriptor
    return None
