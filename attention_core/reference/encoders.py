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

        Shapes: tokens (batch, steps); valid_lens, state, dropout_mask, outputs and state as in GRU.
        Edge cases: tokens of padded steps must be in the vocabulary, and have no effect.
        Raises: ShapeError, DtypeError; TokenError if an id is outside the vocabulary.
        """
        self._check("call", tokens=tokens, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        self.rnn.parameters = inner(self.parameters, "rnn.")
        embedded = embed(self.specification.name, tokens, self.parameters["embedding"])
        return self.rnn(embedded, valid_lens, optional(state), dropout_mask=optional(dropout_mask))


class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Arguments: vocab_size is the number of token ids, embed_size the features of an embedded token; hidden_size,
    num_layers, dropout and bidirectional as in GRU.
    Parameters: embedding (vocab_size, embed_size), and those of GRU as rnn.l.W, rnn.l.U, rnn.l.b, rnn.l.b_hn, ...
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: as GRU.
    """

    specification: Layer = GRU_ENCODER


class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])

    Arguments: vocab_size is the number of token ids, embed_size the features of an embedded token; hidden_size,
    num_layers, dropout and bidirectional as in LSTM.
    Parameters: embedding (vocab_size, embed_size), and those of LSTM as rnn.l.W, rnn.l.U, rnn.l.b, ...
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: as LSTM.
    """

    specification: Layer = LSTM_ENCODER


class Bridge(Specified):
    """Merge the two directions of an encoder for a decoder that has one.

    state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state of each layer, and of the outputs where they are summed

    Of an LSTM, outputs and cells have weights of their own. All methods but sum leave the encoder's outputs unchanged.

    Arguments: hidden_size is the features of each direction of the encoder, num_layers its layers; method is one of the
    four; output_size is the decoder's hidden_size, for project and backward only, the encoder's unless given; cell is
    "gru" or "lstm".
    Parameters, for project and backward, for each layer l: l.W (1, output_size, 2 hidden_size or hidden_size),
    l.b_s (1, output_size); 2 in place of 1 for an LSTM: outputs, then cells.
    Raises: OptionError if a size is not positive, or output_size would be ignored.
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.2.2, arXiv:1409.0473, for backward; the others are common
    practice.
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

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward)

        Shapes: outputs (batch, steps, 2 hidden_size), state (num_layers, batch, 2 hidden_size), or 4 hidden_size for an
        LSTM. Returns (encoder_outputs, state): (batch, steps, 2 hidden_size), or hidden_size where summed, and
        (num_layers, batch, hidden_size of the decoder), or twice that for an LSTM.
        Raises: ShapeError, DtypeError.
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
