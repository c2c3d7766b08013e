"""Temporary folders, which go with their owner: at the latest as the next one is made, if that was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from uuid import uuid4

from backends.files import UNIQUE, owned, remove_abandoned

PREFIX = "attention-parity-"


class Folder:
    """A folder, locked as long as its owner lives; making one removes those that nobody owns any longer.

    It is made in parent, the folder for temporary files unless given, by a name with that prefix.
    Raises: OSError if none can be made.
    """

    def __init__(self, parent: Path | None = None, prefix: str = PREFIX) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(parent.glob(f"{prefix}{UNIQUE}"), partial(shutil.rmtree, ignore_errors=True))

        def make() -> Path:
            path = parent / f"{prefix}{uuid4().hex}"
            path.mkdir(mode=0o700)
            return path

        path, self._lock = owned(make)
        self.name = str(path)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *error: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.name, ignore_errors=True)
        os.close(self._lock)
