"""Get and set canonical parameters, which are all that a layer of the reference stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.errors import check_parameters

__all__ = ["get_parameters", "set_parameters"]


def get_parameters(layer: Any) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays."""
    return {name: array.copy() for name, array in layer.parameters.items()}


def set_parameters(layer: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    arrays = {name: np.array(array, np.float64) for name, array in arrays.items()}
    check_parameters(layer.specification, layer.sizes, np.float64, arrays)
    layer.parameters = {name: arrays[name] for name in layer.parameters}
