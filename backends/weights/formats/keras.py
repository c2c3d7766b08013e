"""The .keras archives of Keras 3, of which only the weight file is read."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np

from backends.weights.errors import WeightError, import_library
from backends.weights.formats import h5
from backends.weights.formats.limits import Limits

WEIGHTS = "model.weights.h5"


def read(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    """The datasets of the weight file by path, after checking its checksum."""
    import_library("h5py")
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.namelist().count(WEIGHTS) != 1:
                raise WeightError(f"expected one {WEIGHTS} in the archive: save the model with Keras 3")
            limits.count(WEIGHTS, (archive.getinfo(WEIGHTS).file_size,))
            content = archive.read(WEIGHTS)
    except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, WeightError):
            raise
        raise WeightError("not an archive of Keras, or damaged") from error
    limits.counted = 0
    return h5.read(io.BytesIO(content), limits)
