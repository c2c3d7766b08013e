"""Arrays of NumPy into TensorFlow, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

__all__ = ["from_numpy", "to_numpy"]

Lengths: TypeAlias = tf.Tensor | Sequence[int] | Sequence[Sequence[int]]
"""A length for each sequence, or one for each of its queries."""
Offset: TypeAlias = tf.Tensor | Sequence[int] | int
"""A position among the keys, of each sequence or of all."""

DEVICES = {"cpu": "/device:CPU:0", "cuda": "/device:GPU:0"}
"""TensorFlow's names of the judge's devices."""


def from_numpy(array: np.ndarray, device: str = "cpu") -> tf.Tensor:
    """Copy a NumPy array to the device."""
    with tf.device(DEVICES[device]):
        return tf.constant(array)


def to_numpy(tensor: tf.Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array."""
    return tf.convert_to_tensor(tensor).numpy().copy()


def lengths(valid_lens: Lengths | None) -> tf.Tensor | None:
    """Lengths as a tensor, which is all that Keras takes by position."""
    return tf.constant(valid_lens, tf.int64) if isinstance(valid_lens, list | tuple) else valid_lens
