"""Trainable attention layers in Keras: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from attention_core.operators.attention import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    KERNEL_ATTENTION,
    LOCATION_ATTENTION,
)
from attention_core.specification import Part
from backends.tf import kernels
from backends.tf.arrays import Lengths, Offset, lengths
from backends.tf.masking import add_bias, open_keys, open_to, size, softmax_over
from backends.tf.memory import Memory, extend_memory, in_heads, zero_masked
from backends.tf.module import Specified, draw_mask, draw_parameter, join_attached, mode_of, project
from backends.tf.pooling import average
from backends.tf.scoring import (
    _additive_score,
    _cosine_score,
    _dot_score,
    _gaussian_score,
    _location_score,
    _scaled_dot_score,
)

__all__ = [
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
    "LocationAttention",
    "KernelAttention",
]

Answer = tuple[tf.Tensor, tf.Tensor | Any]
"""Context and weights, which are None without need_weights."""


class Form(NamedTuple):
    """A score of a query q and a projected key k, as kernels compute it.

    w_v · tanh(W_q q + k), or without w_v: scale · q·k, bounded by softcap
    """

    W_q: keras.layers.Layer | Callable[[], tf.Tensor] | None = None
    """The projection of queries, or the function that returns its matrix: slicing one takes a while in eager mode."""
    w_v: tf.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def project(self, queries: tf.Tensor) -> tf.Tensor:
        """Return W_q q."""
        if isinstance(self.W_q, keras.layers.Layer):
            return project(self.W_q, queries)
        return queries if self.W_q is None else tf.matmul(queries, self.W_q())


class Attention(Specified):
    """Base class of the attention layers: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)

    Shapes: queries (batch, queries, features of a query), keys (batch, keys, features of a key), values
    (batch, keys, value_features), all with heads after batch or without, or (queries, batch, ...) and (keys, batch,
    ...) with time_major, as is context then; returns (context, weights).
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.dropout = keras.layers.Dropout(self.sizes.get("dropout", 0.0), autocast=False)

    def prepare(
        self, keys: tf.Tensor, values: tf.Tensor, valid_lens: Lengths | None = None, mask: tf.Tensor | None = None
    ) -> Memory:
        """Project the keys and zero what no query may attend to, once for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where no query may attend

        Args:
            keys: (batch, [key_heads or heads], keys, features or key_size or key_features); key vectors
            values: (batch, [key_heads or heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
            ShapeError: heads of queries that key heads cannot share evenly
        """
        self._check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        keys, values = self._cast((keys, values))
        return self._prepare(keys, values, valid_lens, mask)

    def extend(
        self,
        memory: Memory,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        position: Offset | None = None,
    ) -> Memory:
        """Add the keys and values of further steps to a prepared memory.

        memory' = [memory; steps], with steps = prepare(keys, values, valid_lens, mask)
        with position, memory'[b, position[b] + t] = steps[b, t], and memory'[b, j] = memory[b, j] at every other key j

        A key of the memory that any query could attend to is open to all later ones. With position, the memory keeps
        its number of keys, as compilers need it: prepare one with hidden keys as room, whose valid_lens are the first
        position. A step before the first key (position may be negative) or beyond the last is left out.

        Args:
            memory: as `prepare` returns it
            keys: (batch, [key_heads or heads], steps, features or key_size or key_features); key vectors
            values: (batch, [key_heads or heads], steps, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, steps), broadcast; True where a query may attend
            position (default None): integers (batch,); number of the key that the first step replaces; behind the last
                key if None
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
            ShapeError: heads of queries that key heads cannot share evenly
        """
        given: dict[str, Any] = {"valid_lens": valid_lens, "mask": mask, "position": position}
        self._check("extend", memory=memory, keys=keys, values=values, **given)
        keys, values = self._cast((keys, values))
        first = size(memory.keys, -2) if position is None else position
        return extend_memory(memory, self._prepare(keys, values, valid_lens, mask, first), position)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        A query that may attend to nothing gets weights and context 0.

        Args:
            queries: (batch, [heads], queries, features or query_size); query vectors
            memory: as `prepare` returns it
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], queries, keys), broadcast; added to the scores; -inf hides a key
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: heads of queries that key heads cannot share evenly
        """
        self._check(
            "attend", queries=queries, memory=memory, need_weights=need_weights, bias=bias, dropout_mask=dropout_mask
        )
        queries, memory, bias, dropout_mask = self._cast((queries, memory, bias, dropout_mask))
        return self._attend(
            queries, memory, need_weights=need_weights, bias=bias, dropout_mask=dropout_mask, training=training
        )

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them.

        context, weights = attention_pooling(score(queries, project(keys)), values)

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.

        Args:
            queries: (batch, [heads], queries, features or query_size); query vectors
            keys: (batch, [key_heads or heads], keys, features or key_size or key_features); key vectors
            values: (batch, [key_heads or heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], queries, keys), broadcast; added to the scores; -inf hides a key
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
            ShapeError: heads of queries that key heads cannot share evenly
        """
        options: dict[str, Any] = {"need_weights": need_weights, "bias": bias, "dropout_mask": dropout_mask}
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return self._enter(queries, keys, values, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        options: dict[str, Any] = {
            "need_weights": need_weights,
            "bias": bias,
            "dropout_mask": dropout_mask,
            "training": training,
        }
        return self._attend(queries, self._prepare(keys, values, valid_lens, open_to(mask, bias)), **options)

    def _prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None,
        mask: tf.Tensor | None,
        position: Offset | None = None,
    ) -> Memory:
        """Prepare keys, the first at `position`, which only rotary positions read."""
        mask = join_attached(mask, keys, values, time_major=self.sizes["time_major"])
        memory = zero_masked(self._to_batch_first(keys), self._to_batch_first(values), valid_lens, mask)
        return memory._replace(keys=self._project(memory.keys))

    def _attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> Answer:
        queries = self._to_batch_first(queries)
        context, weights = self._pool(self, queries, memory, need_weights, bias, dropout_mask, training)
        return self._to_batch_first(context), weights

    def _pool(
        self,
        scored: Attention,
        queries: tf.Tensor,
        memory: Memory,
        need_weights: bool,
        bias: tf.Tensor | None,
        dropout_mask: tf.Tensor | None,
        training: bool | None,
    ) -> Answer:
        """Pool by the score of this layer or of one inside it, in blocks if sizes warrant it and nothing is dropped.

        context, weights = attention_pooling(scored.score(queries, memory.keys) + bias, memory.values)
        """
        form = scored._form(queries.shape[-1])
        is_dropped = dropout_mask is not None or (training and self.dropout.rate > 0.0)
        if form is not None and not is_dropped:
            kernel = kernels.of("attention", form, queries, memory, need_weights, bias)
            if kernel is not None:
                return kernel(form, queries, memory, need_weights, bias)
        memory = in_heads(memory, queries)
        scores = scored._score(queries, memory.keys)
        if bias is not None:
            scores = add_bias(scores, bias)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, scores, training)
        allowed = open_keys(scores, memory.mask)
        weights = softmax_over(scores, allowed)
        # `prepare` has cleared the values that the mask hides; a score of -inf would hide values, too.
        is_bounded = form is not None and form.w_v is not None and bias is None
        context = average(weights, memory.values, None if is_bounded else allowed, dropout_mask)
        return context, weights if need_weights else None

    def _project(self, keys: tf.Tensor) -> tf.Tensor:
        """Project the keys: the identity, unless a layer overrides it."""
        return keys

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Score each query against each projected key."""
        raise NotImplementedError

    def _form(self, features: int | None) -> Form | None:
        """Return the form of the score of queries with so many features; None if it is neither of the two."""
        return None

    def _to_batch_first(self, array: tf.Tensor) -> tf.Tensor:
        """Swap the axes of batch and time if time_major."""
        return tf.transpose(array, (1, 0, 2)) if self.sizes["time_major"] else array

    # particular to TensorFlow

    def _enter(self, *arrays: tf.Tensor | None, **options: Any) -> Answer:
        """Hand the arguments to Keras, which calls `call`."""
        # By position: Keras takes a mask given by keyword for one that belongs to the first input, and warns that it
        # gets lost.
        return super().__call__(*arrays, **options)


@keras.saving.register_keras_serializable(package="attention_parity")
class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Keys and values may have fewer heads than queries: query head h reads key head ⌊h · key_heads / heads⌋. Source:
    Ainslie et al. 2023, section 2.2, arXiv:2305.13245.

    Args:
        dropout (default 0.0): dropout rate of the weights in training
        scale (default None): factor of the scores; 1/√features if None
        softcap (default None): bound of the scores; none if None
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762
    Example:
        layer = attention.DotProductAttention()
        context, weights = layer(queries, keys, values)

    In TensorFlow: inputs of any floating type, or of dtype if given.
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return scale · q·k, bounded by softcap."""
        return _scaled_dot_score(queries, keys, self.sizes["scale"], self.sizes["softcap"])

    def _form(self, features: int | None) -> Form | None:
        if features is None:
            return None
        scale = self.sizes["scale"]
        return Form(scale=max(features, 1) ** -0.5 if scale is None else scale, softcap=self.sizes["softcap"])


