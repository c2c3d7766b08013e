"""Damaged files of every kind, and what reading each of them comes to.

    python -m parity_tests.tests.attack.mutations 200 pt onnx

prints for each kind how many of 200 damaged files were refused, how many read as the same arrays, how many as other
values, how many as other names, shapes or dtypes, and how many raised what is no refusal. It runs in little memory, and
ends where a try hangs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import resource
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

import backends
from backends.weights import WeightError, from_canonical, write_arrays
from parity_tests.conversion.conversion import Conversion
from parity_tests.tests.weights.arrays import Arrays, drawn
from parity_tests.translation.corpus import CorpusError, dates, read_corpus
from parity_tests.translation.model import Model, Settings, new_model, read_data
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording

MEMORY = 2**30
"""The bytes that reading may take beyond those of the libraries."""
SECONDS = 20
"""How long a try may take."""
REFUSALS = (backends.ArchiveError, WeightError, CorpusError)
HOSTILE = (
    None,
    True,
    -1,
    0,
    0.5,
    10**9,
    2**63,
    10**400,
    "",
    "__class__",
    "/dev/zero",
    "\x1b[2J",
    "\ud800",
    [],
    {},
    [[]] * 9,
)
"""What stands in headers of other people."""


class Kind(NamedTuple):
    """A kind of file: how a good one is written and read, which library that takes, and whether it has checksums."""

    write: Callable[[Path], None]
    read: Callable[[Path], Arrays]
    suffix: str = ".safetensors"
    library: str = ""
    checked: bool = False


TORCH = "torch.nn.GRU"


def converted(path: Path, source: str | None = TORCH) -> Arrays:
    """Read a file as `convert` does, up to the arrays that it would validate."""
    request = Conversion(str(path), "jax", str(path.with_name("out.safetensors")), source)
    return dict(request.read()[0].converted.arrays)


def converting(source: str | None) -> Callable[[Path], Arrays]:
    """Read a file of that source's arrays."""
    return partial(converted, source=source)


def layer(source: str, **keywords: int) -> Arrays:
    """A small layer under the source's names."""
    arrays = from_canonical("GRU", drawn("GRU"), source, **keywords)
    return {name: array.astype("float32") for name, array in arrays.items()}


def write_torch(path: Path, zipped: bool = True) -> None:
    import torch

    state = {name: torch.from_numpy(array) for name, array in layer(TORCH).items()}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)


def write_h5(path: Path, **keywords: Any) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in layer("keras.GRU", spelling=1).items():
            file.create_dataset(name, data=array, **keywords)


def write_keras(path: Path) -> None:
    weights = path.with_name("weights.h5")
    write_h5(weights)
    with zipfile.ZipFile(path, "w") as archive:  # Keras compresses nothing
        archive.writestr("metadata.json", "{}")
        archive.write(weights, "model.weights.h5")


def write_onnx(path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    arrays = layer("onnx.GRU")
    node = helper.make_node("GRU", ["X", *arrays], ["Y"], name="gru", hidden_size=4, linear_before_reset=1)
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "XY"]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    save(helper.make_model(helper.make_graph([node], "graph", *ends, tensors)), str(path))


def write_canonical(path: Path) -> None:
    config = {"input_size": 7, "hidden_size": 4, "num_layers": 1, "bidirectional": False}
    backends.save_arrays(path, drawn("GRU"), {"layer": "GRU", "config": config, "source": TORCH})


def write_model(path: Path) -> None:
    settings = Settings(split="characters", train=8, validation=2, embed_size=2, hidden_size=2, num_layers=1)
    new_model(settings, read_data(settings, dates(20)), "torch").save(path)


def read_model(path: Path) -> Arrays:
    model = Model.load(path)
    return {**model.parameters, "losses": np.array(model.losses)}


def write_recording(path: Path) -> None:
    cell = "masked_softmax-plain/float64"
    answers = {cell: Answer("ok")}
    about = {"versions": {"numpy": "1"}, "settings": {}}
    Recording("jax", "cpu", about, {cell: {"weights": np.ones(3)}}, answers, {"A": "1"}, {cell: "0" * 64}).save(path)


def read_recording(path: Path) -> Arrays:
    return {
        f"{cell}/{name}": array for cell, each in Recording.load(path).cells.items() for name, array in each.items()
    }


def write_pairs(path: Path) -> None:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in dates(20)), encoding="utf-8")


def read_pairs(path: Path) -> Arrays:
    """Read a corpus in which no line is skipped: a line that is, is reported."""
    corpus = read_corpus(path)
    if corpus.skipped:
        raise CorpusError(corpus.warning)
    return {"pairs": np.array(corpus.pairs)}


