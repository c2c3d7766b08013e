"""The .keras archives of Keras 3: the weight file, and the settings of the layers, of which nothing is imported."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np

from backends.weights.errors import WeightError, import_library
from backends.weights.formats import h5
from backends.weights.formats.limits import Limits
from backends.weights.settings import SavedLayer, saved_layers

WEIGHTS, CONFIG = "model.weights.h5", "config.json"


def read(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    """The datasets of the weight file by path, after checking its checksum."""
    import_library("h5py")
    content = _member(path, WEIGHTS, limits)
    limits.counted = 0
    return h5.read(io.BytesIO(content), limits)


def read_layers(path: Path, limits: Limits) -> list[SavedLayer]:
    """The layers of the model, with the paths of their arrays in the weight file."""
    configuration = h5.parse_json(CONFIG, _member(path, CONFIG, limits))
    names = h5.read_names(io.BytesIO(_member(path, WEIGHTS, limits)), limits)

    def locate(model: str, name: str) -> str | None:
        inside = f"{model}/layers/" if model else "layers/"
        places = [place for place, one in names.items() if one == name and place.startswith(inside)]
        places = [place for place in places if "/" not in place[len(inside) :]]
        return places[0] if len(places) == 1 else None

    return list(saved_layers(configuration, "", locate))


def _member(path: Path, name: str, limits: Limits) -> bytes:
    """A file of the archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.namelist().count(name) != 1:
                raise WeightError(f"expected one {name} in the archive: save the model with Keras 3")
            limits.count(name, (archive.getinfo(name).file_size,))
            return archive.read(name)
    except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, WeightError):
            raise
        raise WeightError("not an archive of Keras, or damaged") from error
