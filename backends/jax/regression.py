"""Kernel regression as attention, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options
from attention_core.operators.regression import NADARAYA_WATSON
from backends.jax.attention import attention_layer
from backends.jax.module import dtype_of

__all__ = ["NadarayaWatson"]


class NadarayaWatson(nnx.Module):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
    (batch, queries, keys), each axis its size or 1; returns (predictions, weights): (batch, queries) and
    (batch, queries, keys).
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.sizes = freeze(check_options(self.specification, width=width, learned=learned))
        self.kernel = attention_layer(self.specification.inside(self.sizes)["kernel"], dtype=dtype, rngs=rngs)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention
        """
        check(
            self.specification.method("call"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        predictions, weights = self.kernel(queries[..., None], keys[..., None], values[..., None], valid_lens, mask)
        return predictions[..., 0], weights