@keras.saving.register_keras_serializable(package="attention_parity")
class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Args:
        query_size: features of a query
        key_size: features of a key
        hidden_size: features of the hidden layer
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W_q: (hidden_size, query_size), projects queries
        W_k: (hidden_size, key_size), projects keys
        w_v: (hidden_size,), weight of each hidden feature
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        layer = attention.AdditiveAttention(query_size, key_size, hidden_size)
        context, weights = layer(queries, keys, values)
    """

    specification = ADDITIVE_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W_q = self._projection("W_q", query_size, hidden_size)
        self.W_k = self._projection("W_k", key_size, hidden_size)
        self.w_v = draw_parameter(self, "w_v", (hidden_size,), hidden_size)

    def _project(self, keys: tf.Tensor) -> tf.Tensor:
        """Return W_k k."""
        return project(self.W_k, keys)

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return w_v · tanh(W_q q + k)."""
        return _additive_score(project(self.W_q, queries), keys, self._cast(self.w_v.value))

    def _form(self, features: int | None) -> Form:
        return Form(W_q=self.W_q, w_v=self._cast(self.w_v.value))


@keras.saving.register_keras_serializable(package="attention_parity")
class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Args:
        query_size: features of a query
        key_size: features of a key
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W: (query_size, key_size), projects keys to the size of queries
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        layer = attention.GeneralAttention(query_size, key_size)
        context, weights = layer(queries, keys, values)
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W = self._projection("W", key_size, query_size)

    def _project(self, keys: tf.Tensor) -> tf.Tensor:
        """Return W k."""
        return project(self.W, keys)

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return q·k."""
        return _dot_score(queries, keys)

    def _form(self, features: int | None) -> Form:
        return Form()


@keras.saving.register_keras_serializable(package="attention_parity")
class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys] + b), values), without b unless bias

    The two halves of W are W_q and W_k of AdditiveAttention, which is the same function without a bias.

    Args:
        query_size: features of a query
        key_size: features of a key
        hidden_size: features of the hidden layer
        dropout (default 0.0): dropout rate of the weights in training
        bias (default False): whether the hidden layer has a bias
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W: (hidden_size, query_size + key_size), projects [query; key]
        b: (hidden_size,), bias of the hidden layer, if bias
        v: (hidden_size,), weight of each hidden feature
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        layer = attention.ConcatAttention(query_size, key_size, hidden_size)
        context, weights = layer(queries, keys, values)
    """

    specification = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        bias: bool = False,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W = self._projection("W", query_size + key_size, hidden_size)
        self.b = draw_parameter(self, "b", (hidden_size,), query_size + key_size) if bias else None
        self.v = draw_parameter(self, "v", (hidden_size,), hidden_size)

    def _project(self, keys: tf.Tensor) -> tf.Tensor:
        """Return W [0; k] + b."""
        projected = tf.matmul(keys, self._cast(self.W.kernel)[self.sizes["query_size"] :])
        return projected if self.b is None else projected + self._cast(self.b.value)

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return v · tanh(W [q; 0] + k)."""
        return _additive_score(tf.matmul(queries, self._half()), keys, self._cast(self.v.value))

    def _form(self, features: int | None) -> Form:
        return Form(W_q=self._half, w_v=self._cast(self.v.value))

    # particular to TensorFlow

    def _half(self) -> tf.Tensor:
        """Return W's half of queries."""
        return self._cast(self.W.kernel)[: self.sizes["query_size"]]


