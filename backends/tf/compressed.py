"""Attention to a memory that is shorter than the input, in TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.compressed import COMPRESSED_ATTENTION, INDUCED_ATTENTION, LOW_RANK_ATTENTION
from backends.tf.arrays import Lengths, lengths
from backends.tf.attention import attention_layer
from backends.tf.masking import _attention_mask, size
from backends.tf.memory import Memory, zero_masked
from backends.tf.module import Specified, draw_parameter, join_attached, mode_of, project
from backends.tf.multi_head import MultiHeadAttention

__all__ = ["LowRankAttention", "InducedAttention", "CompressedAttention"]


class ShortenedAttention(Specified):
    """Base class of the layers that shorten keys and values, and attend to them by scaled inner products."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], caller=self, name="scored")

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Shorten the keys and values, and attend to what they become.

        A shortened key mixes positions, so that lengths and mask are the same for all queries. A sequence without an
        open key gets weights and context 0. A hidden key and value, NaN and inf included, counts as 0, and gets
        gradient 0.

        Args:
            queries: (batch, [heads], queries, features or query_size); query vectors
            keys: (batch, [heads], keys, features or key_size); key vectors
            values: (batch, [heads], keys, value_features or value_size); value vectors, one for each key
            valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], one, keys), broadcast; True where a key is open, to all
                queries
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            dropout_mask (default None): (batch, [heads], queries, rank or blocks); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, [heads], queries, value_features or value_size); weighted averages of the values
            weights: (batch, [heads], queries, rank or blocks); probabilities over the shortened keys; None without
                need_weights
        Raises:
            ShapeError: more keys than the layer has positions
            ShapeError: a dropout mask with another number of blocks than the keys make
        """
        options: dict[str, Any] = {"need_weights": need_weights, "dropout_mask": dropout_mask}
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return super().__call__(queries, keys, values, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Shorten the keys and values, and attend to what they become; Keras enters here."""
        mask = join_attached(mask, keys, values)
        mask = tf.ones((1,) * keys.shape.rank, tf.bool) if mask is None else mask
        memory = self._shorten(*zero_masked(keys, values, valid_lens, mask))
        options: dict[str, Any] = {"need_weights": need_weights, "dropout_mask": dropout_mask, "training": training}
        return self.scored._attend(queries, memory, **options)

    def _shorten(self, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | Any) -> Memory:
        """Shorten keys and values whose hidden ones are 0, and their mask, which is the same for all queries."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="attention_parity")
class LowRankAttention(ShortenedAttention):
    """Attention to weighted sums of the keys and values over their positions, as many as rank.

    context, weights = attention_pooling(scaled_dot_score(queries, E keys), F values)
    (E keys)[r] = sum over open j of E[r, j] keys[j]
    (F values)[r] = sum over open j of F[r, j] values[j]

    There may be fewer keys than num_positions, but not more: the first columns of E and F count. The cost is linear in
    the number of keys.

    Args:
        num_positions: positions that have a weight: the maximum number of keys
        rank: number of sums that queries attend to
        scale (default None): factor of the scores; 1/√features if None
        dropout (default 0.0): dropout rate of the weights in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        E: (rank, num_positions), weights of the keys by position
        F: (rank, num_positions), weights of the values by position
        scored.*: the DotProductAttention to the sums, which has none
    Source: Wang et al. 2020, section 4, arXiv:2006.04768
    Example:
        layer = attention.LowRankAttention(num_positions, rank)
        context, weights = layer(queries, keys, values)
    """

    specification = LOW_RANK_ATTENTION

    def __init__(
        self,
        num_positions: int,
        rank: int,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.E = draw_parameter(self, "E", (rank, num_positions), num_positions)
        self.F = draw_parameter(self, "F", (rank, num_positions), num_positions)

    def _shorten(self, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | Any) -> Memory:
        """Return E keys and F values, all of them open where any key is."""
        E, F = (tf.cast(weights, keys.dtype)[:, : size(keys, -2)] for weights in (self.E, self.F))
        opened = tf.reduce_any(mask, axis=-1, keepdims=True)
        return Memory(tf.matmul(E, keys), tf.matmul(F, values), tf.repeat(opened, self.sizes["rank"], axis=-1))


@keras.saving.register_keras_serializable(package="attention_parity")
class InducedAttention(Specified):
    """Attention by way of a few learned queries, the inducing points, that attend to the keys instead.

    context, weights = spread(queries, memory, memory)
    memory = gather(inducing, keys, values)

    query_size is the features of a query, of an inducing point, of what it has gathered, and of the context. The
    weights are the mean of spread's heads. The cost is linear in the number of keys, and in that of queries.

    Args:
        query_size: features of a query
        num_heads: number of heads
        num_inducing: number of inducing points
        key_size (default None): features of a key; query_size if None
        value_size (default None): features of a value; key_size if None
        hidden_size (default None): features of all heads together; query_size if None
        dropout (default 0.0): dropout rate of the weights in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        inducing: (num_inducing, query_size), the inducing points
        gather.*: the MultiHeadAttention of the inducing points to the keys
        spread.*: the MultiHeadAttention of the queries to what the inducing points have gathered
    Source: Lee et al. 2019, section 3.1, arXiv:1810.00825, without its residual connections and feed-forward network
    Example:
        layer = attention.InducedAttention(query_size, num_heads, num_inducing)
        context, weights = layer(queries, keys, values)
    """

    specification = INDUCED_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        num_inducing: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        parts, policy = self.specification.inside(self.sizes), self.dtype_policy
        self.inducing = draw_parameter(self, "inducing", (num_inducing, query_size), self.sizes["hidden_size"])
        with keras.name_scope(self.name, caller=self):
            self.gather = MultiHeadAttention(**parts["gather"].config, dtype=policy, name="gather")
            self.spread = MultiHeadAttention(**parts["spread"].config, dtype=policy, name="spread")
            for layer in (self.gather, self.spread):
                layer.build(None)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        gather_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Let the inducing points attend to the keys, and the queries to what these have gathered.

        context, weights = spread(queries, memory, memory)
        memory = gather(inducing, keys, values)

        Lengths and mask are the same for all queries, which attend to the inducing points alone. In a sequence without
        an open key, they attend to nothing: weights 0, and context b_o of spread. A hidden key and value, NaN and inf
        included, have no effect and get gradient 0.

        Args:
            queries: (batch, queries, query_size); query vectors
            keys: (batch, keys, key_size); key vectors
            values: (batch, keys, value_size); value vectors, one for each key
            valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, one, keys), broadcast; True where a key is open, to all queries
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            gather_dropout_mask (default None): (batch, heads, num_inducing, keys); factor of each weight of gather
            dropout_mask (default None): (batch, heads, queries, num_inducing); factor of each weight of spread,
                likewise
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, queries, query_size); the averages that spread returns
            weights: (batch, queries, num_inducing); probabilities over the inducing points; None without need_weights
        """
        options: dict[str, Any] = {
            "need_weights": need_weights,
            "gather_dropout_mask": gather_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return super().__call__(queries, keys, values, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        gather_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Let the inducing points attend to the keys, and the queries to these points; Keras enters here."""
        options: dict[str, Any] = {"need_weights": need_weights, "dropout_mask": dropout_mask, **mode_of(training)}
        mask = join_attached(mask, keys, values)
        mask = tf.ones((1, 1, 1), tf.bool) if mask is None else mask
        allowed: Any = _attention_mask(size(keys, 1), valid_lens, mask)
        inducing = tf.repeat(tf.cast(self.inducing, keys.dtype)[None], size(keys, 0), axis=0)
        memory, _ = self.gather(
            *(inducing, keys, values, None, allowed),
            need_weights=False,
            dropout_mask=gather_dropout_mask,
            **mode_of(training),
        )
        opened = tf.reduce_any(allowed, axis=-1, keepdims=True)
        return self.spread(queries, memory, memory, None, opened, **options)


@keras.saving.register_keras_serializable(package="attention_parity")
class CompressedAttention(ShortenedAttention):
    """Attention to blocks of keys and values, each compressed to a single one by a strided convolution.

    context, weights = attention_pooling(scaled_dot_score(queries, keys'), values')
    keys'[t] = W_k [keys[t·stride]; ...; keys[t·stride + stride - 1]] + b_k, and values' likewise by W_v and b_v

    There are ⌈keys / stride⌉ blocks, of which the last is filled with zeros; a block is open where any of its keys is.
    A compressed value has the features of a value, and all heads share the convolutions.

    Args:
        query_size: features of a query
        key_size: features of a key
        stride: keys in a block: width and stride of the convolution
        value_size (default None): features of a value; key_size if None
        bias (default True): whether the convolutions have biases
        scale (default None): factor of the scores; 1/√features if None
        dropout (default 0.0): dropout rate of the weights in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W_k: (query_size, stride · key_size), compresses the keys of a block
        W_v: (value_size, stride · value_size), compresses the values of a block
        b_k: (query_size,), biases of the keys, if bias
        b_v: (value_size,), biases of the values, if bias
        scored.*: the DotProductAttention to the blocks, which has none
    Source: Liu et al. 2018, section 4.2.3, arXiv:1801.10198
    Example:
        layer = attention.CompressedAttention(query_size, key_size, stride)
        context, weights = layer(queries, keys, values)
    """

    specification = COMPRESSED_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        stride: int,
        *,
        value_size: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        of_values = self.sizes["value_size"]
        self.W_k = self._projection("W_k", stride * key_size, query_size, use_bias=bias)
        self.W_v = self._projection("W_v", stride * of_values, of_values, use_bias=bias)

    def _shorten(self, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | Any) -> Memory:
        """Return a key and a value for each block, open where any of its keys is."""
        steps = keys, values, mask[..., 0, :, None]
        keys, values, opened = (join_blocks(array, self.sizes["stride"]) for array in steps)
        opened = tf.expand_dims(tf.reduce_any(opened, axis=-1), axis=-2)
        return Memory(project(self.W_k, keys), project(self.W_v, values), opened)


def join_blocks(steps: tf.Tensor, stride: int) -> tf.Tensor:
    """The features of each `stride` steps in a row; zeros fill the last block."""
    *leading, length, features = (size(steps, axis) for axis in range(steps.shape.rank))
    count = (length + stride - 1) // stride
    filled = tf.pad(steps, (*[(0, 0)] * len(leading), (0, count * stride - length), (0, 0)))
    return tf.reshape(filled, (*leading, count, stride * features))
