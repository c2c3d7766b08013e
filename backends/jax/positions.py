"""Positions of vectors in a sequence, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_length, check_options
from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.jax.module import drawn

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


class SinusoidalPositions(nnx.Module):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    With layout="concatenated", all sines come first, then all cosines.

    Shapes: inputs (batch, steps, features), as is the result.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved", rngs: nnx.Rngs | None = None) -> None:
        self.sizes = freeze(check_options(self.specification, features=features, layout=layout))

    def __call__(self, inputs: jax.Array, *, offset: int = 0) -> jax.Array:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        return inputs + self.table(inputs.shape[-2], offset).astype(inputs.dtype)

    def table(self, steps: int, offset: int) -> np.ndarray:
        """The rows of P from offset on, (steps, features)."""
        # On the host, and a constant under jit: jax has no float64 unless it is switched on.
        high, low = rates(self.sizes["features"])
        positions = (np.arange(steps) + float(offset))[:, None]
        sine, cosine = np.sin(positions * high), np.cos(positions * high)
        small_sine, small_cosine = np.sin(positions * low), np.cos(positions * low)
        pair = sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return table.reshape(steps, self.sizes["features"])


class LearnedPositions(nnx.Module):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), as is the result; P (num_positions, features).
    """

    specification = LEARNED_POSITIONS

    def __init__(self, num_positions: int, features: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs) -> None:
        self.sizes = freeze(check_options(self.specification, num_positions=num_positions, features=features))
        self.P = drawn((num_positions, features), features, dtype, rngs)

    def __call__(self, inputs: jax.Array, *, offset: int = 0) -> jax.Array:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.P.dtype, inputs=inputs)
        end = offset + inputs.shape[-2]
        check_length(operator.title, end, self.sizes["num_positions"])
        return inputs + self.P[offset:end]


def position_permutation(features: int) -> jax.Array:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return jnp.arange(features, dtype=jnp.int32).reshape(-1, 2).T.reshape(-1)
