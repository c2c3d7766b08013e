"""Reading and atomic writing of regular files."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


class FileError(OSError):
    """A path cannot be read or written as a regular file."""


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

    Write access is tested without leaving a trace. Raises: FileError if it is not a regular file, or cannot be written.
    """
    target = _target(path)
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(f"{path} is read-only")
    if not target.parent.is_dir():
        raise FileError(f"{path} cannot be written: there is no folder {target.parent}")
    partial = _partial(target)
    try:
        partial.touch(exist_ok=False)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def write_file(path: str | Path, content: bytes | str) -> None:
    """Write a file atomically: a reader finds the old file or the new one, never a part.

    Raises: FileError if the path is not a regular file; OSError if it cannot be written.
    """
    target = _target(path)
    partial = _partial(target)
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _target(path: str | Path) -> Path:
    target = Path(path) if "\0" in str(path) else Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        check_regular(target, path)
    return target


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.{uuid4().hex}.partial")  # its own name: others may write the same file
