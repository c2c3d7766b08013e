"""A backend for tests of the judge: the reference, rounded to the dtype's dtype. It needs no framework."""

from collections.abc import Mapping

import numpy as np

from attention_core import reference
from attention_core.reference import *  # noqa: F403 (all but what follows)

__all__ = reference.__all__


def to_additive_mask(mask, *, dtype="float32", finite=False):
    """Turn a mask into one that others add to the scores."""
    return reference.to_additive_mask(mask, dtype=dtype, finite=finite).astype(dtype)


def alibi_bias(num_heads, num_queries, num_keys, *, dtype="float32", offset=None):
    """Return a bias that falls with the distance of a key from the query."""
    return reference.alibi_bias(num_heads, num_queries, num_keys, dtype=dtype, offset=offset).astype(dtype)


def get_parameters(layer) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays."""
    return {name: array.astype(layer.dtype) for name, array in reference.get_parameters(layer).items()}


def set_parameters(layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    reference.set_parameters(layer, arrays)
