"""HDF5 files, as Keras writes them, read with h5py alone."""

from __future__ import annotations

import json
import sys
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def archive(
    path: Path, *files: tuple[str, bytes], compression: int = zipfile.ZIP_STORED, config: bytes = b"{}"
) -> Path:
    """Write a .keras archive with these files."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as written:
        warnings.simplefilter("ignore")  # of two files with one name
        for name, content in (("config.json", config or b"{}"), *files):
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


# ------------------------------------------------------------------------------------------------ settings


def described(folder: Path, config: object, name: str = "gru") -> Path:
    """A .keras archive of one layer with that configuration; text is written as it is."""
    with h5py.File(folder / "x.weights.h5", "w") as file:
        for key, shape in (("0", (2, 9)), ("1", (3, 9)), ("2", (2, 9))):
            file[f"layers/gru/cell/vars/{key}"] = np.ones(shape, "float32")
        file.create_group("layers/gru/vars").attrs["name"] = name
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    content = (folder / "x.weights.h5").read_bytes()
    return archive(folder / "x.keras", ("model.weights.h5", content), config=text)


def model(**entry: object) -> dict[str, object]:
    layer = {"class_name": "GRU", "config": {"name": "gru", "activation": "tanh"}, **entry}
    return {"class_name": "Functional", "config": {"layers": [layer]}}


@pytest.mark.parametrize("entry", ["module", "registered_name", "auto_map", "build_config", "custom_objects"])
def test_nothing_that_a_file_names_is_imported(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "evil_module.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for value in (
        "evil_module",
        "evil_module.GRU",
        "evil_module>GRU",
        {"AutoModel": "evil_module.GRU"},
        ["evil_module"],
    ):
        path = described(tmp_path, model(**{entry: value}))
        with suppress(WeightError):
            weights.to_canonical(weights.read_arrays(path), settings=weights.read_settings(path))
    assert not (tmp_path / "executed").exists() and "evil_module" not in sys.modules


def test_a_class_of_another_package_is_none_of_keras(tmp_path: Path):
    for entry in ({"module": "mine.layers"}, {"registered_name": "mine>GRU"}):
        path = described(tmp_path, model(**entry))
        with pytest.raises(WeightError, match=r"is a 'mine.*GRU', and no keras\.GRU"):
            weights.to_canonical(weights.read_arrays(path), settings=weights.read_settings(path))


def test_a_configuration_that_is_damaged_is_refused(tmp_path: Path):
    for config in (b"{", b"[" * 100_000):
        with pytest.raises(WeightError, match=r"config\.json is no JSON"):
            weights.read_settings(described(tmp_path, config))
    deep: dict[str, object] = {}
    for _ in range(90):
        deep = {"class_name": "Sequential", "config": {"name": "inner", "layers": [deep]}}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["model_config"] = json.dumps(deep)
    with pytest.raises(WeightError, match="nested more than 64 levels deep"):
        weights.read_settings(tmp_path / "x.h5")


NAMES = st.sampled_from(
    ["class_name", "config", "layers", "name", "gru", "Functional", "GRU", "Bidirectional", "layer"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(VALUES)
def test_any_configuration_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, config: object):
    path = described(tmp_path_factory.getbasetemp(), config)
    with suppress(WeightError):
        weights.to_canonical(weights.read_arrays(path), settings=weights.read_settings(path))
