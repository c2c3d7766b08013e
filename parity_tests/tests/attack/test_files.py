"""Files from outside: damaged and hostile ones of every kind are refused in a sentence, before they fill memory."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import FRAMEWORKS, weights
from backends.weights import WeightError
from parity_tests.tests.attack.mutations import KINDS, layer, write_onnx
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.places import ROOT

Count = Callable[[str, int, int], None]
FORGED = [f"forged {name}" for name in ("canonical", "model", "recording")]
LIBRARIES = list(dict.fromkeys(kind.library for kind in KINDS.values()))
OUTCOMES = {"kind", "refused", "same"}
"""What damage may come to where a file has checksums."""
UNNOTICED = OUTCOMES | {"values", "described"}


def installed(library: str) -> Any:
    """A parameter for where a library is tested: a framework in its own environment, others with the weights extra."""
    absent = bool(library) and find_spec(library) is None
    other = [pytest.mark.once, pytest.mark.skipif(absent, reason=f"{library} is not installed")] if library else []
    marks = pytest.mark.frameworks(library) if library in FRAMEWORKS else other
    return pytest.param(library, marks=marks, id=library or "none")


@pytest.mark.parametrize("library", [*map(installed, LIBRARIES)])
def test_damaged_files_are_refused_or_read_as_they_were(library: str, pytestconfig: pytest.Config, counted: Count):
    """What no checksum covers may read as other arrays; nothing raises anything else, hangs, or fills memory."""
    tries = pytestconfig.getoption("--attack")
    names = [name for name, kind in KINDS.items() if kind.library == library] + ([] if library else FORGED)
    command = [sys.executable, "-W", "ignore", "-m", "parity_tests.tests.attack.mutations", str(tries), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [count["kind"] for count in counts] == names
    for count in counts:
        name = count["kind"]
        checked = name in KINDS and KINDS[name].checked
        assert set(count) <= (OUTCOMES if checked else UNNOTICED), "\n".join(map(str, count))
        assert count["refused"] >= tries // 4 and sum(list(count.values())[1:]) == tries, count
        counted(f"damaged files ({name})", tries, count["refused"])


def test_every_kind_of_file_is_damaged_in_an_environment():
    """Where its library is missing, it is left out: a framework has its environment, core-newest the weights extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert re.search(r"^ +(\S+,)?core-newest(,\S+)?: weights$", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.M)
    assert {*LIBRARIES} <= {"", *FRAMEWORKS, *(one.partition(">")[0] for one in extras["weights"])}


# ------------------------------------------------------------------------------------------------ hostile files

BIG = 2**27
"""An axis that a small file may not claim, and that would do no harm if it were believed."""


def hostile_torch() -> dict[str, tuple[Callable[[], Any], str]]:
    """What torch.save can be given, and what a refusal says of it."""
    import torch

    nested: dict[str, Any] = {"w": torch.ones(1)}
    for _ in range(30):
        nested = {"a": nested, "b": nested}
    circle: dict[str, Any] = {"w": torch.ones(1)}
    circle["a"] = circle
    return {
        "expanded": (lambda: torch.zeros(1).expand(BIG), "with w (134217728,) its arrays take"),
        "no entries": (lambda: torch.zeros(0, 2**40), "with w (0, 1099511627776) its arrays take"),
        "shared": (lambda: nested, "its arrays take"),
        "circle": (lambda: circle, "is nested more than 64 levels deep, or refers to itself"),
        "sparse": (lambda: torch.ones(2, 2).to_sparse(), "a sparse tensor: make it dense first, with to_dense()"),
        "quantised": (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            "a quantised tensor: make it dense first, with dequantize()",
        ),
        "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor: pad it first"),
        "meta": (lambda: torch.ones(2, device="meta"), "a meta tensor, which has no values"),
        "float8": (
            lambda: torch.ones(2).to(torch.float8_e4m3fn),
            "w is torch.float8_e4m3fn, which NumPy does not have",
        ),
        "bytes": (lambda: bytearray(BIG), "Python objects beside tensors ('builtins.bytearray')"),
    }


