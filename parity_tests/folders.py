"""Temporary folders that are removed with their owner or, if it was killed, when the next one is created."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from uuid import uuid4

from backends.files import UNIQUE, create_locked, remove_abandoned

PREFIX = "attention-parity-"


class Folder:
    """Create a folder, locked while its owner lives, and remove folders without a live owner.

    It is created in parent (default: the folder for temporary files), with that prefix in its name.
    Raises: OSError if none can be created.
    """

    def __init__(self, parent: Path | None = None, prefix: str = PREFIX) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(parent.glob(f"{prefix}{UNIQUE}"), partial(shutil.rmtree, ignore_errors=True))

        def make() -> Path:
            path = parent / f"{prefix}{uuid4().hex}"
            path.mkdir(mode=0o700)
            return path

        path, self._lock = create_locked(make)
        self.name = str(path)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *error: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder and its content."""
        shutil.rmtree(self.name, ignore_errors=True)
        os.close(self._lock)
