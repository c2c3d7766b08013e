"""Encoders of tokens, and bridges from two directions to one, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from backends.jax.arrays import Lengths
from backends.jax.module import Specified, at_dtype, cast, check_ids
from backends.jax.recurrent import Weights, recurrent_layer

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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        self.embedding = nnx.Embed(vocab_size, embed_size, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.rnn = recurrent_layer(
            self.specification.inside(self.sizes)["rnn"], dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )

    @at_dtype
    def __call__(
        self,
        tokens: jax.Array,
        valid_lens: Lengths | None = None,
        state: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
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
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", tokens=tokens, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        return self.rnn(self.embedding(tokens), valid_lens, state, dropout_mask=dropout_mask)


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        rnn.*: the GRU that reads the embedded tokens
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRUEncoder(vocab_size, embed_size, hidden_size, rngs=nnx.Rngs(0))
        outputs, state = layer(tokens)
    """

    specification = GRU_ENCODER


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        rnn.*: the LSTM that reads the embedded tokens
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTMEncoder(vocab_size, embed_size, hidden_size, rngs=nnx.Rngs(0))
        outputs, state = layer(tokens)
    """

    specification = LSTM_ENCODER


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        {layer}.W: (outputs and cells, output_size, both or backward), weights
        {layer}.b_s: (outputs and cells, output_size), biases
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.2.2, arXiv:1409.0473, for backward; the others are common
    practice
    Example:
        layer = attention.Bridge(hidden_size, rngs=nnx.Rngs(0))
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        shapes = self.specification.own_shapes(self.sizes)
        self.layers = nnx.List(
            Weights(shapes, f"{layer}", self.sizes["read_size"], param_dtype=param_dtype, rngs=rngs)
            for layer in range(num_layers if shapes else 0)
        )

    @at_dtype
    def __call__(self, outputs: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Merge the outputs and the state of both directions into those that a decoder takes.

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
        forward half f and the backward half b of the state, and of the outputs where they are summed

        Args:
            outputs: (batch, steps, both_outputs); forward outputs, then backward ones
            state: (num_layers, batch, both_states); forward states, then backward ones; of an LSTM, outputs first, then
                cells
        Returns:
            encoder_outputs: (batch, steps, memory_size); summed if method='sum', else unchanged
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", outputs=outputs, state=state)
        method, hidden, parts = self.sizes["method"], self.sizes["hidden_size"], self.sizes["parts"]
        if method == "concatenate":
            return outputs, state
        # (num_layers, batch, what a state holds, directions, hidden_size)
        lead = state.shape[:2]
        both = state.reshape(*lead, parts, 2, hidden)
        if method == "sum":
            outputs = outputs[..., :hidden] + outputs[..., hidden:]
            return outputs, both.sum(axis=-2).reshape(*lead, self.sizes["state_size"])
        read = both[..., 1, :] if method == "backward" else both.reshape(*lead, parts, 2 * hidden)
        merged = [
            jnp.tanh(jnp.einsum("bpi,poi->bpo", features, cast(weights.W, state)) + cast(weights.b_s, state))
            for features, weights in zip(read, self.layers, strict=True)
        ]
        return outputs, jnp.stack(merged).reshape(*lead, self.sizes["state_size"])
