"""NumPy functions as sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parity_tests.models.calls import Answer, RunOptions, flatten
from parity_tests.models.sides import Side, arguments_of, describe


def open_model(function: Callable[..., Any]) -> Side:
    """The side of a function."""
    return NumpySide(function)


class NumpySide(Side):
    """A function of NumPy arrays. It has no parameters and no gradients."""

    framework = "numpy"
    dtype = "float64"

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it; the call of the function is all that is recorded."""
        given = {name: _cast(array, options.dtype) for name, array in inputs.items()}
        before = {name: array.copy() for name, array in given.items()}
        title = self.label or describe(self.function)
        positional, keywords = arguments_of(self.function, given, title)
        names = {**{str(place): array for place, array in enumerate(positional)}, **keywords}
        index = -1 if options.recorder is None else options.recorder.enter("", title, names)
        outputs, unread = flatten(self.function(*positional, **keywords), _is_array, np.array)
        if options.recorder is not None:
            options.recorder.leave(index, outputs)
        changed = tuple(name for name, array in given.items() if array.tobytes() != before[name].tobytes())
        return Answer(outputs, {}, {}, tuple(unread), changed)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """A copy; of floating numbers in the dtype."""
    return np.array(array, dtype if np.issubdtype(array.dtype, np.floating) else array.dtype)


__all__ = ["NumpySide", "open_model"]
