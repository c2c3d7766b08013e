"""Encoders of tokens, and bridges from two directions to one, in TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from backends.tf.arrays import Lengths, lengths
from backends.tf.masking import size
from backends.tf.module import Specified, attached_mask, check_ids, mode_of, with_mask
from backends.tf.recurrent import Weights, recurrent_layer

__all__ = ["GRUEncoder", "LSTMEncoder", "Bridge"]


class Encoder(Specified):
    """Base class of the encoders: an embedding, and a recurrent layer over it."""

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
        super().__init__(locals())
        part, dtype = self.specification.inside(self.sizes)["rnn"], self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.embedding = keras.layers.Embedding(
                self.sizes["vocab_size"], self.sizes["embed_size"], dtype=dtype, name="embedding"
            )
            self.rnn = recurrent_layer(part, dtype=dtype, name="rnn")
            self.embedding.supports_masking = True  # `call` hands the mask of the tokens on
            for layer in (self.embedding, self.rnn):
                layer.build(None)

    def __call__(
        self,
        tokens: tf.Tensor,
        valid_lens: Lengths | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode a batch of token sequences.

        outputs, state = rnn(embedding[tokens])

        Tokens of padded steps must be in the vocabulary, and have no effect.

        Args:
            tokens: integers (batch, steps); token ids
            valid_lens (default None): integers (batch,), or a list; steps of each sequence; later ones output 0 and
                keep the state
            state (default None): (num_layers, batch, state_size); state before the first step; zeros if None
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); factor of the outputs of every
                layer but the top one
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", tokens=tokens, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        return super().__call__(tokens, lengths(valid_lens), state, dropout_mask=dropout_mask, **mode_of(training))

    def call(
        self,
        tokens: tf.Tensor,
        valid_lens: Lengths | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode a batch of token sequences; Keras enters here."""
        embedded = with_mask(self.embedding(tokens), attached_mask(tokens))
        return self.rnn(embedded, valid_lens, state, dropout_mask=dropout_mask, training=training)


@keras.saving.register_keras_serializable(package="attention_parity")
class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        rnn.*: the GRU that reads the embedded tokens
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRUEncoder(vocab_size, embed_size, hidden_size)
        outputs, state = layer(tokens)
    """

    specification = GRU_ENCODER


@keras.saving.register_keras_serializable(package="attention_parity")
class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        rnn.*: the LSTM that reads the embedded tokens
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTMEncoder(vocab_size, embed_size, hidden_size)
        outputs, state = layer(tokens)
    """

    specification = LSTM_ENCODER


@keras.saving.register_keras_serializable(package="attention_parity")
class Bridge(Specified):
    """Merge the two directions of an encoder for a decoder that has one.

    state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state, and of the outputs where they are summed

    Of an LSTM, outputs and cells have weights of their own.

    Args:
        hidden_size: features of each direction of the encoder
        num_layers (default 1): number of stacked recurrent layers
        method (default 'concatenate'): how to merge the two directions: 'concatenate', 'sum', 'project', 'backward'
        output_size (default None): hidden_size of the decoder, for 'project' and 'backward'; the encoder's if None
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        {layer}.W: (outputs and cells, output_size, both or backward), weights
        {layer}.b_s: (outputs and cells, output_size), biases
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.2.2, arXiv:1409.0473, for backward; the others are common
    practice
    Example:
        layer = attention.Bridge(hidden_size)
        encoder_outputs, state = layer(outputs, state)
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
        super().__init__(locals())
        shapes, dtype = self.specification.own_shapes(self.sizes), self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.layers = [
                Weights(shapes, f"{layer}", self.sizes["read_size"], dtype=dtype, name=f"layer_{layer}")
                for layer in range(num_layers if shapes else 0)
            ]

    def __call__(
        self, outputs: tf.Tensor, state: tf.Tensor, *, training: bool | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Merge the outputs and the state of both directions into those that a decoder takes.

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
        forward half f and the backward half b of the state, and of the outputs where they are summed

        Args:
            outputs: (batch, steps, both_outputs); forward outputs, then backward ones
            state: (num_layers, batch, both_states); forward states, then backward ones; of an LSTM, outputs first, then
                cells
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            encoder_outputs: (batch, steps, memory_size); summed if method='sum', else unchanged
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", outputs=outputs, state=state)
        return super().__call__(outputs, state, **mode_of(training))

    def call(self, outputs: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Turn outputs and state of both directions into those that a decoder takes; Keras enters here."""
        method, hidden, parts = self.sizes["method"], self.sizes["hidden_size"], self.sizes["parts"]
        if method == "concatenate":
            return outputs, state
        # (num_layers, batch, what a state holds, directions, hidden_size)
        lead = self.sizes["num_layers"], size(state, 1)
        both = tf.reshape(state, (*lead, parts, 2, hidden))
        if method == "sum":
            outputs = outputs[..., :hidden] + outputs[..., hidden:]
            return outputs, tf.reshape(tf.reduce_sum(both, axis=-2), (*lead, self.sizes["state_size"]))
        read = both[..., 1, :] if method == "backward" else tf.reshape(both, (*lead, parts, 2 * hidden))
        parameters = self._cast([(weights.W.value, weights.b_s.value) for weights in self.layers])
        merged = [
            tf.tanh(tf.einsum("bpi,poi->bpo", features, W) + b_s)
            for features, (W, b_s) in zip(tf.unstack(read), parameters, strict=True)
        ]
        return outputs, tf.reshape(tf.stack(merged), (*lead, self.sizes["state_size"]))
