"""Positions of vectors in a sequence, in TensorFlow."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.positions import (
    ALIBI_BIAS,
    LEARNED_POSITIONS,
    POSITION_PERMUTATION,
    RELATIVE_BIAS,
    RELATIVE_BUCKETS,
    ROTARY_POSITIONS,
    SINUSOIDAL_POSITIONS,
)
from attention_core.relative import bounds, slopes
from attention_core.sinusoids import rates
from backends.tf.arrays import Offset
from backends.tf.masking import distances, precise, query_positions, size
from backends.tf.module import Specified, draw_parameter, mode_of

__all__ = [
    "SinusoidalPositions",
    "LearnedPositions",
    "RotaryPositions",
    "position_permutation",
    "alibi_bias",
    "relative_buckets",
    "relative_bias",
]


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
        super().__init__(locals())

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
        """
        self._check("call", offset=offset, inputs=inputs)
        return super().__call__(inputs, offset=offset, **mode_of(training))

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        return self._add(inputs, tf.range(size(inputs, 1)) + offset)

    def _add(self, inputs: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Add the vectors of these positions."""
        features = self.sizes["features"]
        pair = sine_and_cosine(tf.cast(positions, tf.float64)[:, None], *rates(features))
        table = tf.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + tf.cast(tf.reshape(table, (size(positions, 0), features)), inputs.dtype)


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
        super().__init__(locals())
        self.P = draw_parameter(self, "P", (num_positions, features), features)

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
            ShapeError: a step beyond the last position
        """
        self._check("call", offset=offset, inputs=inputs)
        return super().__call__(inputs, offset=offset, **mode_of(training))

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        # In a graph that knows the steps only when it runs, tf.slice refuses a step behind the last position.
        return inputs + tf.slice(self._cast(self.P.value), (offset, 0), (size(inputs, 1), self.sizes["features"]))

    def _add(self, inputs: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Add the vectors of these positions."""
        return inputs + tf.gather(self._cast(self.P.value), positions)


@keras.saving.register_keras_serializable(package="attention_parity")
class RotaryPositions(Specified):
    """Rotate pairs of features by an angle proportional to the position; it has no parameters.

    outputs[t, 2i] = inputs[t, 2i] cos(a) - inputs[t, 2i + 1] sin(a), outputs[t, 2i + 1] = inputs[t, 2i] sin(a) +
    inputs[t, 2i + 1] cos(a)
    a = (t + offset[b]) base^(-2i/features)
    concatenated: features i and i + features/2 in place of 2i and 2i + 1

    The inner product of a rotated query and a rotated key depends on the difference of their positions alone.
    position_permutation converts between the layouts. features is an even number. Angles are exact for large positions,
    and float32 at least in half precision.

    Args:
        features: features of an input
        layout (default 'interleaved'): whether a pair is two neighbours, or one feature of each half: 'interleaved',
            'concatenated'
        base (default 10000.0): highest rate over the limit of the lowest
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Source: Su et al. 2021, section 3.2, arXiv:2104.09864
    Example:
        layer = attention.RotaryPositions(features)
        outputs = layer(inputs)

    In TensorFlow: inputs of any floating type, or of dtype if given.
    """

    specification = ROTARY_POSITIONS

    def __init__(
        self,
        features: int,
        *,
        layout: str = "interleaved",
        base: float = 10000.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())

    def __call__(self, inputs: tf.Tensor, *, offset: Offset | None = None, training: bool | None = None) -> tf.Tensor:
        """Rotate the inputs, whose first step is at position offset.

        outputs[t, 2i] = inputs[t, 2i] cos(a) - inputs[t, 2i + 1] sin(a), outputs[t, 2i + 1] = inputs[t, 2i] sin(a) +
        inputs[t, 2i + 1] cos(a)
        a = (t + offset[b]) base^(-2i/features)
        concatenated: features i and i + features/2 in place of 2i and 2i + 1

        Args:
            inputs: (batch, [heads], steps, features); one vector for each position
            offset (default None): integers (batch,), a list, or one number; position of the first step; 0 if None; may
                be negative
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, [heads], steps, features); the inputs, rotated
        """
        self._check("call", inputs=inputs, offset=offset)
        return super().__call__(inputs, offset=offset, **mode_of(training))

    def call(self, inputs: tf.Tensor, *, offset: Offset | None = None) -> tf.Tensor:
        """Rotate the inputs from position offset on; Keras enters here."""
        return self._rotate(inputs, offset)

    def _rotate(self, inputs: tf.Tensor, offset: Offset | None) -> tf.Tensor:
        """Rotate the inputs from position offset on."""
        wide = precise(inputs)
        high, low = rates(self.sizes["features"], float(self.sizes["base"]))
        positions = tf.cast(query_positions(size(inputs, -2), offset), tf.float64)
        sine, cosine = (tf.cast(part, wide.dtype) for part in sine_and_cosine(positions, high, low))
        if inputs.shape.rank == 4:
            sine, cosine = sine[:, None], cosine[:, None]
        axis, parts = (-1, (len(high), 2)) if self.sizes["layout"] == "interleaved" else (-2, (2, len(high)))
        shape = [size(inputs, axis) for axis in range(inputs.shape.rank)]
        first, second = tf.unstack(tf.reshape(wide, (*shape[:-1], *parts)), axis=axis)
        rotated = tf.stack([first * cosine - second * sine, first * sine + second * cosine], axis=axis)
        return tf.cast(tf.reshape(rotated, shape), inputs.dtype)


def position_permutation(features: int) -> tf.Tensor:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]

    Args:
        features: features of an input
    Returns:
        permutation: integers (features,); interleaved index of each concatenated feature, int32
    Source: this specification
    Example:
        permutation = attention.position_permutation(features)
    """
    check(POSITION_PERMUTATION, features=features)
    return tf.reshape(tf.transpose(tf.reshape(tf.range(features, dtype=tf.int32), (-1, 2))), (-1,))


def alibi_bias(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    dtype: str = "float32",
    offset: Offset | None = None,
) -> tf.Tensor:
    """Return a bias that falls with the distance of a key from the query, at another rate in each head.

    bias[b, h, i, j] = -slope[h] |j - (i + offset[b])|
    slope[h] = 2^(-8(h + 1)/num_heads) if num_heads is a power of two
    otherwise the slopes of p heads, p being the next lower power of two, and then slopes 0, 2, 4, ... of 2p heads

    dtype is that of the scores. The paper's attention is causal: with causal_mask, given the same offset, the bias is
    the paper's. Keys after the query fall alike.

    Args:
        num_heads: number of heads
        num_queries: number of queries
        num_keys: number of keys
        dtype (default 'float32'): floating type of the result: 'float64', 'float32', 'float16', 'bfloat16'
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        bias: (batch, heads, queries, keys), broadcast; numbers to add to the scores; the same for every sequence if
            offset is
    Source: Press et al. 2022, section 3, arXiv:2108.12409
    Example:
        bias = attention.alibi_bias(num_heads, num_queries, num_keys)
    """
    given = {"num_heads": num_heads, "num_queries": num_queries, "num_keys": num_keys, "dtype": dtype}
    check(ALIBI_BIAS, **given, offset=offset)
    return _alibi_bias(num_heads, distances(num_queries, num_keys, offset), tf.as_dtype(dtype))


def _alibi_bias(num_heads: int, distance: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    slope = tf.constant(slopes(num_heads), wide)[:, None, None]
    return tf.cast(slope * tf.cast(-tf.abs(distance), wide)[:, None], dtype)


def relative_buckets(
    num_queries: int,
    num_keys: int,
    *,
    num_buckets: int,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
) -> tf.Tensor:
    """Return the bucket of each pair of query and key by the difference of their positions.

    buckets[b, i, j] = n(|r|) + (m if r > 0), r = j - (i + offset[b])
    if not bidirectional: n(max(-r, 0))
    n(d) = d if d < e, else e + floor((m - e) ln(d/e)/ln(max_distance/e)), at most m - 1
    m = floor(num_buckets/2) if bidirectional, else num_buckets
    e = floor(m/2)

    The logarithms are compared in whole numbers, since n(d) >= e + k where d^(m - e) e^k >= max_distance^k e^(m - e):
    all frameworks return the same buckets. If bidirectional, an odd number of buckets leaves the last one unused.

    Args:
        num_queries: number of queries
        num_keys: number of keys
        num_buckets: number of buckets
        bidirectional (default True): whether keys after the query have buckets of their own; otherwise they share that
            of distance 0
        max_distance (default 128): distance from which on all share the last bucket
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        buckets: integers (batch, queries, keys), broadcast; row of the table for each pair, int32; the same for every
            sequence if offset is
    Raises:
        OptionError: too few buckets, or a max_distance that has a bucket of its own
    Source: Raffel et al. 2020, section 2.1, arXiv:1910.10683
    Example:
        buckets = attention.relative_buckets(num_queries, num_keys, num_buckets=num_buckets)
    """
    sizes = {"num_queries": num_queries, "num_keys": num_keys, "num_buckets": num_buckets}
    check(RELATIVE_BUCKETS, **sizes, bidirectional=bidirectional, max_distance=max_distance, offset=offset)
    return buckets_of(distances(num_queries, num_keys, offset), num_buckets, bidirectional, max_distance)


def relative_bias(
    num_queries: int,
    num_keys: int,
    table: tf.Tensor,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
) -> tf.Tensor:
    """Return a bias that is looked up by the difference of the positions of query and key.

    bias[b, h, i, j] = table[buckets[b, i, j], h], buckets as relative_buckets returns them

    The gradient of an entry of the table is the sum over all pairs in its bucket.

    Args:
        num_queries: number of queries
        num_keys: number of keys
        table: (num_buckets, heads); a number for each bucket and head
        bidirectional (default True): whether keys after the query have buckets of their own; otherwise they share that
            of distance 0
        max_distance (default 128): distance from which on all share the last bucket
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        bias: (batch, heads, queries, keys), broadcast; numbers to add to the scores; the same for every sequence if
            offset is
    Raises:
        OptionError: too few buckets, or a max_distance that has a bucket of its own
    Source: Raffel et al. 2020, section 2.1, arXiv:1910.10683
    Example:
        bias = attention.relative_bias(num_queries, num_keys, table)
    """
    options = {"bidirectional": bidirectional, "max_distance": max_distance, "offset": offset}
    check(RELATIVE_BIAS, num_queries=num_queries, num_keys=num_keys, table=table, **options)
    table = tf.convert_to_tensor(table)
    return _relative_bias(distances(num_queries, num_keys, offset), table, bidirectional, max_distance)


def _relative_bias(distance: tf.Tensor, table: tf.Tensor, bidirectional: bool, max_distance: int) -> tf.Tensor:
    buckets = buckets_of(distance, table.shape[0], bidirectional, max_distance)
    # Widened, since the gradient of an entry is a sum over all pairs in its bucket; along the last axis, since the one
    # along the first would have a row for each pair, which are rounded before they are summed.
    return tf.cast(tf.transpose(tf.gather(tf.transpose(precise(table)), buckets, axis=1), (1, 0, 2, 3)), table.dtype)


def sine_and_cosine(positions: tf.Tensor, high: np.ndarray, low: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    """The sine and cosine of positions (high + low), exact for large positions."""
    sine, cosine = tf.sin(positions * high), tf.cos(positions * high)
    small_sine, small_cosine = tf.sin(positions * low), tf.cos(positions * low)
    return sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine


def buckets_of(distance: tf.Tensor, num_buckets: int, bidirectional: bool, max_distance: int) -> tf.Tensor:
    """The bucket of each distance from query to key."""
    one_way = num_buckets // 2 if bidirectional else num_buckets
    magnitude = tf.abs(distance) if bidirectional else -distance
    least = tf.constant(bounds(one_way, max_distance), tf.int64)
    found = tf.searchsorted(least, tf.reshape(magnitude, (-1,)), side="right")
    buckets = tf.reshape(found, [size(distance, axis) for axis in range(3)])
    return buckets + one_way * tf.cast(distance > 0, tf.int32) if bidirectional else buckets
