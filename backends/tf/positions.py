"""Positions of vectors in a sequence, in TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.errors import check, check_length, check_options
from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.tf.masking import size
from backends.tf.module import Specified

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


@keras.saving.register_keras_serializable(package="attention_parity")
class SinusoidalPositions(Specified):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    With layout="concatenated" the sines come first: P[p, i] = sin(p/10000^(2i/features)), P[p, features/2 + i] =
    cos(...).

    Shapes: inputs (batch, steps, features), as is the result. Inputs of any floating type, or of dtype if given.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(
        self,
        features: int,
        *,
        layout: str = "interleaved",
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(features=features, layout=layout, dtype=dtype, name=name)

    def __call__(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.required_dtype, inputs=inputs)
        return super().__call__(inputs, offset=offset)

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        steps, features = size(inputs, 1), self.sizes["features"]
        high, low = rates(features)
        positions = (tf.range(steps, dtype=tf.float64) + float(offset))[:, None]
        sine, cosine = tf.sin(positions * high), tf.cos(positions * high)
        small_sine, small_cosine = tf.sin(positions * low), tf.cos(positions * low)
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = tf.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + tf.cast(tf.reshape(table, (steps, features)), inputs.dtype)


@keras.saving.register_keras_serializable(package="attention_parity")
class LearnedPositions(Specified):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), with at most num_positions - offset steps, as is the result.
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_positions=num_positions, features=features, dtype=dtype, name=name)
        self.P = self.uniform("P", (num_positions, features), features)

    def __call__(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.required_dtype, inputs=inputs)
        if inputs.shape[1] is not None:
            check_length(operator.title, offset + inputs.shape[1], self.sizes["num_positions"])
        return super().__call__(inputs, offset=offset)

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        # In a graph that knows the steps only when it runs, tf.slice refuses a step behind the last position.
        return inputs + tf.slice(self.P.value, (offset, 0), (size(inputs, 1), self.sizes["features"]))


def position_permutation(features: int) -> tf.Tensor:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return tf.reshape(tf.transpose(tf.reshape(tf.range(features, dtype=tf.int32), (-1, 2))), (-1,))
