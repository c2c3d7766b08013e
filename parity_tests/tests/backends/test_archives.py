"""Files of arrays: what goes in comes out, and damage is noticed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import backends
from backends.archives import (
    DTYPES,
    LONGEST_HEADER,
    ArchiveError,
    load_archive,
    load_arrays,
    pack_arrays,
    save_arrays,
    unpack_arrays,
)
from backends.requirements import Requirements
from parity_tests.tests.places import ROOT

OPENING = b'{"__metadata__":{"attention_parity":"'
DIGEST = slice(8 + len(OPENING), 8 + len(OPENING) + 64)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

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


def test_any_reader_of_safetensors_opens_the_file():
    found = safetensors.numpy.load(pack_arrays(ARRAYS, {"seed": 7}))
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in ARRAYS.items()}


@pytest.mark.parametrize("dtype", [name for name in DTYPES.values() if name != "bfloat16"])
def test_every_dtype_comes_back_as_it_was_and_may_be_changed(dtype: str):
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    found = unpack_arrays(pack_arrays({"a": array}))[0]["a"]
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
    found[0, 0] = 1


def test_bfloat16_comes_back_as_it_was():
    array = np.array([[1.0, -2.5, np.nan], [np.inf, 3e38, 1e-40]], ml_dtypes.bfloat16)
    data = pack_arrays({"a": array, "b": np.zeros(3)})
    assert b'"a":{"dtype":"BF16","shape":[2,3]' in data
    found = unpack_arrays(data)[0]["a"]
    assert found.dtype.name == "bfloat16" and found.shape == (2, 3) and found.tobytes() == array.tobytes()


def test_the_order_of_the_arrays_is_kept():
    arrays = {name: np.zeros(2, dtype) for name, dtype in (("z", "int8"), ("a", "float64"), ("m", "bool"))}
    assert list(unpack_arrays(pack_arrays(arrays))[0]) == ["z", "a", "m"]


@pytest.mark.parametrize(
    "array", [np.array([None]), np.array(["a"]), np.zeros(2, complex), np.zeros(2, "datetime64[s]")], ids=str
)
def test_arrays_that_no_file_can_represent_are_not_written(array: np.ndarray):
    with pytest.raises(ArchiveError, match=f"a is {re.escape(array.dtype.name)}, expected one of bool, uint8"):
        pack_arrays({"a": array})


def test_a_header_that_is_too_long_or_not_finite_is_not_written():
    with pytest.raises(ArchiveError, match="the header is longer than 16,777,216 bytes"):
        pack_arrays({}, {"text": "x" * LONGEST_HEADER})
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack_arrays({}, {"number": math.inf})


def test_another_order_of_the_header_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(safetensors.numpy, "save", lambda arrays, metadata: b"\x02" + b"\0" * 7 + b"{}" + b"\0" * 99)
    with pytest.raises(ArchiveError, match="does not open its header with the metadata"):
        pack_arrays({})


# ------------------------------------------------------------------------------------------------ damage


def test_every_flipped_bit_is_refused():
    data = pack_arrays({"a": np.array([1.5, -2.0], np.float32), "mask": np.array([True])}, {"x": [1, "y"]})
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArchiveError):
            unpack_arrays(bytes(damaged))


def test_another_way_to_write_the_same_header_is_refused():
    """White space, the order of names, and the case of the digest change no array, and are changes all the same."""
    data = pack_arrays({"a": np.zeros(2)}, {"x": 1})
    digest = data[DIGEST]
    assert digest == digest.lower() and int(digest, 16)
    for changed in (
        data.replace(b'"dtype":"F64","shape":[2]', b'"shape":[2],"dtype":"F64"'),
        data.replace(b'"shape":[2],', b'"shape":[2] '),
        data.replace(digest, digest.upper()),
        data.replace(b"}} ", b"} }"),
    ):
        assert len(changed) == len(data) and changed != data
        with pytest.raises(ArchiveError):
            unpack_arrays(changed)


def test_truncation_at_every_length_and_appended_bytes_are_refused():
    data = pack_arrays({"a": np.zeros(3, np.int8)}, {"x": 1})
    for damaged in [data[:length] for length in range(len(data))] + [data + b"\0", data + b" ", data + data]:
        with pytest.raises(ArchiveError):
            unpack_arrays(damaged)


@pytest.mark.parametrize(
    "data", [b"", b"rubbish", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}", b"\x02" + b"\0" * 7 + b"[]"]
)
def test_what_is_no_archive_is_refused(data: bytes):
    with pytest.raises(ArchiveError):
        unpack_arrays(data)


def test_a_third_party_file_is_refused_with_advice(tmp_path: Path):
    path = tmp_path / "others.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(2)}, path)
    advice = r"others\.safetensors: the file has no digest: write it with backends\.save_arrays"
    with pytest.raises(ArchiveError, match=advice):
        load_arrays(path)


def test_a_third_party_file_is_not_read_to_its_end(tmp_path: Path):
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 2**40)
    with pytest.raises(ArchiveError, match="huge: the file has no digest"):
        backends.load_archive(tmp_path / "huge")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path):
    """A FIFO without a writer would block, and /dev/zero has no end; a link to either is no better."""
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "nowhere").symlink_to("nothing")
    kinds = {
        "": "a folder",
        "fifo": "a FIFO",
        "link": "a device",
        "nowhere": "no such file",
        "a\0b": "not a valid path",
    }
    for name, words in kinds.items():
        for read in (backends.regular_file, backends.load_arrays):
            with pytest.raises(ArchiveError, match=words):
                read(f"{tmp_path}/{name}")
    assert backends.regular_file(tmp_path / "file") == tmp_path / "file"


def test_a_file_of_another_kind_is_refused_by_what_it_is(tmp_path: Path):
    path = tmp_path / "file.safetensors"
    save_arrays(path, {}, {"kind": "recording"})
    with pytest.raises(ArchiveError, match="this is a 'recording', expected a 'case file'"):
        load_archive(path, "case file")
    save_arrays(path, {})
    with pytest.raises(ArchiveError, match="this is a 'file of arrays', expected a 'case file'"):
        load_archive(path, "case file")


# ------------------------------------------------------------------------------------------------ writing


def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    """In a process of its own, whose files may not grow beyond 4 KiB: the write stops half way."""
    path = tmp_path / "arrays.safetensors"
    save_arrays(path, ARRAYS)
    before = path.read_bytes()
    program = f"""
