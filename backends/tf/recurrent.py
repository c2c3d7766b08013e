"""Recurrent layers and encoders in Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import GRU as GRU_SPECIFICATION
from attention_core.operators import GRU_ENCODER
from backends.tf.layers import chosen, drawn_mask, parameter_dtype
from backends.tf.masking import size

__all__ = ["GRU", "GRUEncoder"]


@keras.saving.register_keras_serializable(package="attention_parity")
class GRU(keras.layers.Layer):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_SPECIFICATION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(
            self.specification, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, dropout=dropout
        )
        with keras.name_scope(self.name, caller=self):
            self.layers = [
                GRULayer(
                    input_size if layer == 0 else hidden_size,
                    hidden_size,
                    dtype=self.variable_dtype,
                    name=f"layer_{layer}",
                )
                for layer in range(num_layers)
            ]
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def step(
        self,
        inputs: tf.Tensor,
        state: tf.Tensor,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one step.

        Shapes: inputs (batch, input_size), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size); returns (output, state).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.variable_dtype,
            inputs=inputs,
            state=state,
            dropout_mask=dropout_mask,
        )
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, state, training)  # the last row goes unused
        output, states = inputs, tf.unstack(state, num=len(self.layers))
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            output = gru_cell(layer.project(output), states[index], *layer.recurrence())
            states[index] = output
        return output, tf.stack(states)

    def __call__(
        self,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            inputs=inputs,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        return super().__call__(inputs, valid_lens, state, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run over a batch of sequences; Keras enters here."""
        batch, steps, hidden = size(inputs, 0), size(inputs, 1), self.sizes["hidden_size"]
        if state is None:
            state = tf.zeros((len(self.layers), batch, hidden), inputs.dtype)
        if dropout_mask is None:
            between = tf.zeros((len(self.layers) - 1, batch, steps, hidden), inputs.dtype)
            dropout_mask = drawn_mask(self.dropout, between, training)
        if valid_lens is not None:
            lens = tf.cast(valid_lens, tf.int64)
            real = (tf.range(steps, dtype=tf.int64) < lens[:, None])[:, :, None]
            inputs = tf.where(real, inputs, 0.0)
        outputs, last = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            states = layer(outputs, state[index])
            outputs = states[:, 1:]
            last.append(states[:, -1] if valid_lens is None else last_valid(states, lens))
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        return outputs if valid_lens is None else tf.where(real, outputs, 0.0), tf.stack(last)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        sizes = {name: self.sizes[name] for name in ("input_size", "hidden_size", "num_layers")}
        return {**sizes, "dropout": self.dropout.rate, "dtype": self.variable_dtype, "name": self.name}


class GRULayer(keras.layers.Layer):
    """The canonical parameters of one recurrent layer, and their run over the steps."""

    def __init__(self, input_size: int, hidden_size: int, *, dtype: str, name: str) -> None:
        super().__init__(dtype=dtype, name=name, autocast=False)
        bound = hidden_size**-0.5
        for weight, shape in (
            ("W", (3, hidden_size, input_size)),
            ("U", (3, hidden_size, hidden_size)),
            ("b", (3, hidden_size)),
            ("b_hn", (hidden_size,)),
        ):
            # An initializer draws the same numbers each time it is called, so each weight has its own.
            uniform = keras.initializers.RandomUniform(-bound, bound)
            setattr(self, weight, self.add_weight(name=weight, shape=shape, initializer=uniform, autocast=False))
        self.build(None)

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        """The state before the first step and after every step: (batch, steps + 1, hidden_size)."""
        batch, steps, (gates, hidden, features) = size(inputs, 0), size(inputs, 1), self.W.shape
        recurrence = self.recurrence()
        # The inputs of all steps are projected at once, before the loop.
        projected = self.project(tf.reshape(tf.transpose(inputs, (1, 0, 2)), (-1, features)))
        projected = tf.reshape(projected, (steps, batch, gates * hidden))
        projected = tf.TensorArray(inputs.dtype, size=steps).unstack(projected)
        # The state before the first step stands in front: an empty TensorArray cannot be stacked.
        states = tf.TensorArray(state.dtype, size=steps + 1).write(0, state)

        def advance(t: tf.Tensor, state: tf.Tensor, states: tf.TensorArray) -> tuple[tf.Tensor, ...]:
            after = gru_cell(projected.read(t), state, *recurrence)
            after.set_shape(state.shape)
            return t + 1, after, states.write(t + 1, after)

        _, _, states = tf.while_loop(lambda t, *_: t < steps, advance, (0, state, states), maximum_iterations=steps)
        return tf.transpose(states.stack(), (1, 0, 2))

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """W x + b of the three gates, side by side."""
        weights = tf.reshape(self.W.value, (-1, self.W.shape[-1]))
        return tf.matmul(inputs, weights, transpose_b=True) + tf.reshape(self.b.value, (-1,))

    def recurrence(self) -> tuple[tf.Tensor, tf.Tensor]:
        """U with the rows of the three gates one below the other, and b_hn."""
        return tf.reshape(self.U.value, (-1, self.U.shape[-1])), self.b_hn.value


