"""Positions of vectors in a sequence, in MXNet."""

from __future__ import annotations

import mxnet as mx
import numpy
from mxnet import np, npx
from mxnet.gluon import nn

from attention_core.errors import check_available
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
from backends.mxnet.arrays import Offset, check
from backends.mxnet.masking import distances, positions, precise, query_positions
from backends.mxnet.module import Specified, Uniform, initialise

__all__ = [
    "SinusoidalPositions",
    "LearnedPositions",
    "RotaryPositions",
    "position_permutation",
    "alibi_bias",
    "relative_buckets",
    "relative_bias",
]


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
        super().__init__(locals())

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
        """
        self._check("call", offset=offset, inputs=inputs)
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """Gluon enters here; the table is made in float64."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        return self._add(inputs, positions(inputs.shape[-2], inputs.ctx) + offset)

    def _add(self, inputs: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Add the vectors of these positions."""
        pair = sine_and_cosine(place.astype("float64")[:, None], self.sizes["features"], 10000.0)
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
        super().__init__(locals())
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
            ShapeError: a step beyond the last position
        """
        self._check("call", offset=offset, inputs=inputs)
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """Gluon enters here; of empty inputs, MXNet would write foreign memory into gradients."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        return self._add(inputs, positions(inputs.shape[-2], inputs.ctx) + offset)

    def _add(self, inputs: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Add the vectors of these positions."""
        return inputs + self.P(place)


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
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Source: Su et al. 2021, section 3.2, arXiv:2104.09864
    Example:
        layer = attention.RotaryPositions(features)
        outputs = layer(inputs)
    """

    specification = ROTARY_POSITIONS

    def __init__(
        self,
        features: int,
        *,
        layout: str = "interleaved",
        base: float = 10000.0,
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray, *, offset: Offset | None = None) -> np.ndarray:
        """Rotate the inputs, whose first step is at position offset.

        outputs[t, 2i] = inputs[t, 2i] cos(a) - inputs[t, 2i + 1] sin(a), outputs[t, 2i + 1] = inputs[t, 2i] sin(a) +
        inputs[t, 2i + 1] cos(a)
        a = (t + offset[b]) base^(-2i/features)
        concatenated: features i and i + features/2 in place of 2i and 2i + 1

        Args:
            inputs: (batch, [heads], steps, features); one vector for each position
            offset (default None): integers (batch,), a list, or one number; position of the first step; 0 if None; may
                be negative
        Returns:
            outputs: (batch, [heads], steps, features); the inputs, rotated
        """
        self._check("call", inputs=inputs, offset=offset)
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: Offset | None) -> np.ndarray:
        """Gluon enters here."""
        return self._rotate(inputs, offset)

    def _rotate(self, inputs: np.ndarray, offset: Offset | None) -> np.ndarray:
        """Rotate the inputs from position offset on; angles are in float64."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        wide, features = precise(inputs), self.sizes["features"]
        place = query_positions(inputs.shape[-2], offset, inputs.ctx)
        pair = sine_and_cosine(place, features, float(self.sizes["base"]))
        sine, cosine = (part.astype(wide.dtype) for part in pair)
        if inputs.ndim == 4:
            sine, cosine = np.expand_dims(sine, 1), np.expand_dims(cosine, 1)
        if self.sizes["layout"] == "interleaved":
            axis, pairs = -1, wide.reshape(*inputs.shape[:-1], features // 2, 2)
            first, second = pairs[..., 0], pairs[..., 1]
        else:
            axis, (first, second) = -2, np.split(wide, 2, axis=-1)
        rotated = np.stack([first * cosine - second * sine, first * sine + second * cosine], axis=axis)
        return rotated.reshape(inputs.shape).astype(inputs.dtype, copy=False)


def position_permutation(features: int, *, ctx: mx.Context | None = None) -> np.ndarray:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]

    Args:
        features: features of an input
        ctx: where to allocate
    Returns:
        permutation: integers (features,); interleaved index of each concatenated feature, int32
    Source: this specification
    Example:
        permutation = attention.position_permutation(features)
    """
    check(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype="int32", ctx=ctx).reshape(-1, 2).T.reshape(-1)


def alibi_bias(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    dtype: str = "float32",
    offset: Offset | None = None,
    ctx: mx.Context | None = None,
) -> np.ndarray:
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
        ctx: where to allocate
    Returns:
        bias: (batch, heads, queries, keys), broadcast; numbers to add to the scores; the same for every sequence if
            offset is
    Source: Press et al. 2022, section 3, arXiv:2108.12409
    Example:
        bias = attention.alibi_bias(num_heads, num_queries, num_keys)
    """
    given = {"num_heads": num_heads, "num_queries": num_queries, "num_keys": num_keys, "dtype": dtype}
    check(ALIBI_BIAS, **given, offset=offset)
    check_available(ALIBI_BIAS.title, dtype, "bfloat16", "MXNet's arrays have no bfloat16")
    return _alibi_bias(num_heads, distances(num_queries, num_keys, offset, ctx), dtype)


def _alibi_bias(num_heads: int, distance: np.ndarray, dtype: str) -> np.ndarray:
    wide = "float64" if numpy.dtype(dtype) == "float64" else "float32"
    slope = np.array(slopes(num_heads), dtype=wide, ctx=distance.ctx).reshape(-1, 1, 1)
    return (slope * np.expand_dims(-np.abs(distance).astype(wide), 1)).astype(dtype, copy=False)


def relative_buckets(
    num_queries: int,
    num_keys: int,
    *,
    num_buckets: int,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
    ctx: mx.Context | None = None,
) -> np.ndarray:
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
        ctx: where to allocate
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
    return buckets_of(distances(num_queries, num_keys, offset, ctx), num_buckets, bidirectional, max_distance)


def relative_bias(
    num_queries: int,
    num_keys: int,
    table: np.ndarray,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
) -> np.ndarray:
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
    return _relative_bias(distances(num_queries, num_keys, offset, table.ctx), table, bidirectional, max_distance)


def _relative_bias(distance: np.ndarray, table: np.ndarray, bidirectional: bool, max_distance: int) -> np.ndarray:
    buckets = buckets_of(distance, table.shape[0], bidirectional, max_distance)
    if buckets.size == 0:  # of which MXNet would write foreign memory into gradients
        batch, queries, keys = buckets.shape
        return np.zeros((batch, table.shape[1], queries, keys), dtype=table.dtype, ctx=table.ctx)
    # Widened, since the gradient of an entry is a sum over all pairs in its bucket.
    wide = precise(table)
    found = npx.embedding(buckets, wide, *table.shape, dtype=wide.dtype)
    return found.transpose(0, 3, 1, 2).astype(table.dtype, copy=False)


def sine_and_cosine(place: np.ndarray, features: int, base: float) -> tuple[np.ndarray, np.ndarray]:
    """The sine and cosine of each angle, in float64, exact for large positions."""
    high, low = (np.array(part, dtype="float64", ctx=place.ctx) for part in rates(features, base))
    sine, cosine, small_sine, small_cosine = (f(place * r) for r in (high, low) for f in (np.sin, np.cos))
    return sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine


def buckets_of(distance: np.ndarray, num_buckets: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """The bucket of each distance from query to key."""
    one_way = num_buckets // 2 if bidirectional else num_buckets
    magnitude = np.abs(distance) if bidirectional else -distance
    buckets = one_way * (distance > 0).astype("int32") if bidirectional else np.zeros_like(distance, dtype="int32")
    for least in bounds(one_way, max_distance):
        buckets = buckets + (magnitude >= least).astype("int32")
    return buckets
