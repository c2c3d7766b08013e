"""Attention to one key, in TensorFlow."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.hard import HARD_ATTENTION
from backends.tf.arrays import Lengths, lengths
from backends.tf.attention import Answer, ScoredAttention, attention_layer
from backends.tf.masking import open_keys, precise
from backends.tf.memory import Memory
from backends.tf.module import mode_of
from backends.tf.pooling import average

__all__ = ["HardAttention"]


@keras.saving.register_keras_serializable(package="attention_parity")
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
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        scored.*: the attention layer of score, which projects the keys and scores them
    Source: Xu et al. 2015, section 4.1, arXiv:1502.03044; drawn by the Gumbel-max trick
    Example:
        layer = attention.HardAttention(query_size, key_size)
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], caller=self, name="scored")

    def attend(  # type: ignore[override]
        self, queries: tf.Tensor, memory: Memory, *, need_weights: bool = True, noise: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
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
        queries, memory, noise = self._cast((queries, memory, noise))
        return self._attend(queries, memory, need_weights=need_weights, noise=noise)

    def __call__(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        noise: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
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
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
        """
        options: dict[str, Any] = {"need_weights": need_weights, "noise": noise}
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return self._enter(queries, keys, values, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        noise: tf.Tensor | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self._prepare(keys, values, valid_lens, mask)
        return self._attend(queries, memory, need_weights=need_weights, noise=noise)

    def log_prob(self, queries: tf.Tensor, memory: Memory, weights: tf.Tensor) -> tf.Tensor:
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
        queries, memory, weights = self._cast((queries, memory, weights))
        return self._log_prob(queries, memory, weights)

    def _attend(  # type: ignore[override]
        self, queries: tf.Tensor, memory: Memory, *, need_weights: bool = True, noise: tf.Tensor | None = None
    ) -> Answer:
        scores = tf.stop_gradient(self._score(self._to_batch_first(queries), memory.keys))
        allowed = open_keys(scores, memory.mask)
        ranked = precise(scores)
        if noise is not None:
            ranked -= tf.math.log(-tf.math.log(precise(tf.stop_gradient(noise))))
        # Not tf.argmax, which refuses to choose among no keys.
        ranked = tf.where(allowed, ranked, -math.inf)
        best = tf.logical_and(allowed, tf.equal(ranked, tf.reduce_max(ranked, axis=-1, keepdims=True)))
        first = tf.logical_and(best, tf.equal(tf.cumsum(tf.cast(best, tf.int32), axis=-1), 1))
        weights = tf.cast(first, scores.dtype)
        return self._to_batch_first(average(weights, memory.values, allowed, None)), weights if need_weights else None

    def _log_prob(self, queries: tf.Tensor, memory: Memory, weights: tf.Tensor) -> tf.Tensor:
        scores = self._score(self._to_batch_first(queries), memory.keys)
        allowed = open_keys(scores, memory.mask)
        # As in softmax_over, zeros keep a fully masked row finite until the last line discards it.
        visible = tf.where(allowed, precise(scores), -math.inf)
        visible = tf.where(tf.reduce_any(allowed, axis=-1, keepdims=True), visible, 0.0)
        logs = tf.where(allowed, tf.nn.log_softmax(visible, axis=-1), 0.0)
        return tf.cast(tf.reduce_sum(precise(weights) * logs, axis=-1), scores.dtype)
