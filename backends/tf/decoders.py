"""Decoders with attention in Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import BAHDANAU_DECODER
from backends.tf.layers import AdditiveAttention, Memory, chosen, drawn_mask, parameter_dtype
from backends.tf.masking import size
from backends.tf.recurrent import GRU, check_known

__all__ = ["BahdanauDecoder"]


@keras.saving.register_keras_serializable(package="attention_parity")
class BahdanauDecoder(keras.layers.Layer):
    """Decode with additive attention whose query is the previous state of the top recurrent layer.

    context, weights = AdditiveAttention(top state, encoder_outputs)
    state' = GRU([context; embedding[token]], state);  logits = dense.W state'[top] + dense.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, hidden_size);
    returns (logits, state, weights): (batch, steps, vocab_size), the shape of state, (batch, steps, keys).
    """

    specification = BAHDANAU_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
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
            memory_size=memory_size,
            attention_size=attention_size,
            dropout=dropout,
        )
        memory_size, attention_size = self.sizes["memory_size"], self.sizes["attention_size"]
        dtype = self.variable_dtype
        with keras.name_scope(self.name, caller=self):
            self.embedding = keras.layers.Embedding(
                self.sizes["vocab_size"], self.sizes["embed_size"], dtype=dtype, name="embedding"
            )
            self.attention = AdditiveAttention(
                hidden_size, memory_size, attention_size, dropout=dropout, dtype=dtype, name="attention"
            )
            self.rnn = GRU(memory_size + embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype, name="rnn")
            self.dense = keras.layers.Dense(self.sizes["vocab_size"], dtype=dtype, name="dense")
            for layer in (self.embedding, self.attention, self.rnn):
                layer.build(None)
            self.dense.build((None, hidden_size))

    def prepare(
        self,
        encoder_outputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = AdditiveAttention.prepare(encoder_outputs, encoder_outputs)
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.variable_dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def step(
        self,
        tokens: tf.Tensor,
        state: tf.Tensor,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decode one token.

        Shapes: tokens (batch,), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the shape of state, (batch, keys).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.variable_dtype,
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        check_known(self.specification.name, tokens, self.sizes["vocab_size"])
        embedded = self.embedding(tokens)
        output, state, weights = self.advance(
            embedded, state, memory, dropout_mask, attention_dropout_mask, training=training
        )
        return self.dense(output), state, weights

    def __call__(
        self,
        tokens: tf.Tensor,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: valid_lens (batch,) or (batch, steps); mask (batch, steps, keys), each axis its size or 1; dropout_mask
        (num_layers - 1, batch, steps, hidden_size); attention_dropout_mask (batch, steps, keys).
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        check_known(self.specification.name, tokens, self.sizes["vocab_size"])
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(
            tokens,
            encoder_outputs,
            state,
            valid_lens,
            mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
            **chosen(training),
        )

    def call(
        self,
        tokens: tf.Tensor,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing); Keras enters here."""
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        embedded = self.embedding(tokens)
        batch, steps, keys = size(tokens, 0), size(tokens, 1), size(encoder_outputs, 1)
        if dropout_mask is None:
            between = (self.sizes["num_layers - 1"], batch, steps, self.sizes["hidden_size"])
            dropout_mask = drawn_mask(self.rnn.dropout, tf.zeros(between, embedded.dtype), training)
        if attention_dropout_mask is None:
            scores = tf.zeros((batch, steps, keys), embedded.dtype)
            attention_dropout_mask = drawn_mask(self.attention.dropout, scores, training)
        embedded = tf.TensorArray(embedded.dtype, size=steps).unstack(tf.transpose(embedded, (1, 0, 2)))
        # The output before the first step stands in front: an empty TensorArray cannot be stacked.
        outputs = tf.TensorArray(state.dtype, size=steps + 1).write(0, state[-1])
        weights = tf.TensorArray(state.dtype, size=steps + 1).write(0, tf.zeros((batch, keys), state.dtype))

        def advance(
            t: tf.Tensor, state: tf.Tensor, outputs: tf.TensorArray, weights: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray, tf.TensorArray]:
            output, after, attended = self.advance(
                embedded.read(t),
                state,
                memory._replace(mask=row(memory.mask, t)),
                None if dropout_mask is None else dropout_mask[:, :, t],
                None if attention_dropout_mask is None else attention_dropout_mask[:, t],
            )
            after.set_shape(state.shape)
            return t + 1, after, outputs.write(t + 1, output), weights.write(t + 1, attended)

        _, state, outputs, weights = tf.while_loop(
            lambda t, *_: t < steps, advance, (0, state, outputs, weights), maximum_iterations=steps
        )
        outputs = tf.transpose(outputs.stack()[1:], (1, 0, 2))
        return self.dense(outputs), state, tf.transpose(weights.stack()[1:], (1, 0, 2))

    def greedy(
        self,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decode by feeding back the most probable token, up to an end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Shapes: valid_lens (batch,), mask (batch, 1, keys). Returns (tokens, lengths, weights): (batch, max_steps) ids,
        eos from the end on; (batch,) the number of tokens before eos; (batch, max_steps, keys), 0 after the end.
        """
        operator = self.specification.method("greedy")
        check_options(operator, bos=bos, eos=eos, max_steps=max_steps)
        check_tokens(operator.title, "bos", bos, bos, self.sizes["vocab_size"])
        check_tokens(operator.title, "eos", eos, eos, self.sizes["vocab_size"])
        check(
            operator,
            self.sizes,
            self.variable_dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        batch, keys = size(encoder_outputs, 0), size(encoder_outputs, 1)
        # What stands after the end is there from the start. An empty TensorArray cannot be stacked: one row at least.
        rows, dtype = max(max_steps, 1), encoder_outputs.dtype
        tokens = tf.TensorArray(tf.int32, size=rows).unstack(tf.fill((rows, batch), int(eos)))
        weights = tf.TensorArray(dtype, size=rows).unstack(tf.zeros((rows, batch, keys), dtype))
        token = tf.fill((batch,), int(bos))
        running = tf.ones((batch,), tf.bool)
        lengths = tf.zeros((batch,), tf.int32)

        def advance(
            t: tf.Tensor,
            token: tf.Tensor,
            state: tf.Tensor,
            running: tf.Tensor,
            tokens: tf.TensorArray,
            lengths: tf.Tensor,
            weights: tf.TensorArray,
        ) -> tuple[tf.Tensor, ...]:
            output, after, attended = self.advance(self.embedding(token), state, memory, None, None)
            token = tf.where(running, tf.argmax(self.dense(output), axis=-1, output_type=tf.int32), int(eos))
            tokens = tokens.write(t, token)
            weights = weights.write(t, tf.where(tf.expand_dims(running, axis=1), attended, 0.0))
            running = tf.logical_and(running, tf.not_equal(token, int(eos)))
            lengths = lengths + tf.cast(running, tf.int32)
            after.set_shape(state.shape)
            return t + 1, token, after, running, tokens, lengths, weights

        *_, tokens, lengths, weights = tf.while_loop(
            lambda t, token, state, running, *_: tf.logical_and(t < max_steps, tf.reduce_any(running)),
            advance,
            (0, token, state, running, tokens, lengths, weights),
        )
        tokens = tf.transpose(tokens.stack()[:max_steps])
        return tokens, lengths, tf.stop_gradient(tf.transpose(weights.stack()[:max_steps], (1, 0, 2)))

    def advance(
        self,
        embedded: tf.Tensor,
        state: tf.Tensor,
        memory: Memory,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """One step without the readout: (output, state, weights)."""
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        query = tf.expand_dims(tf.unstack(state, num=self.sizes["num_layers"])[-1], axis=1)
        context, weights = self.attention.attend(query, memory, dropout_mask=factor, training=training)
        inputs = tf.concat([tf.squeeze(context, axis=1), embedded], axis=-1)
        output, state = self.rnn.step(inputs, state, dropout_mask=dropout_mask, training=training)
        return output, state, tf.squeeze(weights, axis=1)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        sizes = {name: size for name, size in self.sizes.items() if name not in ("num_layers - 1", "one")}
        return {**sizes, "dropout": self.rnn.dropout.rate, "dtype": self.variable_dtype, "name": self.name}


def row(mask: tf.Tensor | None, step: tf.Tensor) -> tf.Tensor | None:
    """The mask's row for that step, or its only row, as (batch, 1, keys)."""
    if mask is None or mask.shape[1] == 1:
        return mask
    return tf.expand_dims(tf.gather(mask, tf.minimum(step, size(mask, 1) - 1), axis=1), axis=1)