HOSTILE_TORCH = [
    "expanded",
    "no entries",
    "shared",
    "circle",
    "sparse",
    "quantised",
    "nested",
    "meta",
    "float8",
    "bytes",
]


@pytest.mark.frameworks("torch")
@pytest.mark.parametrize("what", HOSTILE_TORCH)
def test_a_hostile_pt_file_is_refused(what: str, tmp_path: Path):
    import torch

    make, words = hostile_torch()[what]
    torch.save({"w": make()}, tmp_path / "x.pt")
    if what == "bytes":  # as a call, which torch.save does not write
        name, pickle = "x/data.pkl", b"\x80\x02}X\x01\x00\x00\x00wcbuiltins\nbytearray\nJ\x00\x00\x00\x08\x85Rs."
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
            archive.writestr(name, pickle)
    assert (tmp_path / "x.pt").stat().st_size < 10_000
    with pytest.raises(WeightError) as refused:
        weights.read_arrays(tmp_path / "x.pt")
    assert words in str(refused.value)


@pytest.mark.frameworks("torch")
def test_a_limit_is_raised_by_an_option(tmp_path: Path):
    import torch

    torch.save({"w": torch.zeros(1).expand(2**23)}, tmp_path / "x.pt")
    with pytest.raises(WeightError, match=r"Pass max_bytes=\.\.\. if you trust the file"):
        weights.read_arrays(tmp_path / "x.pt")
    assert weights.read_arrays(tmp_path / "x.pt", max_bytes=2**26)["w"].shape == (2**23,)


@pytest.mark.frameworks("torch")
def test_lazy_tensors_are_read_with_their_values(tmp_path: Path):
    import torch

    values = torch.tensor([1 + 2j, 3 - 4j])
    torch.save({"conj": values.conj(), "neg": values.clone().conj().imag}, tmp_path / "x.pt")
    arrays = weights.read_arrays(tmp_path / "x.pt")
    assert arrays["conj"].tolist() == [1 - 2j, 3 + 4j] and arrays["neg"].tolist() == [-2.0, 4.0]


def rezipped(path: Path, **options: Any) -> bytes:
    """An archive with the same files, written in another way."""
    target = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return target.getvalue()


@pytest.mark.frameworks("torch")
def test_an_archive_is_tested_against_its_checksums(tmp_path: Path):
    path = tmp_path / "x.pt"
    KINDS["pt"].write(path)
    data = path.read_bytes()
    weight = layer("torch.nn.GRU")["weight_ih_l0"].tobytes()
    assert data.count(weight) == 1
    path.write_bytes(data.replace(weight, weight[:5] + bytes([weight[5] ^ 1]) + weight[6:]))
    with pytest.raises(WeightError, match="does not match its checksum: the file is damaged"):
        weights.read_arrays(path)


@pytest.mark.frameworks("torch")
def test_a_record_that_is_called_a_folder_is_read_all_the_same(tmp_path: Path):
    """PyTorch 2.13 leaves the memory of such a record as it finds it."""
    path = tmp_path / "x.pt"
    KINDS["pt"].write(path)
    with zipfile.ZipFile(path, "a") as archive:
        for member in archive.infolist():
            member.external_attr = 0x10
        archive.comment = b"written anew"
    arrays = weights.read_arrays(path)
    assert all(np.array_equal(arrays[name], array) for name, array in layer("torch.nn.GRU").items())


