"""Right implementations in JAX, as people write them: each class is one style, with the cases it is asked."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from backends.jax import runtime  # noqa: F401


def opened(shape, valid_lens, mask):
    """What may be attended to, from lengths and a mask."""
    allowed = jnp.ones(shape, bool)
    if valid_lens is not None:
        heads = (1,) * (len(shape) - 3)
        rows = valid_lens.reshape(len(valid_lens), *heads, *(valid_lens.shape[1:] or (1,)), 1)
        allowed = allowed & (jnp.arange(shape[-1]) < rows)
    return allowed if mask is None else allowed & mask


class Compiled:
    """Compiled functions, with static options, and a partial one."""

    cases = "masked_softmax-[mlo]*", "dot_score-[ph]*", "scaled_dot_score-[ps]*", "causal_mask-[!c]*"

    @jax.jit
    def masked_softmax(scores, valid_lens=None, mask=None):
        return jax.nn.softmax(scores, where=opened(scores.shape, valid_lens, mask) & (scores > -jnp.inf))

    dot_score = jax.jit(lambda queries, keys: jnp.einsum("...qd,...kd->...qk", queries, keys))

    @partial(jax.jit, static_argnames=("scale", "softcap"))
    def scaled_dot_score(queries, keys, *, scale=None, softcap=None):
        scores = Compiled.dot_score(queries, keys) * (max(queries.shape[-1], 1) ** -0.5 if scale is None else scale)
        return scores if softcap is None else softcap * jnp.tanh(scores / softcap)

    @partial(jax.jit, static_argnums=(0, 1))
    def causal_mask(num_queries, num_keys, offset=None):
        first = jnp.zeros(1, int) if offset is None else jnp.atleast_1d(offset).astype(int)
        return jnp.arange(num_keys) <= jnp.arange(num_queries)[:, None] + first[:, None, None]


class Scaled(nnx.Module):
    def __call__(self, queries, keys, scale=None):
        return Compiled.scaled_dot_score(queries, keys, scale=scale)


class Modules:
    """An instance of a module as a function."""

    cases = ("scaled_dot_score-[phs]*",)
    scaled_dot_score = Scaled()
