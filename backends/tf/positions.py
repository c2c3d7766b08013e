"""Positions of vectors in a sequence, in TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.positions import LEARNED_POSITIONS, POSITION_PERMUTATION, SINUSOIDAL_POSITIONS
from attention_core.sinusoids import rates
from backends.tf.masking import size
from backends.tf.module import Specified, chosen, drawn

__all__ = ["SinusoidalPositions", "LearnedPositions", "position_permutation"]


@keras.saving.register_keras_serializable(package="attention_parity")
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
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Raises:
        OptionError: an argument is outside its domain
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762
    Example:
        layer = attention.SinusoidalPositions(features)
        outputs = layer(inputs)

    In TensorFlow: inputs of any floating type, or of dtype if given.
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

    def __call__(self, inputs: tf.Tensor, *, offset: int = 0, training: bool | None = None) -> tf.Tensor:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]
        P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
        then all cosines

        Args:
            inputs: (batch, steps, features); one vector for each position
            offset (default 0): position of the first step
            training: whether dropout is active; by default the mode of the enclosing layer
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
        return super().__call__(inputs, offset=offset, **chosen(training))

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
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]

    Args:
        num_positions: positions that have a vector
        features: features of an input
        dtype: floating type of the parameters
        name: the layer's name in Keras
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_positions=num_positions, features=features, dtype=dtype, name=name)
        self.P = drawn(self, "P", (num_positions, features), features)

    def __call__(self, inputs: tf.Tensor, *, offset: int = 0, training: bool | None = None) -> tf.Tensor:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]

        Args:
            inputs: (batch, steps, features); one vector for each position
            offset (default 0): position of the first step
            training: whether dropout is active; by default the mode of the enclosing layer
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
        return super().__call__(inputs, offset=offset, **chosen(training))

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        # In a graph that knows the steps only when it runs, tf.slice refuses a step behind the last position.
        return inputs + tf.slice(self._cast(self.P.value), (offset, 0), (size(inputs, 1), self.sizes["features"]))


def position_permutation(features: int) -> tf.Tensor:
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
    return tf.reshape(tf.transpose(tf.reshape(tf.range(features, dtype=tf.int32), (-1, 2))), (-1,))