import resource, signal
import numpy as np
import backends
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    backends.save_arrays({str(path)!r}, {{"a": np.ones(4096)}})
except OSError as error:
    print(error.strerror)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    assert said.stdout == "File too large\n", said.stderr
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_killed_writer_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "arrays.safetensors"

    def half(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok: None)  # a killed process tidies nothing
    with pytest.raises(KeyboardInterrupt):
        save_arrays(path, ARRAYS)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".partial") and not path.exists()
    with pytest.raises(ArchiveError, match="it is damaged or truncated"):
        load_arrays(left)


def test_many_may_write_the_same_file_at_once(tmp_path: Path):
    path = tmp_path / "arrays.safetensors"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: save_arrays(path, {"a": np.full(9999, number)}), range(64)))
    assert len(set(load_arrays(path)["a"].tolist())) == 1 and [file.name for file in tmp_path.iterdir()] == [path.name]


# ------------------------------------------------------------------------------------------------ hostile files


def signed(entries: Any, content: Any = None, buffer: bytes = b"", length: int | None = None) -> bytes:
    """A file with a valid digest and otherwise arbitrary content, which can be forged.

    entries follow the metadata, and content stands in it; both are JSON, or an object that becomes JSON.
    """
    entries = entries if isinstance(entries, str) else json.dumps(entries)
    if content is None:
        content = {"header": {}, "names": list(json.loads(entries))}
    content = content if isinstance(content, str) else json.dumps(content)
    entries = entries.strip().removeprefix("{")
    rest = f" {json.dumps(content)[1:]}}}{',' if entries != '}' else ''}{entries}".encode() + buffer
    header = len(OPENING) + 64 + len(rest) - len(buffer)
    before = (header if length is None else length).to_bytes(8, "little") + OPENING
    return before + hashlib.sha256(before + rest).hexdigest().encode() + rest


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


