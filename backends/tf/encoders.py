"""Encoders of tokens, and bridges from two directions to one, in TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from backends.tf.module import Specified, chosen
from backends.tf.recurrent import check_known, recurrent_layer

__all__ = ["GRUEncoder", "LSTMEncoder", "Bridge"]


class Encoder(Specified):
    """What the encoders share: an embedding, and a recurrent layer over it."""

    def __init__(self, *, dtype: str | tf.DType | None, name: str | None, **options: Any) -> None:
        super().__init__(dtype=dtype, name=name, **options)
        with keras.name_scope(self.name, caller=self):
            self.embedding = keras.layers.Embedding(
                self.sizes["vocab_size"], self.sizes["embed_size"], dtype=self.variable_dtype, name="embedding"
            )
            self.embedding.build(None)
            part = self.specification.inside(self.sizes)["rnn"]
            self.rnn = recurrent_layer(part, dtype=self.variable_dtype, name="rnn")
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

        outputs, state = rnn(embedding[tokens])
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


@keras.saving.register_keras_serializable(package="attention_parity")
class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps); valid_lens, state, dropout_mask, outputs and state as in GRU.
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
        bidirectional: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            name=name,
        )


@keras.saving.register_keras_serializable(package="attention_parity")
class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])

    Shapes: tokens (batch, steps); valid_lens, state, dropout_mask, outputs and state as in LSTM.
    """

    specification = LSTM_ENCODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            name=name,
        )


@keras.saving.register_keras_serializable(package="attention_parity")
class Bridge(Specified):
    """Hand the two directions of an encoder to a decoder that has one.

    state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state of each layer, and of the outputs where they are summed

    The outputs of an LSTM are bridged by their own weights, and so are its cells.

    Shapes: outputs (batch, steps, 2 hidden_size), state (num_layers, batch, 2 hidden_size), or 4 hidden_size for an
    LSTM; returns (encoder_outputs, state): the outputs as they are, or (batch, steps, hidden_size) where summed, and
    (num_layers, batch, hidden_size of the decoder), or twice that for an LSTM.
    """

    specification = BRIDGE

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        *,
        method: str = "concatenate",
        output_size: int | None = None,
        cell: str = "gru",
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            hidden_size=hidden_size,
            num_layers=num_layers,
            method=method,
            output_size=output_size,
            cell=cell,
            dtype=dtype,
            name=name,
        )
        self.W, self.b_s = [], []
        if method in ("project", "backward"):
            parts, merged, read = (self.sizes[name] for name in ("parts", "merged_size", "read_size"))
            for layer in range(num_layers):
                self.W.append(self.uniform(f"W_{layer}", (parts, merged, read), read))
                self.b_s.append(self.uniform(f"b_s_{layer}", (parts, merged), read))

    def __call__(self, outputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Turn outputs and state of both directions into those that a decoder takes.

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward)
        """
        check(self.specification.method("call"), self.sizes, self.variable_dtype, outputs=outputs, state=state)
        return super().__call__(outputs, state)

    def call(self, outputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Turn outputs and state of both directions into those that a decoder takes; Keras enters here."""
        method, hidden, parts = self.sizes["method"], self.sizes["hidden_size"], self.sizes["parts"]
        if method == "concatenate":
            return outputs, state
        # Forward, backward; of an LSTM then those of the cells.
        halves = tf.split(state, 2 * parts, axis=-1)
        if method == "sum":
            summed = [forward + backward for forward, backward in zip(halves[::2], halves[1::2], strict=True)]
            return outputs[..., :hidden] + outputs[..., hidden:], tf.concat(summed, axis=-1)
        merged = []
        for part in range(parts):
            both = halves[2 * part : 2 * part + 2]
            read = both[1] if method == "backward" else tf.concat(both, axis=-1)
            weights = tf.stack([layer[part] for layer in self.W])
            biases = tf.stack([layer[part] for layer in self.b_s])
            merged.append(tf.tanh(tf.matmul(read, weights, transpose_b=True) + biases[:, None]))
        return outputs, tf.concat(merged, axis=-1)
