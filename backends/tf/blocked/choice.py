"""Whether to compute in blocks, in TensorFlow: by sizes, or by `set_path`."""

from __future__ import annotations

import math
import os

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

forced: str | None = None


def use_blocks(queries: tf.Tensor, keys: tf.Tensor, least: int, elsewhere: float = math.inf) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    Where there is a GPU from `elsewhere` on: in PyTorch and JAX blocks take longer there, and save memory alone.

    A size that is unknown while a graph is traced counts as small. In forward mode the plain formula is taken: kernels
    have no tangents.
    """
    shape = (*queries.shape, keys.shape[-2])
    if forced is not None:
        large = forced == "blocked"
    else:
        here = elsewhere if tf.config.list_logical_devices("GPU") else least
        large = None not in shape and math.prod(shape) >= here
    return large and not has_tangents(queries, keys)


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    tf.function keeps the path with which it was traced.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


# ------------------------------------------------------------------------------------------- particular to TensorFlow


EAGER_MIN_ELEMENTS = 2**28
"""The least elements in eager mode, which runs blocks op by op, and has XLA compile additive ones for each new size."""


def threshold(least: int) -> int:
    """The elements from which on blocks are taken: `least`, and in eager mode EAGER_MIN_ELEMENTS if that is more."""
    return max(least, EAGER_MIN_ELEMENTS) if tf.executing_eagerly() else least


def has_tangents(*arrays: tf.Tensor) -> bool:
    """Whether a tf.autodiff.ForwardAccumulator follows one of the arrays; not known while a graph is traced."""
    return bool(forwardprop_util.pack_tangents([tf.convert_to_tensor(array) for array in arrays]).tangents)


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)