@keras.saving.register_keras_serializable(package="attention_parity")
class GRUEncoder(keras.layers.Layer):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_ENCODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(
            self.specification,
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
        )
        with keras.name_scope(self.name, caller=self):
            self.embedding = keras.layers.Embedding(
                self.sizes["vocab_size"], self.sizes["embed_size"], dtype=self.variable_dtype, name="embedding"
            )
            self.embedding.build(None)
            self.rnn = GRU(embed_size, hidden_size, num_layers, dropout=dropout, dtype=self.variable_dtype, name="rnn")
            self.rnn.build(None)

    def __call__(
        self,
        tokens: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode a batch of token sequences.

        outputs, state = GRU(embedding[tokens])
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            tokens=tokens,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        check_known(self.specification.name, tokens, self.sizes["vocab_size"])
        return super().__call__(tokens, valid_lens, state, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        tokens: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode a batch of token sequences; Keras enters here."""
        embedded = self.embedding(tokens)
        return self.rnn(embedded, valid_lens, state, dropout_mask=dropout_mask, training=training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        sizes = {name: self.sizes[name] for name in ("vocab_size", "embed_size", "hidden_size", "num_layers")}
        return {**sizes, "dropout": self.rnn.dropout.rate, "dtype": self.variable_dtype, "name": self.name}


def gru_cell(projected: tf.Tensor, state: tf.Tensor, recurrent: tf.Tensor, hidden_bias: tf.Tensor) -> tf.Tensor:
    """The state after one step of one layer, from W x + b and the state before."""
    input_r, input_z, input_n = tf.split(projected, 3, axis=-1)
    state_r, state_z, state_n = tf.split(tf.matmul(state, recurrent, transpose_b=True), 3, axis=-1)
    reset = tf.sigmoid(input_r + state_r)
    update = tf.sigmoid(input_z + state_z)
    new = tf.tanh(input_n + reset * (state_n + hidden_bias))
    return (1 - update) * new + update * state


def check_known(title: str, tokens: tf.Tensor | np.ndarray | keras.KerasTensor, vocab_size: int) -> None:
    """Refuse tokens outside the vocabulary where their values are known: not while a graph or a model is traced."""
    if tf.executing_eagerly() and not isinstance(tokens, keras.KerasTensor) and 0 not in tokens.shape:
        check_tokens(title, "tokens", int(tf.reduce_min(tokens)), int(tf.reduce_max(tokens)), vocab_size)


def last_valid(states: tf.Tensor, valid_lens: tf.Tensor) -> tf.Tensor:
    """The state after each sequence's last valid step; states begin with the one before the first."""
    steps = tf.cast(size(states, 1) - 1, valid_lens.dtype)
    return tf.gather(states, tf.clip_by_value(valid_lens, 0, steps), axis=1, batch_dims=1)
