"""PyTorch's files: a state_dict, or one in a checkpoint, read with weights_only=True."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backends.weights.errors import WeightError, needed


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name."""
    torch = needed("torch")
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


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a state_dict of these arrays."""
    torch = needed("torch")
    tensors = {}
    for name, array in arrays.items():
        if array.dtype.name == "bfloat16":
            tensors[name] = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(np.array(array, order="C"))
    torch.save(tensors, path)
