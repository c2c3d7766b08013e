"""Arrays that were kept from a system that runs no more, as a side: its inputs, and its answer to them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import backends
from backends import weights
from backends.schema import clean
from backends.weights.formats.limits import Limits
from parity_tests.models.calls import Answer, Arrays, RunOptions
from parity_tests.models.sides import Side, SideError

PARTS = ("input", "output", "gradient.input", "gradient.parameter")
"""What the names of arrays begin with."""

UNREADABLE = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What NumPy and zipfile raise for a damaged file."""


def open_model(path: str | Path) -> Side:
    """The side of a .npz or .safetensors file."""
    return KeptSide(Path(path))


class KeptSide(Side):
    """A file with arrays named input.<name> and output.<name>; gradient.input.<name> and gradient.parameter.<name> too.

    inputs are the only ones that it has an answer to. Gradients are those for the cotangents that the system was given.
    """

    framework = "kept"
    is_fixed = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.label = path.name
        arrays = _read(path)
        parts: dict[str, Arrays] = {part: {} for part in PARTS}
        for name, array in arrays.items():
            part = next((part for part in PARTS if name.startswith(f"{part}.") and name != f"{part}."), None)
            if part is None:
                raise SideError(
                    f"{path}: an array is named {clean(name)}: expected {', '.join(f'{part}.<name>' for part in PARTS)}"
                )
            parts[part][name[len(part) + 1 :]] = array
        if not parts["output"]:
            raise SideError(f"{path}: none of its arrays is named output.<name>: {', '.join(map(repr, arrays))}")
        self.inputs, self.outputs = parts["input"], parts["output"]
        self.gradients = {
            f"{part.removeprefix('gradient.')}.{name}": array
            for part in PARTS[2:]
            for name, array in parts[part].items()
        }
        floating = [array.dtype.name for array in self.outputs.values() if "float" in array.dtype.name]
        self.dtype = floating[0] if floating else next(iter(self.outputs.values())).dtype.name
        self.dtypes = (self.dtype,)

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer kept, whatever the dtype.

        Raises: SideError if the inputs are not those kept, bit by bit.
        """
        unknown, missing = sorted({*inputs} - {*self.inputs}), sorted({*self.inputs} - {*inputs})
        if unknown or missing:
            raise SideError(
                f"{self.label} was kept for the inputs {', '.join(self.inputs)}, received {', '.join(inputs)}"
            )
        other = [name for name, array in inputs.items() if not _same(array, self.inputs[name])]
        if other:
            raise SideError(
                f"{self.label} has no answer to these values of {', '.join(other)}: only to those that it was kept for"
            )
        outputs = {name: array.copy() for name, array in self.outputs.items()}
        gradients = {name: array.copy() for name, array in self.gradients.items()} if options.cotangents else {}
        return Answer(outputs, gradients)


def _read(path: Path) -> Arrays:
    """The arrays of a file, within the limits of weight files.

    Raises: SideError if it cannot be read.
    """
    if path.suffix != ".npz":
        if path.suffix != ".safetensors":
            raise SideError(f"{path}: expected a .onnx, .npz or .safetensors file")
        try:
            return weights.read_arrays(path)
        except weights.WeightError as error:
            raise SideError(str(error)) from error
    try:
        limits = Limits(backends.regular_file(path))
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                limits.count(entry.filename, (entry.file_size,))
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except backends.ArchiveError as error:
        raise SideError(str(error)) from error
    except weights.WeightError as error:
        raise SideError(f"{path}: {error}") from error
    except UNREADABLE as error:
        raise SideError(f"{path} is not a readable .npz file ({clean(error)})") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise SideError(f"{path}: {clean(name)} is {array.dtype}, expected a numeric dtype of NumPy")
    return arrays


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


__all__ = ["KeptSide", "open_model"]