@keras.saving.register_keras_serializable(package="attention_parity")
class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Args:
        dropout (default 0.0): dropout rate of the weights in training
        scale (default None): factor of the cosines; 1 if None
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Source: Graves et al. 2014, section 3.3.1, arXiv:1410.5401
    Example:
        layer = attention.CosineAttention()
        context, weights = layer(queries, keys, values)

    In TensorFlow: inputs of any floating type, or of dtype if given.
    """

    specification = COSINE_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return scale · q·k/(‖q‖ ‖k‖)."""
        return _cosine_score(queries, keys, self.sizes["scale"])


@keras.saving.register_keras_serializable(package="attention_parity")
class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, and the keys do not matter.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    There may be fewer keys than num_positions, but not more. Only their number matters: keys may have any features, and
    get gradient 0.

    Args:
        query_size: features of a query
        num_positions: positions that have a score
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W: (num_positions, query_size), scores of each position
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        layer = attention.LocationAttention(query_size, num_positions)
        context, weights = layer(queries, keys, values)
    """

    specification = LOCATION_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_positions: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W = self._projection("W", query_size, num_positions)

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return W q, at the positions of the keys."""
        return _location_score(size(keys, -2), project(self.W, queries))


@keras.saving.register_keras_serializable(package="attention_parity")
class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    width is in the units of queries and keys.

    Args:
        dropout (default 0.0): dropout rate of the weights in training
        width (default 1.0): standard deviation of the kernel, 1/w
        learned (default False): whether w is a parameter with initial value 1/width, or the constant 1/width
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        w: (), inverse width of the kernel, if learned
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372
    Example:
        layer = attention.KernelAttention()
        context, weights = layer(queries, keys, values)
    """

    specification = KERNEL_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        width: float = 1.0,
        learned: bool = False,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        if learned:
            start = keras.initializers.Constant(1.0 / width)
            self.w = self.add_weight(name="w", shape=(), initializer=start, autocast=False)

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Return -½ ‖(q - k) w‖²."""
        w = self._cast(self.w.value) if self.sizes["learned"] else tf.constant(1.0 / self.sizes["width"], queries.dtype)
        return _gaussian_score(queries, keys, w)


LAYERS: dict[str, Callable[..., Attention]] = {name: globals()[name] for name in __all__ if name != "Memory"}
"""The layers of this file, which other layers may have inside them, by name."""


def attention_layer(
    part: Part, layers: Mapping[str, Callable[..., Attention]] = LAYERS, *, caller: Specified, name: str
) -> Attention:
    """Make and build the attention layer that another layer has inside."""
    with keras.name_scope(caller.name, caller=caller):
        layer = layers[part.layer.name](**part.config, dtype=caller.dtype_policy, name=name)
        layer.build(None)  # Keras does so at a first call, which a layer inside may never see
    return layer


class ScoredAttention(Attention):
    """Base class of the attention layers that project keys and score them by another layer, `scored`."""

    scored: Attention

    def _project(self, keys: tf.Tensor) -> tf.Tensor:
        """Project the keys by the layer of the score."""
        return self.scored._project(keys)

    def _score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Score by the layer of the score."""
        return self.scored._score(queries, keys)
