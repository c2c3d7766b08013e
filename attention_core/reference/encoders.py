"""Encoders of tokens, and bridges from two directions to one in NumPy."""

from __future__ import annotations

import numpy as np

from attention_core.errors import check_tokens
from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from attention_core.reference.arrays import Specified, inner, linear, optional, promote
from attention_core.reference.recurrent import recurrent_layer
from attention_core.specification import Layer

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
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        self.rnn = recurrent_layer(self.specification.inside(self.sizes)["rnn"])

    def __call__(
        self,
        tokens: np.ndarray,
        valid_lens: np.ndarray | None = None,
        state: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode a batch of token sequences.

        outputs, state = rnn(embedding[tokens])

        Tokens of padded steps must be in the vocabulary, and have no effect.

        Args:
            tokens: integers (batch, steps); token ids
            valid_lens (default None): integers (batch,), or a list; steps of each sequence; later ones output 0 and
                keep the state
            state (default None): (num_layers, batch, state_size); state before the first step; zeros if None
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); factor of the outputs of every
                layer but the top one: 0 or 1/(1 - rate)
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            TokenError: a token id is outside the vocabulary
        Example:
            layer = attention.GRUEncoder(vocab_size, embed_size, hidden_size)
            outputs, state = layer(tokens, valid_lens)
        """
        self._check("call", tokens=tokens, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        self.rnn.parameters = inner(self.parameters, "rnn.")
        embedded = embed(self.specification.name, tokens, self.parameters["embedding"])
        return self.rnn(embedded, valid_lens, optional(state), dropout_mask=optional(dropout_mask))


class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether a second set of weights reads the steps from the last valid one to the
            first
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        rnn.*: the GRU that reads the embedded tokens
    Raises:
        OptionError: an argument is outside its domain
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRUEncoder(vocab_size, embed_size, hidden_size)
        outputs, state = layer(tokens)
    """

    specification: Layer = GRU_ENCODER


class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether a second set of weights reads the steps from the last valid one to the
            first
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        rnn.*: the LSTM that reads the embedded tokens
    Raises:
        OptionError: an argument is outside its domain
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTMEncoder(vocab_size, embed_size, hidden_size)
        outputs, state = layer(tokens)
    """

    specification: Layer = LSTM_ENCODER


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
    Parameters:
        {layer}.W: (outputs and cells, output_size, both or backward), weights
        {layer}.b_s: (outputs and cells, output_size), biases
    Raises:
        OptionError: an argument is outside its domain, or would be ignored
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.2.2, arXiv:1409.0473, for backward; the others are common
    practice
    Example:
        layer = attention.Bridge(hidden_size)
        encoder_outputs, state = layer(outputs, state)
    """

    specification: Layer = BRIDGE

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        *,
        method: str = "concatenate",
        output_size: int | None = None,
        cell: str = "gru",
    ) -> None:
        super().__init__(
            hidden_size=hidden_size,
            num_layers=num_layers,
            method=method,
            output_size=output_size,
            cell=cell,
        )

    def __call__(self, outputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
        Example:
            layer = attention.Bridge(hidden_size)
            encoder_outputs, state = layer(outputs, state)
        """
        self._check("call", outputs=outputs, state=state)
        outputs, state, hidden = promote(outputs), promote(state), self.sizes["hidden_size"]
        method = self.sizes["method"]
        if method == "concatenate":
            return outputs, state
        if method == "sum":
            summed = state.reshape(*state.shape[:-1], self.sizes["parts"], 2, hidden).sum(axis=-2)
            state = summed.reshape(*state.shape[:-1], self.sizes["state_size"])
            return outputs[..., :hidden] + outputs[..., hidden:], state
        first = hidden if method == "backward" else 0
        parts = state.reshape(*state.shape[:-1], self.sizes["parts"], 2 * hidden)[..., first:]
        layers = []
        for layer in range(self.sizes["num_layers"]):
            weight, bias = self.parameters[f"{layer}.W"], self.parameters[f"{layer}.b_s"]
            merged = [
                np.tanh(linear(parts[..., layer, :, part, :], weight[..., part, :, :], bias[..., part, :]))
                for part in range(self.sizes["parts"])
            ]
            layers.append(np.concatenate(merged, axis=-1))
        return outputs, np.stack(np.broadcast_arrays(*layers), axis=-3)


def embed(title: str, tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Look up the rows of the table at the tokens.

    Raises: TokenError if an id is outside the table.
    """
    known_tokens(title, tokens, table.shape[-2])
    return table[..., tokens, :]


def known_tokens(title: str, tokens: np.ndarray, vocab_size: int) -> None:
    """Refuse tokens outside the vocabulary."""
    if tokens.size:
        check_tokens(title, "tokens", int(tokens.min()), int(tokens.max()), vocab_size)
