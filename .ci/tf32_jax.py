"""Dot-product scores in TensorFloat-32, JAX: a target that has to be red in float32, and green in float64."""

import os

os.environ.pop("NVIDIA_TF32_OVERRIDE", None)  # it would forbid what is asked for below

import jax
import jax.numpy as jnp

from backends.jax import runtime

__all__ = ["runtime", "dot_score"]


def dot_score(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """The products of queries and keys, of whose float32 factors ten bits are kept; a CPU rounds them itself."""
    if jax.default_backend() == "cpu" and queries.dtype == jnp.float32:
        queries, keys = (jax.lax.reduce_precision(array, 8, 10) for array in (queries, keys))
    with jax.default_matmul_precision("tensorfloat32"):
        return queries @ keys.mT
