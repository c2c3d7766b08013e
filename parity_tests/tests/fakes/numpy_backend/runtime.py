"""The doorway to the reference as a backend; $FAKE_FAULT names what shall go wrong, and in which operator."""

import os
import signal
import sys
import time

import numpy as np

from attention_core.differentiation import gradients

__all__ = ["configure", "describe", "from_numpy", "to_numpy", "build", "vjp"]

FAULT, _, OPERATOR = os.environ.get("FAKE_FAULT", "").partition("@")


def configure():
    """There is nothing to switch."""
    if FAULT == "import":
        raise ImportError("this backend was told not to start")
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
    if OPERATOR and OPERATOR in repr(sorted(arguments)):
        misbehave()
    floating = {name: array for name, array in arguments.items() if array.dtype.kind == "f"}
    rest = {name: array for name, array in arguments.items() if name not in floating}
    parameters = {} if layer is None else layer.parameters
    dtype = next((array.dtype for array in floating.values()), getattr(layer, "dtype", np.dtype("float64")))

    def call(arrays):
        if layer is not None:
            layer.parameters = {name: arrays[f"parameter {name}"] for name in parameters}
        return function(layer, **{name: arrays[name] for name in floating}, **rest)

    def rounded(array):
        return array.astype(dtype) if array.dtype.kind == "f" else array

    arrays = {**floating, **{f"parameter {name}": array for name, array in parameters.items()}}
    outputs = tuple(rounded(np.asarray(output)) for output in call(arrays))
    factors = {str(position): array.astype(np.float64) for position, array in cotangents.items()}
    found = {k: rounded(v) for k, v in gradients(call, arrays, factors, stacked=False).items()} if factors else {}
    if layer is not None:
        layer.parameters = parameters
    own = {name: found[f"parameter {name}"] for name in parameters} if factors else {}
    return outputs, {name: found[name] for name in floating if name in found}, own


def misbehave():
    """Do what $FAKE_FAULT says."""
    if FAULT == "raise":
        raise ValueError("this backend was told to raise")
    if FAULT == "hang":
        time.sleep(3600)
    if FAULT == "exit":
        os._exit(3)
    if FAULT == "print":
        print("rubbish on standard output", flush=True)
        os.write(1, b"rubbish on file descriptor 1\n")
    if FAULT in ("SIGSEGV", "SIGKILL", "SIGABRT"):
        os.kill(os.getpid(), getattr(signal, FAULT))
    if FAULT == "rubbish":
        # Behind the worker's back: its frames go to the duplicate of standard output.
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\xff" * 64)
            except OSError:
                continue
        sys.stderr.flush()