FOUR = b"\0\0\x80?"
T = 2**40
HOSTILE: dict[str, bytes] = {
    "terabytes": signed({"a": entry(shape=(T,), offsets=(0, 4 * T))}, buffer=FOUR),
    "terabytes of nothing": signed({"a": entry(shape=(T, 0), offsets=(0, 0)), "b": entry(shape=(T,))}, buffer=FOUR),
    "a product that overflows": signed({"a": entry(shape=(T, T), offsets=(0, 0))}),
    "a size beyond 64 bits": signed({"a": entry(shape=(2**70,))}, buffer=FOUR),
    "a size that only just fits": signed({"a": entry(shape=(0, 2**63), offsets=(0, 0))}),
    "a number of 5000 digits": signed('{"a": {"shape": [1' + "0" * 5000 + "]}}", {}),
    "seventy axes": signed({"a": entry(shape=(1,) * 70)}, buffer=FOUR),
    "a negative size": signed({"a": entry(shape=(-1, -1))}, buffer=FOUR),
    "a negative offset": signed({"a": entry(offsets=(-4, 0))}, buffer=FOUR),
    "offsets in reverse": signed({"a": entry(offsets=(4, 0))}, buffer=FOUR),
    "arrays that overlap": signed({"a": entry(), "b": entry(offsets=(0, 4))}, buffer=FOUR),
    "a gap between arrays": signed({"a": entry(), "b": entry(offsets=(8, 12))}, buffer=3 * FOUR),
    "bytes of no array": signed({"a": entry()}, buffer=2 * FOUR),
    "a declared length of exabytes": signed({}, length=2**63),
    "a declared length of a gigabyte": signed({}, length=2**30),
    "a header of seventeen megabytes": signed({}, {"header": {"a": "x" * LONGEST_HEADER}, "names": []}),
    "a declared length too short": signed({}, length=120),
    "a declared length of zero": signed({}, length=0),
    "an unknown dtype": signed({"a": entry("F4", (8,))}, buffer=FOUR),
    "objects for a dtype": signed({"a": entry("O", (8,))}, buffer=FOUR),
    "a dtype of ten million letters": signed({"a": entry("F" * 10**7)}, buffer=FOUR),
    "a dtype that steers a terminal": signed({"a": entry("\x1b[2J")}, buffer=FOUR),
    "a number for a dtype": signed({"a": entry(32)}, buffer=FOUR),
    "a text for a shape": signed({"a": entry(shape="(1,)")}, buffer=FOUR),
    "a truth for a size": signed({"a": entry(shape=(True,))}, buffer=FOUR),
    "a fraction for a size": signed({"a": entry(shape=(1.0,))}, buffer=FOUR),
    "not a number for a size": signed('{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}', {}, FOUR),
    "a list for an array": signed({"a": []}),
    "nothing for an array": signed({"a": None}),
    "an array twice": signed(f'{{"a": {json.dumps(entry())}, "a": {json.dumps(entry())}}}', buffer=FOUR),
    "the metadata twice": signed({"__metadata__": {"attention_parity": "x"}}, {"header": {}, "names": []}),
    "deep nesting": signed('{"a": ' + "[" * 10**6 + "]" * 10**6 + "}", {"header": {}, "names": ["a"]}),
    "deep nesting in the header": signed({}, '{"names": [], "header": {"a": ' + "[" * 10**6 + "]" * 10**6 + "}}"),
    "a header of many objects": signed({}, '{"names": [], "header": [' + "{}," * 10**6 + "{}]}"),
    "a header that is no JSON": signed({}, "header"),
    "a header that is a list": signed({}, []),
    "a header of the wrong type": signed({}, {"header": [], "names": []}),
    "no header": signed({}, {"names": []}),
    "no names": signed({}, {"header": {}}),
    "names that are numbers": signed({}, {"header": {}, "names": [1, [2]]}),
    "names of absent arrays": signed({}, {"header": {}, "names": ["a"]}),
    "an array without a name": signed({"a": entry()}, {"header": {}, "names": []}, FOUR),
    "a name that is listed twice": signed({"a": entry()}, {"header": {}, "names": ["a", "a"]}, FOUR),
    "a name twice in the header": signed({}, '{"names": [], "header": {"a": 1, "a": 2}}'),
    "not a number in the header": signed({}, '{"names": [], "header": {"a": NaN}}'),
    "infinity in the header": signed({}, '{"names": [], "header": {"a": -Infinity}}'),
    "infinity in other words": signed({}, '{"names": [], "header": {"a": 1e999}}'),
    "a long number in the header": signed({}, '{"names": [], "header": {"a": 1' + "0" * 10**6 + "}}"),
}
NAMES = [
    "",
    "../a",
    "a/../b",
    "..",
    "/etc/passwd",
    "C:\\..\\a",
    "a/./b",
    "a//b",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "\u202ea",
    "a" * 256,
    "\ud800",
]


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_with_a_sentence(what: str):
    with pytest.raises(ArchiveError) as caught:
        unpack_arrays(HOSTILE[what])
    assert 20 < len(str(caught.value)) < 400 and str(caught.value).isprintable()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_odd_name_is_neither_read_nor_written(name: str):
    for attempt in (
        lambda: unpack_arrays(signed({name: entry()}, buffer=FOUR)),
        lambda: pack_arrays({name: np.ones(1)}),
    ):
        with pytest.raises(ArchiveError, match="expected 1 to 255 printable characters, without"):
            attempt()


