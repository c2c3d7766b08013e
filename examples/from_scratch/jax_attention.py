"""Bahdanau's additive attention with masks, in JAX and Flax and nothing else: a file to read, or to copy.

    scores[i, j] = w_v · tanh(W_q queries[i] + W_k keys[j])
    weights[i, j] = exp(scores[i, j]) / sum over open k of exp(scores[i, k])
    context[i] = sum over j of weights[i, j] values[j]

A mask is True where a query may attend; of lengths, it is `jnp.arange(num_keys) < valid_lens[:, None, None]`. A query
that may attend to nothing has weights, context and gradients of 0. What is hidden from all has no effect, even as NaN.
"""

import jax
import jax.numpy as jnp
from flax import nnx


def masked_softmax(scores: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Softmax over the open keys, the last axis; 0 elsewhere."""
    opened = scores != -jnp.inf
    if mask is not None:
        opened = opened & mask
    # Only -inf loses against every score. A row of nothing else would come out NaN: zeros keep it finite on the way.
    scores = jnp.where(opened, scores, -jnp.inf)
    scores = jnp.where(jnp.any(opened, axis=-1, keepdims=True), scores, 0.0)
    return jnp.where(opened, jax.nn.softmax(scores), 0.0)


def additive_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    W_q: jax.Array,
    W_k: jax.Array,
    w_v: jax.Array,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Context, (batch, queries, value_size), and weights, (batch, queries, keys); a heads axis may follow batch.

    queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), W_q
    (hidden_size, query_size), W_k (hidden_size, key_size), w_v (hidden_size,), mask (batch, queries or 1, keys).
    """
    if mask is not None:  # 0 times NaN is NaN: what is hidden from all has to go before the products
        seen = jnp.any(mask, axis=-2)[..., None]
        keys, values = jnp.where(seen, keys, 0.0), jnp.where(seen, values, 0.0)
    queries, keys = queries @ W_q.T, keys @ W_k.T
    scores = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v
    weights = masked_softmax(scores, mask)
    return weights @ values, weights


class BahdanauAttention(nnx.Module):
    """The same as a module, with its parameters."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int, *, rngs: nnx.Rngs) -> None:
        sizes = {"W_q": (hidden_size, query_size), "W_k": (hidden_size, key_size), "w_v": (hidden_size,)}
        for name, shape in sizes.items():
            bound = shape[-1] ** -0.5
            setattr(self, name, nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-bound, maxval=bound)))

    def __call__(
        self, queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Context and weights."""
        return additive_attention(queries, keys, values, self.W_q[...], self.W_k[...], self.w_v[...], mask)
