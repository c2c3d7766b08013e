"""Positions of vectors in a sequence, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from attention_core.errors import check, check_available
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
from attention_core.sinusoids import rates, turns
from backends.jax.arrays import Offset
from backends.jax.masking import distances, precise, query_positions
from backends.jax.module import Specified, at_dtype, cast, draw_parameter

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
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762
    Example:
        layer = attention.SinusoidalPositions(features)
        outputs = layer(inputs)
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved", rngs: nnx.Rngs | None = None) -> None:
        super().__init__(locals())

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
        """
        self._check("call", offset=offset, inputs=inputs)
        return inputs + self._table(inputs.shape[-2], offset).astype(inputs.dtype)

    def _add(self, inputs: jax.Array, positions: jax.Array) -> jax.Array:
        """Add the vectors of these positions."""
        exact = sine_and_cosine if jax.config.jax_enable_x64 else sine_and_cosine_by_turns
        pair = exact(positions[:, None], self.sizes["features"], 10000.0)
        table = jnp.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + table.reshape(len(positions), self.sizes["features"]).astype(inputs.dtype)

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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        P: (num_positions, features), one row for each position
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
        super().__init__(locals())
        self.P = draw_parameter((num_positions, features), features, param_dtype, rngs)

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
            ShapeError: a step beyond the last position
        """
        self._check("call", offset=offset, inputs=inputs)
        end = offset + inputs.shape[-2]
        return inputs + cast(self.P, inputs)[offset:end]

    def _add(self, inputs: jax.Array, positions: jax.Array) -> jax.Array:
        """Add the vectors of these positions."""
        return inputs + cast(self.P, inputs)[positions]


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
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(locals())

    def __call__(self, inputs: jax.Array, *, offset: Offset | None = None) -> jax.Array:
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
        return self._rotate(inputs, offset)

    def _rotate(self, inputs: jax.Array, offset: Offset | None) -> jax.Array:
        """Rotate the inputs from position offset on."""
        wide, positions = precise(inputs), query_positions(inputs.shape[-2], offset)
        exact = sine_and_cosine if jax.config.jax_enable_x64 else sine_and_cosine_by_turns
        pair = exact(positions, self.sizes["features"], float(self.sizes["base"]))
        sine, cosine = (part.astype(wide.dtype) for part in pair)
        if inputs.ndim == 4:
            sine, cosine = sine[:, None], cosine[:, None]
        pairs = self.sizes["features"] // 2
        axis, parts = (-1, (pairs, 2)) if self.sizes["layout"] == "interleaved" else (-2, (2, pairs))
        first, second = jnp.unstack(wide.reshape(*inputs.shape[:-1], *parts), axis=axis)
        rotated = jnp.stack([first * cosine - second * sine, first * sine + second * cosine], axis=axis)
        return rotated.reshape(inputs.shape).astype(inputs.dtype)


def position_permutation(features: int) -> jax.Array:
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
    return jnp.arange(features, dtype=jnp.int32).reshape(-1, 2).T.reshape(-1)


def alibi_bias(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    dtype: str = "float32",
    offset: Offset | None = None,
) -> jax.Array:
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
    if not jax.config.jax_enable_x64:
        check_available(ALIBI_BIAS.title, dtype, "float64", "JAX has it only where jax_enable_x64 is set")
    return _alibi_bias(num_heads, distances(num_queries, num_keys, offset), jnp.dtype(dtype))


def _alibi_bias(num_heads: int, distance: jax.Array, dtype: jnp.dtype) -> jax.Array:
    wide = jnp.promote_types(dtype, jnp.float32)
    slope = jnp.asarray(slopes(num_heads), wide)[:, None, None]
    return (slope * -jnp.abs(distance).astype(wide)[:, None]).astype(dtype)


def relative_buckets(
    num_queries: int,
    num_keys: int,
    *,
    num_buckets: int,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
) -> jax.Array:
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
    table: jax.Array,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
) -> jax.Array:
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
    return _relative_bias(distances(num_queries, num_keys, offset), table, bidirectional, max_distance)


def _relative_bias(distance: jax.Array, table: jax.Array, bidirectional: bool, max_distance: int) -> jax.Array:
    buckets = buckets_of(distance, table.shape[0], bidirectional, max_distance)
    # Widened, since the gradient of an entry is a sum over all pairs in its bucket.
    return jnp.moveaxis(precise(table)[buckets], -1, 1).astype(table.dtype)


def sine_and_cosine(positions: jax.Array, features: int, base: float) -> tuple[jax.Array, jax.Array]:
    """The sine and cosine of each angle, in float64, exact for large positions."""
    large, small = (positions.astype(jnp.float64) * part for part in rates(features, base))
    return (
        jnp.sin(large) * jnp.cos(small) + jnp.cos(large) * jnp.sin(small),
        jnp.cos(large) * jnp.cos(small) - jnp.sin(large) * jnp.sin(small),
    )


def buckets_of(distance: jax.Array, num_buckets: int, bidirectional: bool, max_distance: int) -> jax.Array:
    """The bucket of each distance from query to key."""
    one_way = num_buckets // 2 if bidirectional else num_buckets
    least = jnp.asarray(bounds(one_way, max_distance))
    if not bidirectional:
        return jnp.searchsorted(least, -distance, side="right").astype(jnp.int32)
    buckets = jnp.searchsorted(least, jnp.abs(distance), side="right")
    return (buckets + one_way * (distance > 0)).astype(jnp.int32)


# ------------------------------------------------------------------------------------------------ particular to JAX


def sine_and_cosine_by_turns(positions: jax.Array, features: int, base: float) -> tuple[jax.Array, jax.Array]:
    """The sine and cosine of each angle, in float32, exact for large positions: JAX has no float64 unless switched on.

    The angle is a product of whole numbers in 2⁻³² turns, which overflows by whole turns. It is reduced to an eighth of
    a turn before it becomes a floating number.
    """
    upper, lower = turns(features, base)
    count = jnp.abs(positions).astype(jnp.uint32)
    # The upper 32 bits of count times lower, of products of 16 bits each.
    high, low = count >> 16, count & 0xFFFF
    middle = (low * (lower & 0xFFFF) >> 16) + (high * (lower & 0xFFFF) & 0xFFFF) + (low * (lower >> 16) & 0xFFFF)
    carried = high * (lower >> 16) + (high * (lower & 0xFFFF) >> 16) + (low * (lower >> 16) >> 16) + (middle >> 16)
    turned = count * upper + carried
    quarter = (turned + np.uint32(1 << 29)) >> 30
    rest = jax.lax.bitcast_convert_type(turned - (quarter << 30), jnp.int32).astype(jnp.float32)
    sine, cosine = jnp.sin(rest * RADIANS), jnp.cos(rest * RADIANS)
    odd = quarter % 2 == 1
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, sine, cosine)
    sine = jnp.where(quarter >= 2, -sine, sine) * jnp.sign(positions)
    return sine, jnp.where((quarter == 1) | (quarter == 2), -cosine, cosine)


RADIANS = np.float32(2.0 * np.pi / 2.0**32)
"""Radians in 2⁻³² of a turn."""