def test_the_name_of_the_metadata_is_reserved():
    with pytest.raises(ArchiveError, match="an array is called '__metadata__'"):
        pack_arrays({"__metadata__": np.ones(1)})


def test_the_maker_of_hostile_files_can_make_a_good_one():
    """Else every hostile file might be refused for a reason of its maker's."""
    arrays, header = unpack_arrays(signed({"a/b": entry()}, {"header": {"x": 1}, "names": ["a/b"]}, FOUR))
    assert header == {"x": 1} and arrays["a/b"].dtype == np.float32 and arrays["a/b"].tolist() == [1.0]
    assert unpack_arrays(signed({})) == ({}, {})


def test_hostile_files_fill_no_memory():
    """All of them in a process that may take 512 MiB more than it has, with Python's part of it below 128 MiB."""
    program = """
import resource, sys, tracemalloc
sys.path[:0] = sys.argv[1:]
from parity_tests.tests.backends.test_archives import HOSTILE
from backends import ArchiveError, unpack_arrays
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**29, taken + 2**29))
for what, data in HOSTILE.items():
    tracemalloc.start()
    try:
        unpack_arrays(data)
    except ArchiveError:
        pass
    if tracemalloc.get_traced_memory()[1] > 2**27:
        print(what, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
print("done")
"""
    command = [sys.executable, "-c", program, str(ROOT)]
    said = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert said.stdout == "done\n", said.stdout + said.stderr


VALID = pack_arrays({"a": np.array([1.5, -2.0]), "b/c": np.array([[True], [False]])}, {"x": 1, "kind": "recording"})


@settings(deadline=None, derandomize=True, max_examples=500)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes):
    for attempt in (data, VALID[: DIGEST.start] + data, VALID + b"\0" + data):
        with pytest.raises(ArchiveError):
            unpack_arrays(attempt)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(st.data())
def test_a_random_change_is_refused_and_behind_a_new_digest_breaks_nothing(data: st.DataObject):
    """Without a new digest every change is noticed; with one, the file is refused or means what it says."""
    start = data.draw(st.integers(0, len(VALID)))
    stop = data.draw(st.integers(start, min(len(VALID), start + 8)))
    put = data.draw(
        st.binary(max_size=8) | st.sampled_from([b'"', b"{", b"[", b"9", b",", b"-1", b"e9", b'\\"', b"null"])
    )
    changed = VALID[:start] + put + VALID[stop:]
    if changed != VALID:
        with pytest.raises(ArchiveError):
            unpack_arrays(changed)
    before, after = changed[: DIGEST.start], changed[DIGEST.stop :]
    again = before + hashlib.sha256(before + after).hexdigest().encode() + after
    try:
        arrays, header = unpack_arrays(again)
    except ArchiveError:
        return
    assert isinstance(header, dict)
    found, said = unpack_arrays(pack_arrays(arrays, header))
    assert said == header and [*found] == [*arrays]
    for name, array in arrays.items():
        assert found[name].tobytes() == array.tobytes() and found[name].dtype == array.dtype


# ------------------------------------------------------------------------------------------------ the registry


def test_the_registry_lists_all_four_and_reports_missing_packages(monkeypatch: pytest.MonkeyPatch):
    known = backends.available()
    assert list(known)[:4] == ["torch", "tf", "jax", "mxnet"]
    monkeypatch.setattr(backends, "read_requirements", lambda module: Requirements(("no-such-distribution",)))
    reason = "not installed: no-such-distribution. Run: pip install no-such-distribution"
    assert backends.available()["torch"].reason == reason
    with pytest.raises(ImportError, match="not installed: no-such-distribution"):
        backends.load("torch")
    with pytest.raises(KeyError, match="no backend 'theano'; there are torch, tf, jax, mxnet"):
        backends.load("theano")


def test_a_python_that_cannot_host_a_framework_gets_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, "read_requirements", lambda module: Requirements(("mxnet",), newest_python=(3, 10)))
    reason = backends.available()["mxnet"].reason
    assert reason is not None and reason.startswith("mxnet runs on Python 3.10 at the newest; this is Python 3.")