@pytest.mark.frameworks("torch")
def test_a_compressed_archive_is_limited_by_its_size(tmp_path: Path):
    import torch

    path = tmp_path / "x.pt"
    torch.save({"w": torch.zeros(2**24)}, path)
    path.write_bytes(rezipped(path, compression=zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 100_000
    with pytest.raises(WeightError, match="its arrays take"):
        weights.read_arrays(path)


@pytest.mark.parametrize("how", ["gzip", "never written", "one chunk", "no entries", "many links"])
def test_a_hostile_h5_file_is_refused(how: str, tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if how == "gzip":
            file.create_dataset("w", data=np.zeros(2**23), compression="gzip")
        elif how == "no entries":
            file.create_dataset("w", (0, 2**40))
        elif how == "one chunk":
            file.create_dataset("w", (2,), maxshape=(None,), chunks=(BIG,), compression="gzip")
        elif how == "never written":
            file.create_dataset("w", (BIG,))
        else:
            group = file.create_group("g")
            group["w"] = np.ones(2)
            file["g/again"] = group
    if how == "many links":  # which HDF5 follows once
        assert list(weights.read_arrays(tmp_path / "x.h5")) == ["g/w"]
        return
    with pytest.raises(WeightError, match="its arrays take"):
        weights.read_arrays(tmp_path / "x.h5")


def chunked(path: Path, chunk: bytes, **keywords: Any) -> None:
    """Write a dataset whose only chunk is these bytes."""
    import h5py

    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("w", (8,), chunks=(8,), dtype="float32", **keywords)
        dataset.id.write_direct_chunk((0,), chunk)


@pytest.mark.parametrize(
    ("chunk", "keywords", "words"),
    [
        (zlib.compress(bytes(20)), {"compression": "gzip"}, "a chunk of w has 20 bytes, expected 32"),
        (zlib.compress(bytes(2**22)), {"compression": "gzip"}, "a chunk of w has 37 bytes, expected 32"),
        (zlib.compress(bytes(32))[:-9], {"compression": "gzip"}, "expected 32"),
        (b"no stream", {"compression": "gzip"}, "not an HDF5 file, or truncated"),
        (bytes(36), {"compression": "lzf"}, "w has an unsupported compression"),
    ],
)
def test_a_chunk_of_another_size_is_refused(chunk: bytes, keywords: dict[str, Any], words: str, tmp_path: Path):
    """HDF5 1.14 dies of some of them."""
    pytest.importorskip("h5py")
    chunked(tmp_path / "x.h5", chunk, **keywords)
    with pytest.raises(WeightError, match=words):
        weights.read_arrays(tmp_path / "x.h5")


@pytest.mark.parametrize("keywords", [{"shuffle": True, "fletcher32": True}, {"compression": 9, "chunks": (2, 5)}])
def test_a_compressed_dataset_is_read(keywords: dict[str, Any], tmp_path: Path):
    h5py = pytest.importorskip("h5py")
    array = np.arange(77.0).reshape(7, 11)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("w", data=array, **{"compression": "gzip", **keywords})
    assert np.array_equal(weights.read_arrays(tmp_path / "x.h5")["w"], array)


def params(name: bytes, shape: tuple[int, ...], data: bytes) -> bytes:
    """A file of MXNet with one array."""
    array = struct.pack(f"<Iii{len(shape)}qiii", 0xF993FACA, 0, len(shape), *shape, 1, 0, 0) + data
    return struct.pack("<QQQ", 0x112, 0, 1) + array + struct.pack("<QQ", 1, len(name)) + name


def safe(entries: dict[str, Any], data: bytes = b"") -> bytes:
    """A file of safetensors."""
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


NONE_LEFT = {"dtype": "F32", "shape": [0, 2**40], "data_offsets": [0, 0]}
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.params", params(b"w", (0, 2**40), b""), "its arrays take"),
        ("x.params", params(b"\x1b[2Jw", (1,), b"1234"), r"an array is called '\x1b[2Jw'"),
        ("x.params", params(b"w\xed\xa0\x80", (1,), b"1234"), "the name of an array is not text"),
        ("x.safetensors", safe({"w": NONE_LEFT}), "its arrays take"),
        ("x.safetensors", safe({"\x1b[2Jw": ONE}, b"1234"), r"an array is called '\x1b[2Jw'"),
        ("x.safetensors", safe({"w\ud800": ONE}, b"1234"), "the header is wrong"),
        ("x.safetensors", safe({"w": {**ONE, "dtype": "F8_E4M3"}}, b"1234"), "the header is wrong"),
    ],
    ids=range(7),
)
def test_a_hostile_file_of_bytes_is_refused(name: str, data: bytes, words: str, tmp_path: Path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(WeightError) as refused:
        weights.read_arrays(tmp_path / name)
    assert words in str(refused.value) and str(refused.value).isprintable()


TORCH_SUFFIX = pytest.param(".pt", marks=pytest.mark.frameworks("torch"))


@pytest.mark.parametrize("suffix", [".safetensors", ".params", ".onnx", TORCH_SUFFIX, ".h5", ".keras"])
def test_a_file_that_is_mostly_a_hole_is_not_read_to_its_end(suffix: str, tmp_path: Path):
    libraries = {".onnx": "onnx", ".h5": "h5py", ".keras": "h5py"}
    if suffix in libraries:
        pytest.importorskip(libraries[suffix])
    (tmp_path / f"x{suffix}").touch()
    os.truncate(tmp_path / f"x{suffix}", 2**40)
    with pytest.raises(WeightError):
        weights.read_arrays(tmp_path / f"x{suffix}")


def odd_onnx(change: str, path: Path) -> None:
    """Write a model with something odd."""
    import onnx
    from onnx import TensorProto, helper

    write_onnx(path)
    model = onnx.load(path)
    node, first = model.graph.node[0], model.graph.initializer[0]
    if change == "without R":
        node.input[2] = ""
    elif change == "activations":
        node.attribute.append(helper.make_attribute("activations", 3))
    elif change == "direction":
        node.attribute.append(helper.make_attribute("direction", b"\xff\x1b"))
    elif change == "hidden_size":
        node.attribute.append(helper.make_attribute("hidden_size", ["a"]))
    elif change == "outside":
        first.data_location = TensorProto.EXTERNAL
        first.external_data.add(key="location", value="/dev/zero")
    elif change == "name":
        first.name = node.input[1] = "\x1b[2J"
        node.name = "\x1b[2J"
    elif change == "float8":
        first.data_type = TensorProto.FLOAT8E4M3FN
        first.raw_data = first.raw_data[: len(first.raw_data) // 4]
    else:
        first.ClearField("raw_data")
        first.dims[:] = [0, 2**40]
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("without R", "gru has no recurrent weights, input 2 (R) of GRU"),
        ("activations", "gru has an invalid activations, expected STRINGS"),
        ("direction", r"gru has direction='\ufffd\x1b', expected forward"),
        ("hidden_size", "gru has an invalid hidden_size, expected INT"),
        ("outside", "'W' is stored in another file, which is not read"),
        ("name", r"an array is called '\x1b[2J'"),
        ("float8", "float8_e4m3fn, expected a numeric dtype of NumPy"),
        ("no entries", "its arrays take"),
    ],
)
def test_an_odd_onnx_model_is_refused(change: str, words: str, tmp_path: Path):
    pytest.importorskip("onnx")
    odd_onnx(change, tmp_path / "x.onnx")
    with pytest.raises(WeightError) as refused:
        weights.read_arrays(tmp_path / "x.onnx")
    assert words in str(refused.value) and str(refused.value).isprintable()


# ------------------------------------------------------------------------------------------------ what is no file


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".onnx", ".h5", ".keras", ".params"])
@pytest.mark.parametrize("what", ["FIFO", "device", "folder"])
def test_convert_refuses_what_is_no_regular_file(what: str, suffix: str, tmp_path: Path):
    path = tmp_path / f"x{suffix}"
    {"FIFO": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": os.mkdir}[what](path)
    result = invoke("convert", path, "--to", "jax", "-o", tmp_path / "out.safetensors")
    words = (
        "the folder has none of model.safetensors, " if what == "folder" else f"this is a {what}, expected a regular"
    )
    assert result.exit_code == 2 and words in squeezed(result)
