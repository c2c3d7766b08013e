"""Encoders of tokens, and bridges from two directions to one, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators.encoders import BRIDGE, GRU_ENCODER, LSTM_ENCODER
from attention_core.specification import Layer
from backends.jax.module import drawn
from backends.jax.recurrent import recurrent_layer

__all__ = ["GRUEncoder", "LSTMEncoder", "Bridge"]


class Encoder(nnx.Module):
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
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = freeze(
            check_options(
                self.specification,
                vocab_size=vocab_size,
                embed_size=embed_size,
                hidden_size=hidden_size,
                num_layers=num_layers,
                dropout=dropout,
                bidirectional=bidirectional,
            )
        )
        self.embedding = nnx.Embed(vocab_size, embed_size, param_dtype=dtype, rngs=rngs)
        self.rnn = recurrent_layer(self.specification.inside(self.sizes)["rnn"], dtype=dtype, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        valid_lens: jax.Array | None = None,
        state: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Encode a batch of token sequences.

        outputs, state = rnn(embedding[tokens])
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.embedding.embedding.dtype,
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

    Shapes: as GRUEncoder; state_size is twice as large.
    """

    specification = LSTM_ENCODER


class Bridge(nnx.Module):
    """Hand the two directions of an encoder to a decoder that has one.

    [f; b] = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the
    forward half f and the backward half b of the state, and of the outputs where they are summed

    Shapes: outputs (batch, steps, 2 hidden_size), state (num_layers, batch, 2 hidden_size), or 4 hidden_size for an
    LSTM; returns (encoder_outputs, state).
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
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = freeze(
            check_options(
                self.specification,
                hidden_size=hidden_size,
                num_layers=num_layers,
                method=method,
                output_size=output_size,
                cell=cell,
            )
        )
        projects = method in ("project", "backward")
        sizes = [self.sizes[name] for name in ("parts", "merged_size", "read_size")]
        self.layers = nnx.List(
            BridgeLayer(*sizes, dtype=dtype, rngs=rngs) for _ in range(num_layers if projects else 0)
        )

    def __call__(self, outputs: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Turn outputs and state of both directions into those that a decoder takes.

        state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward)
        """
        dtype = self.layers[0].W.dtype if self.layers else None
        check(self.specification.method("call"), self.sizes, dtype, outputs=outputs, state=state)
        method, hidden = self.sizes["method"], self.sizes["hidden_size"]
        if method == "concatenate":
            return outputs, state
        layers, batch, _ = state.shape
        ways = state.reshape(layers, batch, self.sizes["parts"], 2, hidden)
        if method == "sum":
            merged = ways.sum(axis=-2)
            outputs = outputs[..., :hidden] + outputs[..., hidden:]
        else:
            read = (
                ways[..., 1, :]
                if method == "backward"
                else state.reshape(layers, batch, self.sizes["parts"], 2 * hidden)
            )
            merged = jnp.stack([layer(parts) for layer, parts in zip(self.layers, read, strict=True)])
        return outputs, merged.reshape(layers, batch, self.sizes["state_size"])


class BridgeLayer(nnx.Module):
    """The canonical parameters that bridge one recurrent layer."""

    def __init__(self, parts: int, merged_size: int, read_size: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.W = drawn((parts, merged_size, read_size), read_size, dtype, rngs)
        self.b_s = drawn((parts, merged_size), read_size, dtype, rngs)

    def __call__(self, parts: jax.Array) -> jax.Array:
        """Project outputs and cells by their own weights, (batch, parts, merged_size)."""
        return jnp.tanh(jnp.einsum("bpr,pmr->bpm", parts, self.W[...]) + self.b_s[...])


def embed(title: str, embedding: nnx.Embed, tokens: jax.Array) -> jax.Array:
    """The embedded tokens, which have to be ids of the vocabulary."""
    if tokens.size and not isinstance(tokens, jax.core.Tracer):
        # By NumPy: while tracing, jax.numpy would turn a known array into an unknown minimum.
        known = np.asarray(tokens)
        check_tokens(title, "tokens", int(known.min()), int(known.max()), embedding.num_embeddings)
    return embedding(tokens)
