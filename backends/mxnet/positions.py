"""Positions of vectors in a sequence, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np
from mxnet.gluon import Block, nn

from attention_core.errors import check, check_length, check_options
from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.mxnet.masking import positions
from backends.mxnet.module import Uniform, initialise

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


class SinusoidalPositions(Block):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    Shapes: inputs (batch, steps, features), as is the result. With layout="concatenated", all sines come first, then
    all cosines: position_permutation is the order that turns the one into the other.
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
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, features=features, layout=layout)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """The formula, whose table is made in float64."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        high, low = (np.array(part, dtype="float64", ctx=inputs.ctx) for part in rates(self.sizes["features"]))
        place = (positions(inputs.shape[-2], inputs.ctx) + offset)[:, None]
        sine, cosine, small_sine, small_cosine = (f(place * r) for r in (high, low) for f in (np.sin, np.cos))
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + table.reshape(inputs.shape[-2:]).astype(inputs.dtype)


class LearnedPositions(Block):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), as is the result.
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
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, num_positions=num_positions, features=features)
        with self.name_scope():
            self.P = nn.Embedding(num_positions, features, dtype=dtype, weight_initializer=Uniform(features**-0.5))
        initialise(self)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.P.weight.dtype, inputs=inputs)
        check_length(operator.title, offset + inputs.shape[-2], self.sizes["num_positions"])
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """The formula; there may be no inputs: MXNet then writes foreign memory into gradients."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        return inputs + self.P(positions(inputs.shape[-2], inputs.ctx) + offset)


def position_permutation(features: int, *, ctx: mx.Context | None = None) -> np.ndarray:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype="int32", ctx=ctx).reshape(-1, 2).T.reshape(-1)
