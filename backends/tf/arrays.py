"""Arrays of NumPy into TensorFlow, and back."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

__all__ = ["from_numpy", "to_numpy"]

DEVICES = {"cpu": "/device:CPU:0", "cuda": "/device:GPU:0"}
"""TensorFlow's names of the judge's devices."""


def from_numpy(array: np.ndarray, device: str = "cpu") -> tf.Tensor:
    """Copy a NumPy array to the device."""
    with tf.device(DEVICES[device]):
        return tf.constant(array)


def to_numpy(tensor: tf.Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array."""
    return tf.convert_to_tensor(tensor).numpy().copy()
