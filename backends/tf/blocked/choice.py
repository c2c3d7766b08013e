"""Whether to compute in blocks, in TensorFlow: by sizes, or by `set_path`."""

from __future__ import annotations

import math
import os

import tensorflow as tf

from attention_core.errors import check_path

__all__ = ["use_blocks", "set_path"]

forced: str | None = None


def use_blocks(queries: tf.Tensor, keys: tf.Tensor, least: int) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    A size that is unknown while a graph is traced counts as small.
    """
    if forced is not None:
        return forced == "blocked"
    shape = (*queries.shape, keys.shape[-2])
    return None not in shape and math.prod(shape) >= least


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    tf.function keeps the path with which it was traced.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)
