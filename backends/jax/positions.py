"""Positions of vectors in a sequence, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from attention_core.errors import check
from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.jax.module import Specified, at_dtype, cast, drawn

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


class SinusoidalPositions(Specified):
    """Add the sines and cosines of its position to each input; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset]
    P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
    then all cosines

    Sines and cosines are interleaved in the paper; position_permutation returns the order that concatenates them.
    features is an even number.

    Args:
        features: features of an input
        layout (default 'interleaved'): whether sines and cosines alternate, or all sines come first: 'interleaved',
            'concatenated'
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Raises:
        OptionError: an argument is outside its domain
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762
    Example:
        layer = attention.SinusoidalPositions(features)
        outputs = layer(inputs)
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved", rngs: nnx.Rngs | None = None) -> None:
        super().__init__(features=features, layout=layout)

    def __call__(self, inputs: jax.Array, *, offset: int = 0) -> jax.Array:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]
        P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
        then all cosines

        Args:
            inputs: (batch, steps, features); one vector for each position
            offset (default 0): position of the first step
        Returns:
            outputs: (batch, steps, features); the inputs with their positions added
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
        Example:
            layer = attention.SinusoidalPositions(features)
            outputs = layer(inputs)
        """
        self._check("call", offset=offset, inputs=inputs)
        return inputs + self._table(inputs.shape[-2], offset).astype(inputs.dtype)

    # particular to JAX

    def _table(self, steps: int, offset: int) -> np.ndarray:
        """The rows of P from offset on, (steps, features)."""
        # On the host, and a constant under jit: jax has no float64 unless it is switched on.
        high, low = rates(self.sizes["features"])
        positions = (np.arange(steps) + float(offset))[:, None]
        sine, cosine = np.sin(positions * high), np.cos(positions * high)
        small_sine, small_cosine = np.sin(positions * low), np.cos(positions * low)
        pair = sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return table.reshape(steps, self.sizes["features"])


class LearnedPositions(Specified):
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]

    Args:
        num_positions: positions that have a vector
        features: features of an input
        dtype: floating type of the computation, to which floating inputs and parameters are cast; if None, that of the
            parameters, and inputs of another one are refused
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        P: (num_positions, features), one row for each position
    Raises:
        OptionError: an argument is outside its domain
    Source: Gehring et al. 2017, section 3.1, arXiv:1705.03122
    Example:
        layer = attention.LearnedPositions(num_positions, features, rngs=nnx.Rngs(0))
        outputs = layer(inputs)
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(dtype, num_positions=num_positions, features=features)
        self.P = drawn((num_positions, features), features, param_dtype, rngs)

    @at_dtype
    def __call__(self, inputs: jax.Array, *, offset: int = 0) -> jax.Array:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]

        Args:
            inputs: (batch, steps, features); one vector for each position
            offset (default 0): position of the first step
        Returns:
            outputs: (batch, steps, features); the inputs with their positions added
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
            ShapeError: a step beyond the last position
        Example:
            layer = attention.LearnedPositions(num_positions, features, rngs=nnx.Rngs(0))
            outputs = layer(inputs)
        """
        self._check("call", offset=offset, inputs=inputs)
        end = offset + inputs.shape[-2]
        return inputs + cast(self.P, inputs)[offset:end]


def position_permutation(features: int) -> jax.Array:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]

    Args:
        features: features of an input
    Returns:
        permutation: integers (features,); interleaved index of each concatenated feature, int32
    Raises:
        OptionError: an argument is outside its domain
    Source: this specification
    Example:
        permutation = attention.position_permutation(features)
    """
    check(POSITION_PERMUTATION, features=features)
    return jnp.arange(features, dtype=jnp.int32).reshape(-1, 2).T.reshape(-1)
