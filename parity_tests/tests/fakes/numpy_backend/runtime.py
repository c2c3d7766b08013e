"""The doorway to the reference as a backend; $FAKE_FAULT says what shall go wrong, and where: FAULT@ARGUMENT."""

import os

import numpy as np

from attention_core.differentiation import gradients
from attention_core.errors import dtype_name
from attention_core.specification import FLOATING
from numpy_backend import faults

__all__ = ["configure", "describe", "from_numpy", "to_numpy", "build", "vjp"]

FAULT, _, ARGUMENT = os.environ.get("FAKE_FAULT", "").partition("@")


def configure():
    """There is nothing to switch."""
    if not ARGUMENT and FAULT:
        faults.START[FAULT]()
    return {}


def describe():
    """Versions, and the only device."""
    return {"framework": "NumPy", "versions": {"numpy": np.__version__}, "devices": {"cpu": "cpu"}}


def from_numpy(array, device="cpu"):
    """The array itself."""
    return array


def to_numpy(array):
    """The array itself."""
    return np.asarray(array)


def build(layer, options, dtype, device="cpu"):
    """Make a layer; it computes in float64, and its answers are rounded to dtype."""
    made = layer(**options)
    made.dtype = np.dtype(dtype)
    return made


def vjp(function, arguments, cotangents, layer=None):
    """Outputs, and gradients by complex step, rounded to the dtype of the arguments."""
    faulty = any(ARGUMENT and ARGUMENT in name for name in arguments)
    if faulty and FAULT in faults.CALL:
        faults.CALL[FAULT](arguments)
    floating = {name: array for name, array in arguments.items() if dtype_name(array.dtype) in FLOATING}
    rest = {name: array for name, array in arguments.items() if name not in floating}
    parameters = {} if layer is None else layer.parameters
    # Where nothing says what to round to, the function has to know.
    dtype = next((array.dtype for array in floating.values()), getattr(layer, "dtype", None))

    def call(arrays):
        if layer is not None:
            layer.parameters = {name: arrays[f"parameter {name}"] for name in parameters}
        return function(layer, **{name: arrays[name] for name in floating}, **rest)

    def rounded(array):
        return array.astype(dtype) if dtype and dtype_name(array.dtype) in FLOATING else array

    arrays = {**floating, **{f"parameter {name}": array for name, array in parameters.items()}}
    outputs = tuple(rounded(np.asarray(output)) for output in call(arrays))
    factors = {str(position): array.astype(np.float64) for position, array in cotangents.items()}
    found = {k: rounded(v) for k, v in gradients(call, arrays, factors, stacked=False).items()} if factors else {}
    if layer is not None:
        layer.parameters = parameters
    own = {name: found[f"parameter {name}"] for name in parameters} if factors else {}
    answer = outputs, {name: found[name] for name in floating if name in found}, own
    return faults.ANSWER[FAULT](*answer) if faulty and FAULT in faults.ANSWER else answer
