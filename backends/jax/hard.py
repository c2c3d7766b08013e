"""Attention to one key, in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.operators.hard import HARD_ATTENTION
from backends.jax.arrays import Lengths
from backends.jax.attention import Answer, ScoredAttention, attention_layer
from backends.jax.masking import open_keys, precise
from backends.jax.memory import Memory
from backends.jax.module import at_dtype
from backends.jax.pooling import average

__all__ = ["HardAttention"]


class HardAttention(ScoredAttention):
    """Attention to a single key: the one with the highest score, or one sampled with a noise tensor.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores; without noise, its term is 0

    Without noise, its term is 0. With noise drawn uniformly from (0, 1), each key is drawn with its softmax
    probability, and `log_prob` trains the scores. `scored` is the attention layer of score, and hidden_size that of an
    additive or concat score. The scores dot, scaled_dot, cosine and gaussian compare features one by one, and need as
    many in a query as in a key.

    Args:
        query_size: features of a query
        key_size: features of a key
        score (default 'additive'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        hidden_size (default None): features of the hidden layers; query_size if None
        num_positions (default None): number of positions to score, for score='location' only
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        scored.*: the attention layer of score, which projects the keys and scores them
    Source: Xu et al. 2015, section 4.1, arXiv:1502.03044; drawn by the Gumbel-max trick
    Example:
        layer = attention.HardAttention(query_size, key_size, rngs=nnx.Rngs(0))
        context, weights = layer(queries, keys, values)
    """

    specification = HARD_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: str = "additive",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        time_major: bool = False,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        self.scored = attention_layer(
            self.specification.inside(self.sizes)["scored"], dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )

    @at_dtype
    def attend(  # type: ignore[override]
        self, queries: jax.Array, memory: Memory, *, need_weights: bool = True, noise: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        context = weights values, and no gradient reaches the scores; without noise, its term is 0

        A query that may attend to nothing gets weights and context 0.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            memory: as `prepare` returns it
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            noise (default None): (batch, [heads], queries, keys); uniform numbers strictly between 0 and 1; with them,
                key j is drawn with its softmax probability
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        """
        self._check("attend", queries=queries, memory=memory, need_weights=need_weights, noise=noise)
        return self._attend(queries, memory, need_weights=need_weights, noise=noise)

    @at_dtype
    def __call__(  # type: ignore[override]
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: Lengths | None = None,
        mask: jax.Array | None = None,
        *,
        need_weights: bool = True,
        noise: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Prepare the keys and values, and attend to them.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        context = weights values, and no gradient reaches the scores; without noise, its term is 0

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            keys: (batch, [heads], keys, key_size); key vectors
            values: (batch, [heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            noise (default None): (batch, [heads], queries, keys); uniform numbers strictly between 0 and 1; with them,
                key j is drawn with its softmax probability
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
        """
        options: dict[str, Any] = {"need_weights": need_weights, "noise": noise}
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return self._attend(queries, self._prepare(keys, values, valid_lens, mask), **options)

    @at_dtype
    def log_prob(self, queries: jax.Array, memory: Memory, weights: jax.Array) -> jax.Array:
        """Compute the log-probability of each query's key, which trains the scores.

        log_prob[i] = sum over open j of weights[i, j] ln masked_softmax(scores)[i, j]

        The probability is that with which noise draws the key. The gradient of (loss - baseline) * log_prob, where loss
        - baseline is a constant, is the score-function estimator of the gradient of the expected loss, also called
        REINFORCE: Williams 1992, doi:10.1007/BF00992696. A query that may attend to nothing gets 0.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            memory: as `prepare` returns it
            weights: (batch, [heads], queries, keys); 1 at the key of each query, as `attend` returns them, else 0
        Returns:
            log_prob: (batch, [heads], queries); natural logarithm of the probability
        """
        self._check("log_prob", queries=queries, memory=memory, weights=weights)
        return self._log_prob(queries, memory, weights)

    def _attend(  # type: ignore[override]
        self, queries: jax.Array, memory: Memory, *, need_weights: bool = True, noise: jax.Array | None = None
    ) -> Answer:
        scores = jax.lax.stop_gradient(self._score(self._to_batch_first(queries), memory.keys))
        allowed = open_keys(scores, memory.mask)
        if scores.shape[-1] == 0:  # argmax refuses it
            weights = scores
        else:
            visible = precise(scores)
            if noise is not None:
                visible = visible - jnp.log(-jnp.log(precise(jax.lax.stop_gradient(noise))))
            best = jnp.argmax(jnp.where(allowed, visible, -jnp.inf), axis=-1, keepdims=True)
            weights = (allowed & (jnp.arange(scores.shape[-1]) == best)).astype(scores.dtype)
        return self._to_batch_first(average(weights, memory.values, allowed, None)), weights if need_weights else None

    def _log_prob(self, queries: jax.Array, memory: Memory, weights: jax.Array) -> jax.Array:
        scores = self._score(self._to_batch_first(queries), memory.keys)
        allowed = open_keys(scores, memory.mask)
        # As in softmax_over, zeros keep a fully masked row finite until the last line discards it.
        visible = jnp.where(allowed, precise(scores), -jnp.inf)
        visible = jnp.where(jnp.any(allowed, axis=-1, keepdims=True), visible, 0.0)
        logs = jnp.where(allowed, jax.nn.log_softmax(visible, axis=-1), 0.0)
        return jnp.sum(precise(weights) * logs, axis=-1).astype(scores.dtype)
