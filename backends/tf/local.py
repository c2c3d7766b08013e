"""Attention to a window of the keys, in TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.local import LOCAL_ATTENTION
from backends.tf.arrays import Lengths, Offset, lengths
from backends.tf.attention import Answer, ScoredAttention, attention_layer
from backends.tf.masking import distances, precise, size
from backends.tf.memory import Memory
from backends.tf.module import draw_mask, draw_parameter, mode_of
from backends.tf.pooling import _attention_pooling

__all__ = ["LocalAttention"]


@keras.saving.register_keras_serializable(package="attention_parity")
class LocalAttention(ScoredAttention):
    """Attention to a window of keys, around the query's position or around a predicted one.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic: p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S[i] is the number of keys up to the last one that query i may attend to: its valid length. g is a Gaussian of
    standard deviation window/2, and the weights are not normalised again: predictive ones add up to less than 1.
    `scored` is the layer of score, and hidden_size that of an additive or concat score and of W_p. The scores dot,
    scaled_dot, cosine and gaussian compare features one by one, and need as many in a query as in a key.

    Args:
        query_size: features of a query
        key_size: features of a key
        window: keys on either side of the centre, D
        mode (default 'monotonic'): centre of the window: the query's position, or a predicted one: 'monotonic',
            'predictive'
        score (default 'general'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        hidden_size (default None): features of the hidden layers; query_size if None
        num_positions (default None): number of positions to score, for score='location' only
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W_p: (hidden_size, query_size), projects queries, if predictive
        v_p: (hidden_size,), weight of each hidden feature, if predictive
        scored.*: the attention layer of score, which projects the keys and scores them
    Source: Luong et al. 2015, section 3.2, arXiv:1508.04025
    Example:
        layer = attention.LocalAttention(query_size, key_size, window)
        context, weights = layer(queries, keys, values)
    """

    specification = LOCAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        window: int,
        *,
        mode: str = "monotonic",
        score: str = "general",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], caller=self, name="scored")
        if mode == "predictive":
            hidden_size = self.sizes["hidden_size"]
            self.W_p = self._projection("W_p", query_size, hidden_size)
            self.v_p = draw_parameter(self, "v_p", (hidden_size,), hidden_size)

    def attend(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: Offset | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights
        values
        monotonic: p[i] = i + offset, g = 1
        predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

        A query that may attend to nothing gets weights and context 0.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            memory: as `prepare` returns it
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            offset (default None): integers (batch,), a list, or one number; position of the first query among the keys,
                for mode='monotonic'; 0 if None
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            OptionError: an offset that would be ignored
        """
        options: dict[str, Any] = {"need_weights": need_weights, "offset": offset, "dropout_mask": dropout_mask}
        self._check("attend", queries=queries, memory=memory, **options)
        queries, memory, options = self._cast((queries, memory, options))
        return self._attend(queries, memory, **options, training=training)

    def __call__(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        offset: Offset | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights
        values
        monotonic: p[i] = i + offset, g = 1
        predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            keys: (batch, [heads], keys, key_size); key vectors
            values: (batch, [heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            offset (default None): integers (batch,), a list, or one number; position of the first query among the keys,
                for mode='monotonic'; 0 if None
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: an offset that would be ignored
        """
        options: dict[str, Any] = {"need_weights": need_weights, "offset": offset, "dropout_mask": dropout_mask}
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
        offset: Offset | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        options: dict[str, Any] = {"need_weights": need_weights, "offset": offset, "dropout_mask": dropout_mask}
        return self._attend(queries, self._prepare(keys, values, valid_lens, mask), **options, training=training)

    def _attend(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: Offset | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> Answer:
        queries = self._to_batch_first(queries)
        scores = self._score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, scores, training)
        num_queries, num_keys, window = size(scores, -2), size(scores, -1), self.sizes["window"]
        if self.sizes["mode"] == "monotonic":
            distance = distances(num_queries, num_keys, offset)
            distance = distance if scores.shape.rank == 3 else distance[:, None]
        else:
            centres = self._centres(queries, memory.mask, num_keys)
            distance = tf.cast(tf.range(num_keys), centres.dtype) - centres
        allowed = tf.abs(distance) <= window
        if memory.mask is not None:
            allowed = tf.logical_and(allowed, memory.mask)
        if self.sizes["mode"] == "monotonic":
            context, weights = _attention_pooling(scores, memory.values, allowed, dropout_mask)
        else:
            near = tf.exp(-2.0 * (distance / window) ** 2)
            near = tf.cast(tf.where(allowed, near, tf.zeros_like(near)), scores.dtype)
            factor = near if dropout_mask is None else near * dropout_mask
            context, weights = _attention_pooling(scores, memory.values, allowed, factor)
            weights = weights * near
        return self._to_batch_first(context), weights if need_weights else None

    def _centres(self, queries: tf.Tensor, mask: tf.Tensor | None, num_keys: int | tf.Tensor) -> tf.Tensor:
        """The position p that each query predicts, (batch, queries, 1), with heads or without; float32 at least."""
        kernel, v_p = (precise(self._cast(tf.convert_to_tensor(array))) for array in (self.W_p.kernel, self.v_p.value))
        share = tf.sigmoid(tf.linalg.matvec(tf.tanh(tf.matmul(precise(queries), kernel)), v_p))
        ends = num_keys
        if mask is not None:
            ends = tf.reduce_max(tf.where(mask, tf.range(1, num_keys + 1), 0), axis=-1)
            ends = tf.maximum(ends, 0)  # the largest of no keys is the smallest number
        return tf.expand_dims(tf.cast(ends, share.dtype) * share, axis=-1)
