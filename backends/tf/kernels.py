"""The one way to fast paths in TensorFlow: which kernel computes a formula, by sizes or as `set_path` says.

A formula asks for a kernel by name, and imports none. A kernel imports the formula that it replaces, and registers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

Compute = TypeVar("Compute", bound=Callable[..., Any])


class Kernel(NamedTuple):
    """A function with the arguments of a formula, and the condition on them under which it computes."""

    compute: Callable[..., Any]
    serves: Callable[..., bool]


registry: dict[str, list[Kernel]] = {}
"""The kernels of each formula, by name, in the order in which they are asked."""

forced: str | None = None


def register(name: str, serves: Callable[..., bool]) -> Callable[[Compute], Compute]:
    """Register the decorated function as a kernel of a formula."""

    def add(compute: Compute) -> Compute:
        registry.setdefault(name, []).append(Kernel(compute, serves))
        return compute

    return add


def of(name: str, *arguments: Any) -> Callable[..., Any] | None:
    """Return the first kernel of a formula that serves these arguments; None if the plain formula computes."""
    for kernel in registry.get(name, ()):
        if kernel.serves(*arguments):
            return kernel.compute
    return None


def use_blocks(queries: tf.Tensor, keys: tf.Tensor, least: int, elsewhere: float = math.inf) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    Where there is a GPU from `elsewhere` on: in PyTorch and JAX blocks take longer there, and save memory alone. A size
    that is unknown while a graph is traced counts as small. In forward mode the plain formula is taken: kernels have no
    tangents.
    """
    shape, large = (*queries.shape, keys.shape[-2]), forced == "blocked"
    if forced is None:
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
