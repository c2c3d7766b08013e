"""Files of arrays: what goes in comes out, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import backends
from backends import ArchiveError, load_arrays, pack_arrays, save_arrays, unpack_arrays

ARRAYS = {
    "matrix": np.arange(6.0).reshape(2, 3).T,
    "mask": np.array([True, False]),
    "tokens": np.array([1, 2, 3], np.int32),
    "empty": np.zeros((2, 0), np.float32),
    "scalar": np.array(2.5),
}


def test_arrays_and_header_come_back(tmp_path: Path):
    path = tmp_path / "arrays.safetensors"
    save_arrays(path, ARRAYS, {"seed": 7})
    found = load_arrays(path)
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    assert unpack_arrays(path.read_bytes())[1] == {"seed": 7}
    assert not list(tmp_path.glob("*.partial"))


def test_the_same_arrays_are_the_same_bytes():
    assert len({pack_arrays(ARRAYS, {"seed": 7, "a": 1}) for _ in range(50)}) == 1


def test_every_flipped_bit_is_noticed():
    data = pack_arrays({"a": np.array([1.5, -2.0], np.float32)}, {"x": 1})
    wanted, header = unpack_arrays(data)
    unnoticed = []
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found, said = unpack_arrays(bytes(damaged))
        except ArchiveError:
            continue
        if said != header or set(found) != set(wanted) or found["a"].tobytes() != wanted["a"].tobytes():
            unnoticed.append(bit)
    assert not unnoticed


@pytest.mark.parametrize(
    "data", [b"", b"rubbish", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}", b"\x02" + b"\0" * 7 + b"[]"]
)
def test_what_is_no_archive_is_refused(data: bytes):
    with pytest.raises(ArchiveError):
        unpack_arrays(data)


def test_truncation_and_appended_bytes_are_refused():
    data = pack_arrays(ARRAYS)
    for damaged in (data[:-1], data + b"\0"):
        with pytest.raises(ArchiveError):
            unpack_arrays(damaged)


def test_a_file_of_others_is_refused_with_advice():
    with pytest.raises(ArchiveError, match=r"carries no digests: write it with backends\.save_arrays"):
        unpack_arrays(safetensors.numpy.save({"a": np.zeros(2)}))


def test_the_registry_names_all_four_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    known = backends.available()
    assert list(known)[:4] == ["torch", "tf", "jax", "mxnet"]
    monkeypatch.setitem(backends.REQUIREMENTS, "backends.torch", ("no-such-distribution",))
    reason = "no-such-distribution is not installed: pip install 'attention-parity[torch]'."
    assert backends.available()["torch"].reason == reason
    with pytest.raises(ImportError, match="no-such-distribution is not installed"):
        backends.load("torch")
    with pytest.raises(KeyError, match="no backend 'theano'; there are torch, tf, jax, mxnet"):
        backends.load("theano")


def test_a_python_that_cannot_host_a_framework_gets_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, "NEWEST_PYTHON", {"backends.mxnet": (3, 10)})
    reason = backends.available()["mxnet"].reason
    assert reason is not None and reason.startswith("mxnet runs on Python 3.10 at the newest; this is Python 3.")
