"""Positions of vectors in a sequence, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np
from mxnet.gluon import nn

from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.mxnet.arrays import check
from backends.mxnet.masking import positions
from backends.mxnet.module import Specified, Uniform, initialise

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
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Raises:
        OptionError: an argument is outside its domain
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762
    Example:
        layer = attention.SinusoidalPositions(features)
        outputs = layer(inputs)
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(
        self,
        features: int,
        *,
        layout: str = "interleaved",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(features=features, layout=layout, prefix=prefix, params=params)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
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
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """Gluon enters here; the table is made in float64."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        high, low = (np.array(part, dtype="float64", ctx=inputs.ctx) for part in rates(self.sizes["features"]))
        place = (positions(inputs.shape[-2], inputs.ctx) + offset)[:, None]
        sine, cosine, small_sine, small_cosine = (f(place * r) for r in (high, low) for f in (np.sin, np.cos))
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + table.reshape(inputs.shape[-2:]).astype(inputs.dtype)


class LearnedPositions(Specified):
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]

    Args:
        num_positions: positions that have a vector
        features: features of an input
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        P: (num_positions, features), one row for each position
    Raises:
        OptionError: an argument is outside its domain
    Source: Gehring et al. 2017, section 3.1, arXiv:1705.03122
    Example:
        layer = attention.LearnedPositions(num_positions, features)
        outputs = layer(inputs)
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(num_positions=num_positions, features=features, prefix=prefix, params=params)
        with self.name_scope():
            self.P = nn.Embedding(num_positions, features, dtype=dtype, weight_initializer=Uniform(features**-0.5))
        initialise(self)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
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
            layer = attention.LearnedPositions(num_positions, features)
            outputs = layer(inputs)
        """
        self._check("call", offset=offset, inputs=inputs)
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """Gluon enters here; of empty inputs, MXNet would write foreign memory into gradients."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        return inputs + self.P(positions(inputs.shape[-2], inputs.ctx) + offset)


def position_permutation(features: int, *, ctx: mx.Context | None = None) -> np.ndarray:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]

    Args:
        features: features of an input
        ctx: where to allocate
    Returns:
        permutation: integers (features,); interleaved index of each concatenated feature, int32
    Raises:
        OptionError: an argument is outside its domain
    Source: this specification
    Example:
        permutation = attention.position_permutation(features)
    """
    check(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype="int32", ctx=ctx).reshape(-1, 2).T.reshape(-1)
