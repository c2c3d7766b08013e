"""PyTorch's files: a state_dict, or one in a checkpoint, read with weights_only=True."""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from backends.schema import clean
from backends.weights.errors import WeightError, import_library
from backends.weights.formats.limits import Limits

KINDS = {
    "_rebuild_sparse_tensor": "a sparse tensor: make it dense first, with to_dense()",
    "_rebuild_qtensor": "a quantised tensor: make it dense first, with dequantize()",
    "_rebuild_nested_tensor": "a nested tensor: pad it first, with to_padded_tensor()",
    "_rebuild_njt": "a nested tensor: pad it first, with to_padded_tensor()",
    "_rebuild_meta_tensor_no_storage": "a meta tensor, which has no values: load the model on a device first",
    "_rebuild_wrapper_subclass": "a tensor subclass, which is not loaded: save plain tensors instead",
    "_rebuild_from_type_v2": "a tensor subclass, which is not loaded: save plain tensors instead",
}
"""Unsupported tensors, by the function that would rebuild them, with advice; some of them would exhaust memory."""
PLAIN = {
    "collections.OrderedDict",
    "collections.Counter",
    "builtins.set",
    "_codecs.encode",
    "torch.Size",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
    *(f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "parameter")),
    "torch._utils._rebuild_parameter_with_state",
}
"""The allowed names in a file of tensors and numbers, beside dtypes and storages."""


def read(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    """The tensors of a file by name."""
    torch = import_library("torch")
    try:
        content = torch.load(_check(path, limits), map_location="cpu", weights_only=True)
    except WeightError:
        raise
    except Exception as error:
        raise WeightError("not a file that torch.save wrote, or truncated") from error
    if not isinstance(content, Mapping):
        raise WeightError(f"the file holds a {type(content).__name__}, expected a state_dict: save model.state_dict()")
    return {name: _from_torch(name, tensor, torch, limits) for name, tensor in _tensors(content, torch, limits)}


def _check(path: Path, limits: Limits) -> Path | IO[bytes]:
    """Check an archive's checksums and the names in its pickles.

    PyTorch ignores the checksums and some of the offsets, so it receives an archive rebuilt from the checked records.
    """
    if not zipfile.is_zipfile(path):  # the format before PyTorch 1.6: five pickles, and the storages behind them
        with open(path, "rb") as file:
            for _ in range(5):
                _check_names(file)
        return path
    data = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(data, "w") as copy:
        names = archive.namelist()
        if len({name.lower() for name in names}) < len(names):
            raise WeightError("the archive has two files with the same name: it is damaged")
        if any(name.endswith("/constants.pkl") for name in names):
            raise WeightError("the file is a TorchScript program: save model.state_dict() instead")
        for member in archive.infolist():
            limits.count(member.filename, (member.file_size,))
        for name in names:
            try:
                content = archive.read(name)
            except zipfile.BadZipFile as error:
                raise WeightError(f"{name} in the archive does not match its checksum: the file is damaged") from error
            if name.endswith("/data.pkl"):
                _check_names(io.BytesIO(content))
            copy.writestr(name, content)
    limits.counted = 0
    data.seek(0)
    return data


def _check_names(file: IO[bytes]) -> None:
    """Refuse anything but plain tensors before it is created."""
    for code, argument, _ in pickletools.genops(file):
        if code.name in ("GLOBAL", "INST"):
            name = ".".join(str(argument).split(" "))
            module, _, short = name.rpartition(".")
            if short in KINDS:
                raise WeightError(f"the file holds {KINDS[short]}")
            if name not in PLAIN and (module not in ("torch", "torch.cuda") or short.endswith("Tensor")):
                raise WeightError(
                    f"the file holds Python objects beside tensors ({clean(name)}), which are not loaded, since that "
                    "can run any code: save model.state_dict() instead"
                )


def _tensors(
    content: Mapping, torch: Any, limits: Limits, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """The tensors of a state_dict, and of those nested in a checkpoint, under "name_in_checkpoint."."""
    limits.enter(prefix, depth)
    for name, value in content.items():
        if isinstance(value, (torch.Tensor, Mapping)) and not isinstance(name, (str, int)):
            raise WeightError(f"the key of a tensor is a {type(name).__name__}, expected a string")
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from _tensors(value, torch, limits, f"{prefix}{name}.", depth + 1)


def _from_torch(name: str, tensor: Any, torch: Any, limits: Limits) -> np.ndarray:
    limits.count(name, tensor.shape, tensor.element_size())
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise WeightError(
            f"{name} is not a dense tensor with values: convert it first, with to_dense() or dequantize()"
        )
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    try:
        return tensor.numpy()
    except TypeError as error:
        raise WeightError(
            f"{name} is {tensor.dtype}, which NumPy does not have: cast it to torch.float32 first"
        ) from error


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a state_dict of these arrays."""
    torch = import_library("torch")
    tensors = {}
    for name, array in arrays.items():
        if array.dtype.name == "bfloat16":
            tensors[name] = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(np.array(array, order="C"))
    torch.save(tensors, path)
