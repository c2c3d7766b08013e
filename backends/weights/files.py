"""Files of arrays: reading and writing each kind by its own rules. Nothing out of a file is executed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

import backends
from backends.weights import onnx_files, params
from backends.weights.errors import WeightError


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file by the names that they have there; the suffix says the kind.

    .safetensors (anybody's); .pt, .pth and .bin (a state_dict, read with weights_only=True); .h5 (.weights.h5 of
    Keras); .params of MXNet; .onnx (initialisers; those of a GRU or LSTM node under "<node>.W", ".R", ".B").

    Raises: WeightError if there is no such file or kind, or it is empty, truncated, or not what its suffix says.
    """
    path = Path(path)
    reader = _chosen(path, READERS, "read")
    if not path.is_file():
        raise WeightError(f"{path}: there is no such file.")
    if path.stat().st_size == 0:
        raise WeightError(f"{path}: the file is empty.")
    try:
        arrays = reader(path)
    except (WeightError, backends.ArchiveError) as error:
        raise WeightError(f"{path}: {error}.") from error
    if not arrays:
        raise WeightError(f"{path}: the file holds no arrays.")
    return arrays


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file of the kind that its suffix says: .safetensors, .pt, .pth, .bin, .h5 or .params.

    Raises: WeightError if the kind cannot be written, or not with these names.
    """
    path = Path(path)
    writer = _chosen(path, WRITERS, "written")
    partial = path.with_name(f"{uuid4().hex}.{path.name}")  # a file is there in full, or not at all
    try:
        writer(partial, {name: np.asarray(array) for name, array in arrays.items()})
        partial.replace(path)
    except (WeightError, backends.ArchiveError) as error:
        raise WeightError(f"{path}: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _chosen(path: Path, kinds: Mapping[str, Callable], done: str) -> Callable:
    for suffix, function in kinds.items():
        if path.name.endswith(suffix):
            return function
    raise WeightError(f"{path}: a file of this kind cannot be {done}; one can be: {', '.join(kinds)}.")


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WeightError(f"this kind of file needs {name}. Run: pip install {name}") from error


# ------------------------------------------------------------------------------------------------ safetensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    return backends.unpack_arrays(data)[0] if backends.has_digest(data) else backends.foreign_arrays(data)


# ------------------------------------------------------------------------------------------------ torch


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    torch = _needed("torch")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "nsupported" in str(error) and "global" in str(error).lower():
            raise WeightError(
                "the file holds Python objects beside tensors, which are not loaded, since that can run any code: save "
                "model.state_dict() instead"
            ) from error
        raise WeightError("not a file that torch.save wrote, or not all of it is there") from error
    if not isinstance(content, Mapping):
        raise WeightError(f"the file holds a {type(content).__name__}, expected a state_dict: save model.state_dict()")
    return {name: _from_torch(tensor, torch) for name, tensor in _tensors(content, torch)}


def _tensors(content: Mapping, torch: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of a state_dict, and of one that stands in a checkpoint, under "name_in_checkpoint."."""
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from _tensors(value, torch, f"{prefix}{name}.")


def _from_torch(tensor: Any, torch: Any) -> np.ndarray:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise WeightError("the file holds a sparse or quantised tensor: make it dense first")
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _write_torch(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    torch = _needed("torch")
    tensors = {}
    for name, array in arrays.items():
        if array.dtype.name == "bfloat16":
            tensors[name] = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(np.array(array, order="C"))
    torch.save(tensors, path)


# ------------------------------------------------------------------------------------------------ Keras


def _read_h5(path: Path) -> dict[str, np.ndarray]:
    h5py = _needed("h5py")
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise WeightError(f"{name} lies in another file, which is not read")
            if item.dtype.kind not in "fiub":
                raise WeightError(f"{name} is {item.dtype}, expected numbers")
            arrays[name] = item[()]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(keep)  # which follows no link out of the file
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, WeightError):
            raise
        raise WeightError("not an HDF5 file, or not all of it is there") from error
    return arrays


def _write_h5(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    h5py = _needed("h5py")
    if not all("vars/" in name for name in arrays):
        raise WeightError(
            "Keras finds a layer's variables by number: name them as it does, layers/gru/cell/vars/0 "
            "(from_canonical(..., spelling=1, prefix='layers/gru/'))"
        )
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


# ------------------------------------------------------------------------------------------------ MXNet, ONNX


def _read_params(path: Path) -> dict[str, np.ndarray]:
    return params.unpacked(path.read_bytes())


def _write_params(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    path.write_bytes(params.packed(arrays))


def _read_onnx(path: Path) -> dict[str, np.ndarray]:
    return onnx_files.read(path, _needed("onnx"))


READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".bin": _read_torch,
    ".h5": _read_h5,
    ".params": _read_params,
    ".onnx": _read_onnx,
}
WRITERS: dict[str, Callable[[Path, Mapping[str, np.ndarray]], None]] = {
    ".safetensors": backends.save_arrays,
    ".pt": _write_torch,
    ".pth": _write_torch,
    ".bin": _write_torch,
    ".h5": _write_h5,
    ".params": _write_params,
}
