"""Files of arrays: what is written is read, and a wrong file is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import backends
from backends import weights
from backends.weights import WeightError
from parity_tests.tests.weights.arrays import refusal, same

ARRAYS = {"a.b": np.arange(6.0).reshape(2, 3), "scalar": np.array(2.5, "float32"), "none": np.zeros((0, 4), "int64")}


@pytest.mark.parametrize("suffix", [".safetensors", ".params"])
def test_what_is_written_is_read(suffix: str, tmp_path: Path):
    weights.write_arrays(tmp_path / f"x{suffix}", ARRAYS)
    assert same(weights.read_arrays(tmp_path / f"x{suffix}"), ARRAYS)
    assert [path.name for path in tmp_path.iterdir()] == [f"x{suffix}"]


def test_anybodys_safetensors_are_read(tmp_path: Path):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "x.safetensors", {"format": "pt"})
    arrays = weights.read_arrays(tmp_path / "x.safetensors")  # whose order is safetensors'
    assert same(dict(sorted(arrays.items())), dict(sorted(ARRAYS.items())))


def test_our_own_safetensors_are_checked_by_their_digest(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    backends.save_arrays(path, ARRAYS)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightError, match="does not match its digest"):
        weights.read_arrays(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".params"])
def test_every_truncated_file_is_refused(suffix: str, tmp_path: Path):
    weights.write_arrays(tmp_path / f"x{suffix}", ARRAYS)
    data = (tmp_path / f"x{suffix}").read_bytes()
    for length in range(len(data)):
        (tmp_path / f"short{suffix}").write_bytes(data[:length])
        with pytest.raises(WeightError):
            weights.read_arrays(tmp_path / f"short{suffix}")


def test_no_changed_byte_of_a_params_file_raises_anything_else(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.params", ARRAYS)
    data = (tmp_path / "x.params").read_bytes()
    refused = 0
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            (tmp_path / "bad.params").write_bytes(data[:place] + bytes([data[place] ^ change]) + data[place + 1 :])
            try:
                weights.read_arrays(tmp_path / "bad.params")
            except WeightError:
                refused += 1
    assert refused > len(data)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.safetensors", b"no weights", "the header is wrong: "),
        ("x.params", b"no weights, but some more bytes", "the file does not have the header of an MXNet array file."),
        ("x.safetensors", b"", "the file is empty."),
        ("x.params", b"", "the file is empty."),
        ("x.pt", b"", "the file is empty."),
        ("x.onnx", b"", "the file is empty."),
        ("x.weights.h5", b"", "the file is empty."),
        ("x.keras", b"", "the file is empty."),
        (
            "x.npz",
            b"PK",
            "a file of this kind cannot be read; one can be: .safetensors, .pt, .pth, .bin, .h5, .keras, ",
        ),
        ("x.safetensors", None, "there is no such file."),
    ],
)
def test_a_wrong_file_is_refused(name: str, content: bytes | None, words: str, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert refusal(lambda: weights.read_arrays(tmp_path / name)).startswith(f"{tmp_path / name}: {words}")


def test_a_file_without_arrays_is_refused(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.params", {})
    with pytest.raises(WeightError, match="the file holds no arrays"):
        weights.read_arrays(tmp_path / "x.params")


@pytest.mark.parametrize(
    ("name", "library"), [("x.weights.h5", "h5py"), ("x.keras", "h5py"), ("x.onnx", "onnx"), ("x.pt", "torch")]
)
def test_a_missing_library_is_reported(name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / name).write_bytes(b"something")
    message = refusal(lambda: weights.read_arrays(tmp_path / name))
    assert message == f"{tmp_path / name}: this file format requires {library}. Run: pip install {library}."


@pytest.mark.parametrize(
    ("name", "words"), [("x.onnx", "cannot be written; one can be: .safetensors, .pt"), ("x.txt", "cannot be written")]
)
def test_a_kind_that_cannot_be_written_is_refused(name: str, words: str, tmp_path: Path):
    with pytest.raises(WeightError, match=words):
        weights.write_arrays(tmp_path / name, ARRAYS)
    assert not list(tmp_path.iterdir())
