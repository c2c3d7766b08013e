"""What may stand at a path instead of a regular file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_circle(path: Path) -> None:
    path.symlink_to(path.with_name("back"))
    path.with_name("back").symlink_to(path)


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (Path.mkdir, "this is a folder, expected a regular file"),
    "FIFO": (os.mkfifo, "this is a FIFO, expected a regular file"),
    "socket": (make_socket, "this is a socket, expected a regular file"),
    "device": (lambda path: path.symlink_to("/dev/full"), "this is a device, expected a regular file"),
    "circle": (make_circle, "not a valid path for a file: Too many levels of symbolic links"),
}
"""How to make each, and the expected message."""
