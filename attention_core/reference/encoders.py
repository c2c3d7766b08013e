"""Encoders of tokens, and bridges from two directions to one in NumPy."""

from __future__ import annotations

import numpy as np

from attention_core.errors import check_tokens
from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from attention_core.reference.arrays import Specified, inner, linear, optional, promote, tanh
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
        super().__init__(locals())
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
        """
        self._check("call", tokens=tokens, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        self.rnn.parameters = inner(self.parameters, "rnn.")
        embedded = embed(self.specification.name, tokens, self.parameters["embedding"])
        return self.rnn(embedded, valid_lens, optional(state), dropout_mask=optional(dropout_mask))


class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])
    """

    specification: Layer = GRU_ENCODER


class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])
    """

    specification: Layer = LSTM_ENCODER


class Bridge(Specified):
    """Merge the two directions of an encoder for a decoder that has one.

    state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state, and of the outputs where they are summed

    Of an LSTM, outputs and cells have weights of their own.
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
        super().__init__(locals())

    def __call__(self, outputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Merge the outputs and the state of both directions into those that a decoder takes.

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
        forward half f and the backward half b of the state, and of the outputs where they are summed
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
                tanh(linear(parts[..., layer, :, part, :], weight[..., part, :, :], bias[..., part, :]))
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
