"""Layers of the reference with drawn parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core import reference
from attention_core.draws import uniform


def filled(layer: Any, bound: float = 0.8) -> Any:
    """The layer with drawn parameters."""
    arrays = {name: uniform(name, array.shape, bound) for name, array in layer.parameters.items()}
    reference.set_parameters(layer, arrays)
    return layer


def decoding(kind: type, **options: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """A decoder with drawn parameters, encoder outputs and a state."""
    made = filled(kind(11, 4, 5, 2, memory_size=6, **options))
    return made, uniform("m", (3, 7, 6)), uniform("s", (2, 3, made.sizes["state_size"]))
