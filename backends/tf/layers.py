"""Trainable attention layers in Keras: prepare keys and values once, attend many times."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from attention_core.errors import check, check_options
from attention_core.operators import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
)
from backends.tf.masking import attention_mask, size
from backends.tf.pooling import attention_pooling
from backends.tf.scoring import additive_score, cosine_score, dot_score, scaled_dot_score

__all__ = [
    "Memory",
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: tf.Tensor
    values: tf.Tensor
    mask: tf.Tensor | None


@keras.saving.register_keras_serializable(package="attention_parity")
class DotProductAttention(keras.layers.Layer):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), all
    with heads after batch or without; returns (context, weights). Inputs of any floating type, or of dtype if given.
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.required_dtype = None if dtype is None else self.variable_dtype
        self.scale = scale
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.required_dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(scaled_dot_score(queries, keys), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.required_dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = scaled_dot_score(queries, memory.keys, scale=self.scale)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.required_dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(queries, keys, values, valid_lens, mask, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, dropout_mask=dropout_mask, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "dropout": self.dropout.rate,
            "scale": self.scale,
            "dtype": self.required_dtype,
            "name": self.name,
        }


@keras.saving.register_keras_serializable(package="attention_parity")
class AdditiveAttention(keras.layers.Layer):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = ADDITIVE_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        hidden_size = self.sizes["hidden_size"]  # Keras refuses whole numbers of NumPy
        with keras.name_scope(self.name, caller=self):
            self.W_q = keras.layers.Dense(hidden_size, use_bias=False, dtype=self.variable_dtype, name="W_q")
            self.W_k = keras.layers.Dense(hidden_size, use_bias=False, dtype=self.variable_dtype, name="W_k")
            self.W_q.build((None, query_size))
            self.W_k.build((None, key_size))
        bound = hidden_size**-0.5
        uniform = keras.initializers.RandomUniform(-bound, bound)
        self.w_v = self.add_weight(name="w_v", shape=(hidden_size,), initializer=uniform, autocast=False)
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.variable_dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=projected(self.W_k, memory.keys))

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.variable_dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = additive_score(projected(self.W_q, queries), memory.keys, self.w_v.value)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(queries, keys, values, valid_lens, mask, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, dropout_mask=dropout_mask, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**self.sizes, "dropout": self.dropout.rate, "dtype": self.variable_dtype, "name": self.name}


@keras.saving.register_keras_serializable(package="attention_parity")
class GeneralAttention(keras.layers.Layer):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(self.specification, query_size=query_size, key_size=key_size, dropout=dropout)
        query_size = self.sizes["query_size"]  # Keras refuses whole numbers of NumPy
        with keras.name_scope(self.name, caller=self):
            self.W = keras.layers.Dense(query_size, use_bias=False, dtype=self.variable_dtype, name="W")
            self.W.build((None, key_size))
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.variable_dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=projected(self.W, memory.keys))

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(dot_score(queries, W keys), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.variable_dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = dot_score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(queries, keys, values, valid_lens, mask, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, dropout_mask=dropout_mask, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**self.sizes, "dropout": self.dropout.rate, "dtype": self.variable_dtype, "name": self.name}


@keras.saving.register_keras_serializable(package="attention_parity")
class ConcatAttention(keras.layers.Layer):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        hidden_size = self.sizes["hidden_size"]  # Keras refuses whole numbers of NumPy
        with keras.name_scope(self.name, caller=self):
            self.W = keras.layers.Dense(hidden_size, use_bias=False, dtype=self.variable_dtype, name="W")
            self.W.build((None, query_size + key_size))
        bound = hidden_size**-0.5
        uniform = keras.initializers.RandomUniform(-bound, bound)
        self.v = self.add_weight(name="v", shape=(hidden_size,), initializer=uniform, autocast=False)
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.variable_dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=tf.matmul(memory.keys, self.W.kernel[self.sizes["query_size"] :]))

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.variable_dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        query = tf.matmul(queries, self.W.kernel[: self.sizes["query_size"]])
        scores = additive_score(query, memory.keys, self.v.value)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(queries, keys, values, valid_lens, mask, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, dropout_mask=dropout_mask, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        sizes = {name: self.sizes[name] for name in ("query_size", "key_size", "hidden_size")}
        return {**sizes, "dropout": self.dropout.rate, "dtype": self.variable_dtype, "name": self.name}


@keras.saving.register_keras_serializable(package="attention_parity")
class CosineAttention(keras.layers.Layer):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), all
    with heads after batch or without; returns (context, weights). Inputs of any floating type, or of dtype if given.
    """

    specification = COSINE_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.required_dtype = None if dtype is None else self.variable_dtype
        self.scale = scale
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.required_dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(cosine_score(queries, keys), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.required_dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = cosine_score(queries, memory.keys, scale=self.scale)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.required_dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(queries, keys, values, valid_lens, mask, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, dropout_mask=dropout_mask, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "dropout": self.dropout.rate,
            "scale": self.scale,
            "dtype": self.required_dtype,
            "name": self.name,
        }


def projected(dense: keras.layers.Dense, inputs: tf.Tensor) -> tf.Tensor:
    """The inputs through the layer, as rows of one matrix.

    With more than two axes Keras takes tf.tensordot, which is slower in eager mode, and whose gradient XLA cannot
    compile in a loop over the steps of a batch of unknown size.
    """
    rows = dense(tf.reshape(inputs, (-1, dense.kernel.shape[0])))
    return tf.reshape(rows, [size(inputs, axis) for axis in range(inputs.shape.rank - 1)] + [dense.units])


def cleared(keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor | None, mask: tf.Tensor | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(size(keys, -2), valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.shape.rank < keys.shape.rank:
        allowed = allowed[:, None]
    seen = tf.expand_dims(tf.reduce_any(allowed, axis=-2), axis=-1)
    return Memory(tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0), allowed)


def drawn_mask(dropout: keras.layers.Dropout, like: tf.Tensor, training: bool | None) -> tf.Tensor | None:
    """A dropout mask from Keras's own generator, or None where nothing is dropped."""
    return dropout(tf.ones_like(like), training=True) if training and dropout.rate > 0.0 else None


def chosen(training: bool | None) -> dict[str, bool]:
    """`training` as a keyword if it was given: Keras lets an explicit None win over the mode of the layer around it."""
    return {} if training is None else {"training": training}


def parameter_dtype(dtype: str | tf.DType | None) -> str:
    """The type of parameters under that Keras policy; mixed policies would compute in another, by a silent cast."""
    return keras.dtype_policies.get(dtype).variable_dtype