KINDS = {
    "safetensors": Kind(lambda path: safetensors.numpy.save_file(layer(TORCH), path), converted),
    "canonical": Kind(write_canonical, converting("canonical"), checked=True),
    "pt": Kind(write_torch, converted, ".pt", "torch", checked=True),
    "old pt": Kind(lambda path: write_torch(path, zipped=False), converted, ".pt", "torch"),
    "h5": Kind(write_h5, converting("keras.GRU"), ".h5", "h5py"),
    "h5 with checksums": Kind(
        lambda path: write_h5(path, fletcher32=True, compression="gzip"), converting("keras.GRU"), ".h5", "h5py"
    ),
    "keras": Kind(write_keras, converting("keras.GRU"), ".keras", "h5py", checked=True),
    "params": Kind(lambda path: write_arrays(path, layer("gluon.rnn.GRU")), converting("gluon.rnn.GRU"), ".params"),
    "onnx": Kind(write_onnx, converting("onnx.GRU"), ".onnx", "onnx"),
    "model": Kind(write_model, read_model, checked=True),
    "recording": Kind(write_recording, read_recording, checked=True),
    "corpus": Kind(write_pairs, read_pairs, ".txt"),
}


# ------------------------------------------------------------------------------------------------ damage


def damaged(data: bytes, draw: np.random.Generator) -> bytes:
    """The bytes of a file after one accident."""
    place, length = int(draw.integers(len(data))), int(draw.integers(1, 17))
    if draw.integers(2):  # what says how the rest is read stands at the front, and in archives at the end
        place = min(int(draw.integers(512)), len(data) - 1) if draw.integers(3) else max(len(data) - 1 - place % 512, 0)
    end = place + length
    match int(draw.integers(7)):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + bytes([data[place] ^ 1 << int(draw.integers(8))]) + data[place + 1 :]
        case 2:
            return data[:place] + draw.bytes(length) + data[end:]
        case 3:
            return data[:place] + data[end:]
        case 4:
            return data[:end] + data[place:]
        case 5:
            return data[:place] + bytes([int(draw.choice([0, 0x7F, 0x80, 0xFF]))]) * length + data[end:]
        case _:
            other = int(draw.integers(len(data)))
            one, two = sorted((place, other))
            length = min(length, two - one, len(data) - two)
            return (
                data[:one]
                + data[two : two + length]
                + data[one + length : two]
                + data[one : one + length]
                + data[two + length :]
            )


def forged(path: Path, draw: np.random.Generator) -> None:
    """Change or remove an entry of a file's header, and write a valid digest."""
    arrays, header = backends.load_archive(path)
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, name))
            collect(value[name])

    collect(header)
    holder, name = places[int(draw.integers(len(places)))]
    change = int(draw.integers(-2, len(HOSTILE)))
    if change == -2:
        del holder[name]
    elif change == -1 and isinstance(holder, dict):
        holder[str(HOSTILE[int(draw.integers(8, 13))])] = holder.pop(name)
    else:
        holder[name] = HOSTILE[change]
    backends.save_arrays(path, arrays, header)


# ------------------------------------------------------------------------------------------------ counting


def outcome(read: Callable[[Path], Arrays], path: Path, whole: Arrays) -> str:
    """What reading a damaged file comes to."""
    try:
        arrays = read(path)
    except REFUSALS as error:
        words = str(error)
        return "refused" if words.isprintable() and len(words) < 4000 else f"odd words: {ascii(words)[:300]}"
    except Exception:
        return traceback.format_exc()
    described = [{name: (array.shape, array.dtype) for name, array in each.items()} for each in (arrays, whole)]
    if described[0] != described[1]:
        return "described"
    same = all(arrays[name].tobytes() == whole[name].tobytes() for name in whole)
    return "same" if same else "values"


def attacked(name: str, tries: int, folder: Path, forging: bool = False) -> Counter[str]:
    """The outcomes of damaged files of a kind."""
    kind, counts = KINDS[name], Counter[str]()
    path = folder / f"x{kind.suffix}"
    kind.write(path)
    data, whole = path.read_bytes(), kind.read(path)
    for number in range(tries):
        draw = np.random.default_rng([number, *name.encode()])
        path.write_bytes(data)
        if forging:
            forged(path, draw)
        else:
            path.write_bytes(damaged(data, draw))
            if path.read_bytes() == data:
                counts["same"] += 1
                continue
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        with contextlib.redirect_stderr(io.StringIO()):
            counts[outcome(kind.read, path, whole)] += 1
        faulthandler.cancel_dump_traceback_later()
    return counts


def main(tries: str, *names: str) -> None:
    """Print the counts of each kind as JSON."""
    for library in {KINDS[name.removeprefix("forged ")].library for name in names} - {""}:
        __import__(library)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            bare = name.removeprefix("forged ")
            print(json.dumps({"kind": name, **attacked(bare, int(tries), Path(folder), bare != name)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
