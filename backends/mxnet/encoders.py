"""Encoders of tokens, and bridges from two directions to one, in MXNet."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import np, npx
from mxnet.gluon import Block, nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from attention_core.specification import Layer
from backends.mxnet.module import Uniform, initialise
from backends.mxnet.recurrent import recurrent_layer

__all__ = ["GRUEncoder", "LSTMEncoder", "Bridge"]


class Encoder(Block):
    """What the encoders share: an embedding, and a recurrent layer over it."""

    specification: Layer

    def __init__(
        self, *, dtype: str, prefix: str | None, params: mx.gluon.ParameterDict | None, **options: Any
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = sizes = check_options(self.specification, **options)
        with self.name_scope():
            self.embedding = embedding(sizes["vocab_size"], sizes["embed_size"], dtype=dtype)
            self.rnn = recurrent_layer(self.specification.inside(sizes)["rnn"], dtype=dtype)
        initialise(self)

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
        return super().__call__(tokens, valid_lens, state, dropout_mask)

    def forward(
        self,
        tokens: np.ndarray,
        valid_lens: np.ndarray | None,
        state: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode a batch of token sequences; Gluon enters here."""
        embedded = embed(self.specification.name, self.embedding, tokens)
        return self.rnn(embedded, valid_lens, state, dropout_mask=dropout_mask)


class GRUEncoder(Encoder):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps); valid_lens, state, dropout_mask and what is returned as in GRU.
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            prefix=prefix,
            params=params,
        )


class LSTMEncoder(Encoder):
    """Embed tokens and run stacked long short-term memory over them.

    outputs, state = LSTM(embedding[tokens])

    Shapes: tokens (batch, steps); valid_lens, state, dropout_mask and what is returned as in LSTM.
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            prefix=prefix,
            params=params,
        )


class Bridge(Block):
    """Hand the two directions of an encoder to a decoder that has one.

    state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state of each layer, and of the outputs where they are summed

    Shapes: outputs (batch, steps, 2 hidden_size), state (num_layers, batch, 2 hidden_size), or 4 hidden_size for an
    LSTM; returns (encoder_outputs, state): (batch, steps, 2 hidden_size), or hidden_size where summed, and
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = sizes = check_options(
            self.specification,
            hidden_size=hidden_size,
            num_layers=num_layers,
            method=method,
            output_size=output_size,
            cell=cell,
        )
        with self.name_scope():
            self.layers = nn.Sequential()
            with self.layers.name_scope():
                for _ in range(num_layers if method in ("project", "backward") else 0):
                    self.layers.add(BridgeLayer(sizes["parts"], sizes["read_size"], sizes["merged_size"], dtype=dtype))
        initialise(self)

    def __call__(self, outputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Turn outputs and state of both directions into those that a decoder takes.

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward)
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.layers[0].W.dtype if len(self.layers) else None,
            outputs=outputs,
            state=state,
        )
        if self.sizes["method"] == "concatenate":
            return outputs, state
        if self.sizes["method"] == "sum":
            hidden = self.sizes["hidden_size"]
            outputs = (
                np.zeros((*outputs.shape[:2], hidden), dtype=outputs.dtype, ctx=outputs.ctx)
                if outputs.size == 0  # over an empty axis, MXNet reads foreign memory or crashes
                else outputs[:, :, :hidden] + outputs[:, :, hidden:]
            )
        if state.size == 0:
            return outputs, np.zeros((*state.shape[:2], self.sizes["state_size"]), dtype=state.dtype, ctx=state.ctx)
        return outputs, super().__call__(state)

    def forward(self, state: np.ndarray) -> np.ndarray:
        """The formula for the state, unless it stays as it is."""
        halves = np.split(state, 2 * self.sizes["parts"], axis=-1)
        pairs = list(zip(halves[::2], halves[1::2], strict=True))
        if self.sizes["method"] == "sum":
            return np.concatenate([forward + backward for forward, backward in pairs], axis=-1)
        if self.sizes["method"] == "backward":
            read = [backward for _, backward in pairs]
        else:
            read = [np.concatenate(pair, axis=-1) for pair in pairs]
        return np.stack([layer(*(part[index] for part in read)) for index, layer in enumerate(self.layers)])


class BridgeLayer(Block):
    """What merges the state of one layer: weights and biases of the outputs, and for an LSTM of the cells."""

    def __init__(self, parts: int, read_size: int, merged_size: int, *, dtype: str) -> None:
        super().__init__()
        self.merged_size, drawn = merged_size, Uniform(read_size**-0.5)
        with self.name_scope():
            self.W = self.params.get("W", shape=(parts, merged_size, read_size), dtype=dtype, init=drawn)
            self.b_s = self.params.get("b_s", shape=(parts, merged_size), dtype=dtype, init=drawn)

    def forward(self, *read: np.ndarray) -> np.ndarray:
        """The merged state, (batch, state_size), of what is read for the outputs, and for the cells."""
        W, b_s = (own.data(read[0].ctx) for own in (self.W, self.b_s))
        merged = [
            npx.fully_connected(inputs, W[part], b_s[part], num_hidden=self.merged_size)
            for part, inputs in enumerate(read)
        ]
        return npx.activation(np.concatenate(merged, axis=-1), act_type="tanh")


def embedding(vocab_size: int, embed_size: int, *, dtype: str) -> nn.Embedding:
    """A row for each token id."""
    return nn.Embedding(vocab_size, embed_size, dtype=dtype, weight_initializer=Uniform(embed_size**-0.5))


def embed(title: str, table: nn.Embedding, tokens: np.ndarray) -> np.ndarray:
    """The embedded tokens, which have to be ids of the vocabulary."""
    vocab_size, embed_size = table.weight.shape
    if tokens.size == 0:
        return np.zeros((*tokens.shape, embed_size), dtype=table.weight.dtype, ctx=tokens.ctx)
    ids = tokens.asnumpy()
    check_tokens(title, "tokens", int(ids.min()), int(ids.max()), vocab_size)
    return table(tokens)
