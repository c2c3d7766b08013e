"""What layers in JAX share: their dtype, drawn parameters and drawn dropout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


def drawn(shape: tuple[int, ...], fan_in: int, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Param:
    """A parameter with values from the stream of parameters, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))


def dtype_of(layer: nnx.Module) -> jnp.dtype | None:
    """The floating type that a layer has fixed: that of its parameters, or None where it has none."""
    return next((node.dtype for _, node in nnx.iter_graph(layer) if isinstance(node, nnx.Param)), None)


def dropout_layer(rate: float, rngs: nnx.Rngs | None) -> nnx.Dropout:
    """Dropout that asks for a stream of random numbers only where it will draw from it."""
    # nnx.Dropout casts by numpy.float64, which is a float, too; and it refuses nnx.Rngs(params=0) even at rate 0.
    return nnx.Dropout(float(rate), rngs=rngs if rate > 0.0 else None)


def drops(dropout: nnx.Dropout) -> bool:
    """Whether anything is dropped."""
    return not dropout.deterministic and dropout.rate > 0.0


def drawn_mask(dropout: nnx.Dropout, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array | None:
    """A dropout mask from the layer's own stream of random numbers, or None where nothing is dropped."""
    return dropout(jnp.ones_like(like)) if drops(dropout) else None
