"""Encoders of tokens, and bridges from two directions to one, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from attention_core.specification import Layer
from backends.torch.module import dtype_of
from backends.torch.recurrent import Weights, inner, recurrent_layer

__all__ = ["GRUEncoder", "LSTMEncoder", "Bridge"]


class Encoder(nn.Module):
    """What the encoders share: an embedding, and a recurrent layer over it."""

    specification: Layer

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification,
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        self.embedding = nn.Embedding(vocab_size, embed_size, dtype=dtype, device=device)
        self.rnn = recurrent_layer(self.specification.inside(self.sizes)["rnn"], dtype=dtype, device=device)

    def forward(
        self,
        tokens: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode a batch of token sequences.

        outputs, state = rnn(embedding[tokens])
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.embedding.weight.dtype,
            tokens=tokens,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        embedded = embed(self.specification.name, self.embedding, tokens)
        return self.rnn(embedded, valid_lens, state, dropout_mask=dropout_mask)


class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps), valid_lens (batch,), state (num_layers, batch, state_size), dropout_mask
    (num_layers - 1, batch, steps, output_size); returns (outputs, state).
    """

    specification = GRU_ENCODER


class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])

    Shapes: tokens (batch, steps), valid_lens (batch,), state (num_layers, batch, state_size), dropout_mask
    (num_layers - 1, batch, steps, output_size); returns (outputs, state).
    """

    specification = LSTM_ENCODER


class Bridge(nn.Module):
    """Hand the two directions of an encoder to a decoder that has one.

    state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state, and of the outputs where they are summed

    Shapes: outputs (batch, steps, 2 hidden_size), state (num_layers, batch, 2 hidden_size), or 4 hidden_size for an
    LSTM, whose outputs and cells have weights of their own; returns (encoder_outputs, state).
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification,
            hidden_size=hidden_size,
            num_layers=num_layers,
            method=method,
            output_size=output_size,
            cell=cell,
        )
        shapes = self.specification.own_shapes(self.sizes)
        self.layers = nn.ModuleList(
            Weights(inner(shapes, f"{layer}."), self.sizes["read_size"], dtype=dtype, device=device)
            for layer in range(num_layers if shapes else 0)
        )

    def forward(self, outputs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn outputs and state of both directions into those that a decoder takes."""
        check(self.specification.method("call"), self.sizes, dtype_of(self), outputs=outputs, state=state)
        method, hidden = self.sizes["method"], self.sizes["hidden_size"]
        if method == "concatenate":
            return outputs, state
        # (num_layers, batch, what a state holds, directions, hidden_size)
        both = state.unflatten(-1, (-1, 2, hidden))
        if method == "sum":
            return outputs.unflatten(-1, (2, hidden)).sum(dim=-2), both.sum(dim=-2).flatten(2)
        read = both[..., 1, :] if method == "backward" else both.flatten(-2)
        merged = [
            torch.tanh(torch.einsum("bpi,poi->bpo", given, weights.W) + weights.b_s)
            for given, weights in zip(read, self.layers, strict=True)
        ]
        return outputs, torch.stack(merged).flatten(2)


def embed(title: str, embedding: nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
    """The embedded tokens, which have to be ids of the vocabulary."""
    if tokens.numel() and not torch.compiler.is_compiling():
        check_tokens(title, "tokens", int(tokens.min()), int(tokens.max()), embedding.num_embeddings)
    return embedding(tokens.long())
