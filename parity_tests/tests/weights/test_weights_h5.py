"""HDF5 files, as Keras writes them, read with h5py alone."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from backends import weights
from backends.weights import WeightError
from parity_tests.tests.weights.arrays import same

ARRAYS = {"layers/gru/cell/vars/0": np.ones((2, 3), "float32"), "layers/gru/cell/vars/1": np.zeros((), "float64")}


def test_what_is_written_is_read(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.weights.h5", ARRAYS)
    assert same(weights.read_arrays(tmp_path / "x.weights.h5"), ARRAYS)


def test_a_truncated_file_and_one_of_another_kind_are_refused(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.weights.h5", ARRAYS)
    data = (tmp_path / "x.weights.h5").read_bytes()
    for content in (data[: len(data) // 2], data[:-10], b"no weights"):
        (tmp_path / "bad.weights.h5").write_bytes(content)
        with pytest.raises(WeightError, match="not an HDF5 file, or truncated"):
            weights.read_arrays(tmp_path / "bad.weights.h5")


def test_external_data_is_not_read(tmp_path: Path):
    (tmp_path / "secret").write_bytes(np.ones(4, "float32").tobytes())
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("vars/0", (4,), "float32", external=[(str(tmp_path / "secret"), 0, 16)])
    with pytest.raises(WeightError, match="vars/0 is stored in another file, which is not read"):
        weights.read_arrays(tmp_path / "x.h5")


def test_a_link_to_another_file_is_not_followed(tmp_path: Path):
    weights.write_arrays(tmp_path / "other.h5", ARRAYS)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["vars/0"] = np.ones(2)
        file["linked"] = h5py.ExternalLink("other.h5", "/layers")
    assert list(weights.read_arrays(tmp_path / "x.h5")) == ["vars/0"]


def test_text_is_no_weight(tmp_path: Path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["vars/0"] = "text"
    with pytest.raises(WeightError, match="vars/0 is object, expected numbers"):
        weights.read_arrays(tmp_path / "x.h5")


def test_names_that_keras_would_not_find_are_not_written(tmp_path: Path):
    with pytest.raises(
        WeightError, match=r"Keras finds a layer's variables by number: name them as it does, layers/gru"
    ):
        weights.write_arrays(tmp_path / "x.weights.h5", {"gru/kernel": np.ones(2)})


def archive(path: Path, *files: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """Write a .keras archive with these files."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as written:
        warnings.simplefilter("ignore")  # of two files with one name
        for name, content in (("config.json", b"{}"), *files):
            written.writestr(name, content)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_weights_in_an_archive_of_keras_are_read(compression: int, tmp_path: Path):
    weights.write_arrays(tmp_path / "x.weights.h5", ARRAYS)
    content = (tmp_path / "x.weights.h5").read_bytes()
    path = archive(tmp_path / "x.keras", ("model.weights.h5", content), compression=compression)
    assert same(weights.read_arrays(path), ARRAYS)


def test_an_archive_that_is_not_of_keras_is_refused(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.weights.h5", ARRAYS)
    file = "model.weights.h5", (tmp_path / "x.weights.h5").read_bytes()
    data = bytearray(archive(tmp_path / "x.keras", file).read_bytes())
    data[data.index(np.ones((2, 3), "float32").tobytes())] ^= 1
    (tmp_path / "flipped.keras").write_bytes(data)
    (tmp_path / "text.keras").write_bytes(b"no archive")
    archive(tmp_path / "none.keras")
    archive(tmp_path / "two.keras", file, file)
    archive(tmp_path / "hollow.keras", ("model.weights.h5", b"no weights"))
    archive(tmp_path / "bomb.keras", ("model.weights.h5", b"\0" * 2**25), compression=zipfile.ZIP_DEFLATED)
    for name, words in (
        ("flipped", "not an archive of Keras, or damaged"),
        ("text", "not an archive of Keras, or damaged"),
        ("none", "expected one model.weights.h5 in the archive"),
        ("two", "expected one model.weights.h5 in the archive"),
        ("hollow", "not an HDF5 file, or truncated"),
        ("bomb", "with model.weights.h5 .* its arrays take 33,554,496 bytes"),
    ):
        with pytest.raises(WeightError, match=words):
            weights.read_arrays(tmp_path / f"{name}.keras")
