"""Positions of vectors in a sequence, in PyTorch."""

from __future__ import annotations

import torch
from torch.nn import functional

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
from backends.torch.arrays import Offset, check
from backends.torch.masking import distances, precise, query_positions
from backends.torch.module import Specified, draw_parameter

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
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762
    Example:
        layer = attention.SinusoidalPositions(features)
        outputs = layer(inputs)
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        super().__init__(locals())
        # No buffers: those would follow the module into float32.
        self._high, self._low = (torch.tensor(rate, dtype=torch.float64, device="cpu") for rate in rates(features))

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
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
        return self._add(inputs, torch.arange(inputs.shape[-2], device=inputs.device) + offset)

    def _add(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add the vectors of these positions."""
        device = torch.device("cpu") if inputs.device.type == "mps" else inputs.device  # which has no float64
        pair = sine_and_cosine(positions.to(device).to(torch.float64)[:, None], self._high, self._low)
        interleaved = self.sizes["layout"] == "interleaved"
        table = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
        return inputs + table.to(inputs.dtype).to(inputs.device)


class LearnedPositions(Specified):
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]

    Args:
        num_positions: positions that have a vector
        features: features of an input
        dtype: floating type of the parameters
        device: where to allocate
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.P = draw_parameter((num_positions, features), features, dtype, device)

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
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
        return inputs + self.P[offset:end]

    def _add(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Add the vectors of these positions."""
        return inputs + functional.embedding(positions, self.P)


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
    Source: Su et al. 2021, section 3.2, arXiv:2104.09864
    Example:
        layer = attention.RotaryPositions(features)
        outputs = layer(inputs)
    """

    specification = ROTARY_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved", base: float = 10000.0) -> None:
        super().__init__(locals())
        # No buffers: those would follow the module into float32.
        self._high, self._low = (
            torch.tensor(rate, dtype=torch.float64, device="cpu") for rate in rates(features, float(base))
        )

    def forward(self, inputs: torch.Tensor, *, offset: Offset | None = None) -> torch.Tensor:
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

    def _rotate(self, inputs: torch.Tensor, offset: Offset | None) -> torch.Tensor:
        """Rotate the inputs from position offset on."""
        wide = precise(inputs)
        device = torch.device("cpu") if inputs.device.type == "mps" else inputs.device  # which has no float64
        positions = query_positions(inputs.shape[-2], offset, device).to(torch.float64)
        sine, cosine = (
            part.to(wide.dtype).to(inputs.device) for part in sine_and_cosine(positions, self._high, self._low)
        )
        if inputs.ndim == 4:
            sine, cosine = sine[:, None], cosine[:, None]
        axis, parts = (-1, (-1, 2)) if self.sizes["layout"] == "interleaved" else (-2, (2, -1))
        first, second = wide.unflatten(-1, parts).unbind(axis)
        rotated = torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=axis)
        return rotated.flatten(-2).to(inputs.dtype)


def position_permutation(features: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]

    Args:
        features: features of an input
        device: where to allocate
    Returns:
        permutation: integers (features,); interleaved index of each concatenated feature, int32
    Source: this specification
    Example:
        permutation = attention.position_permutation(features)
    """
    check(POSITION_PERMUTATION, features=features)
    return torch.arange(features, dtype=torch.int32, device=device).reshape(-1, 2).T.reshape(-1)


def alibi_bias(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    dtype: str = "float32",
    offset: Offset | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
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
        device: where to allocate
    Returns:
        bias: (batch, heads, queries, keys), broadcast; numbers to add to the scores; the same for every sequence if
            offset is
    Source: Press et al. 2022, section 3, arXiv:2108.12409
    Example:
        bias = attention.alibi_bias(num_heads, num_queries, num_keys)
    """
    given = {"num_heads": num_heads, "num_queries": num_queries, "num_keys": num_keys, "dtype": dtype}
    check(ALIBI_BIAS, **given, offset=offset)
    return _alibi_bias(num_heads, distances(num_queries, num_keys, offset, device), getattr(torch, dtype))


def _alibi_bias(num_heads: int, distance: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.promote_types(dtype, torch.float32)
    slope = torch.tensor(slopes(num_heads), dtype=wide, device=distance.device)[:, None, None]
    return (slope * -distance[:, None].abs()).to(dtype)


def relative_buckets(
    num_queries: int,
    num_keys: int,
    *,
    num_buckets: int,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
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
        device: where to allocate
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
    return buckets_of(distances(num_queries, num_keys, offset, device), num_buckets, bidirectional, max_distance)


def relative_bias(
    num_queries: int,
    num_keys: int,
    table: torch.Tensor,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: Offset | None = None,
) -> torch.Tensor:
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
    return _relative_bias(distances(num_queries, num_keys, offset, table.device), table, bidirectional, max_distance)


def _relative_bias(distance: torch.Tensor, table: torch.Tensor, bidirectional: bool, max_distance: int) -> torch.Tensor:
    buckets = buckets_of(distance, table.shape[0], bidirectional, max_distance)
    # Widened, since the gradient of an entry is a sum over all pairs in its bucket.
    return functional.embedding(buckets, precise(table)).permute(0, 3, 1, 2).to(table.dtype)


def sine_and_cosine(
    positions: torch.Tensor, high: torch.Tensor, low: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sine and cosine of positions (high + low), exact for large positions."""
    large, small = positions * high.to(positions.device), positions * low.to(positions.device)
    return (
        torch.sin(large) * torch.cos(small) + torch.cos(large) * torch.sin(small),
        torch.cos(large) * torch.cos(small) - torch.sin(large) * torch.sin(small),
    )


def buckets_of(distance: torch.Tensor, num_buckets: int, bidirectional: bool, max_distance: int) -> torch.Tensor:
    """The bucket of each distance from query to key."""
    one_way = num_buckets // 2 if bidirectional else num_buckets
    least = torch.tensor(bounds(one_way, max_distance), device=distance.device)
    if not bidirectional:
        return torch.bucketize(-distance, least, right=True, out_int32=True)
    buckets = torch.bucketize(distance.abs(), least, right=True, out_int32=True)
    return buckets + (distance > 0).to(torch.int32) * one_way
