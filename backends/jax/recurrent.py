"""Recurrent layers and encoders in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import GRU as GRU_SPECIFICATION
from attention_core.operators import GRU_ENCODER
from backends.jax.layers import drawn_mask, dropout_layer

__all__ = ["GRU", "GRUEncoder"]


class GRU(nnx.Module):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_SPECIFICATION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = freeze(
            check_options(
                self.specification,
                input_size=input_size,
                hidden_size=hidden_size,
                num_layers=num_layers,
                dropout=dropout,
            )
        )
        self.layers = nnx.List(
            GRULayer(input_size if layer == 0 else hidden_size, hidden_size, dtype=dtype, rngs=rngs)
            for layer in range(num_layers)
        )
        self.dropout = dropout_layer(dropout, rngs)

    def step(
        self, inputs: jax.Array, state: jax.Array, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Run one step.

        Shapes: inputs (batch, input_size), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size); returns (output, state).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            state=state,
            dropout_mask=dropout_mask,
        )
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, state[1:])
        output, states = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            output = layer.advance(layer.project(output), state[index])
            states.append(output)
        return output, jnp.stack(states)

    def __call__(
        self,
        inputs: jax.Array,
        valid_lens: jax.Array | None = None,
        state: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        batch, steps, _ = inputs.shape
        num_layers, hidden_size = self.sizes["num_layers"], self.sizes["hidden_size"]
        if state is None:
            state = jnp.zeros((num_layers, batch, hidden_size), inputs.dtype)
        if dropout_mask is None:
            between = (num_layers - 1, batch, steps, hidden_size)
            dropout_mask = drawn_mask(self.dropout, jax.ShapeDtypeStruct(between, inputs.dtype))
        real = None if valid_lens is None else (jnp.arange(steps) < valid_lens[:, None])[:, :, None]
        outputs, states = inputs if real is None else jnp.where(real, inputs, 0.0), []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            outputs, last = layer.run(outputs, state[index], real)
            states.append(last)
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        return outputs if real is None else jnp.where(real, outputs, 0.0), jnp.stack(states)


class GRULayer(nnx.Module):
    """The canonical parameters of one recurrent layer."""

    def __init__(self, input_size: int, hidden_size: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        bound = hidden_size**-0.5

        def drawn(*shape: int) -> nnx.Param:
            return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))

        self.W = drawn(3, hidden_size, input_size)
        self.U = drawn(3, hidden_size, hidden_size)
        self.b = drawn(3, hidden_size)
        self.b_hn = drawn(hidden_size)

    def project(self, inputs: jax.Array) -> jax.Array:
        """What the inputs give to each gate, (..., 3, hidden_size): no step has to wait for another one."""
        return jnp.einsum("...i,ghi->...gh", inputs, self.W[...]) + self.b[...]

    def advance(self, projected: jax.Array, state: jax.Array) -> jax.Array:
        """The state after one step, from projected inputs."""
        recurrent = jnp.einsum("...k,ghk->...gh", state, self.U[...])
        reset, update = jnp.unstack(jax.nn.sigmoid(projected[..., :2, :] + recurrent[..., :2, :]), axis=-2)
        new = jnp.tanh(projected[..., 2, :] + reset * (recurrent[..., 2, :] + self.b_hn[...]))
        return (1.0 - update) * new + update * state

    # Compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
    @jax.jit
    def run(self, inputs: jax.Array, state: jax.Array, real: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The state of each sequence after each step, (batch, steps, hidden_size), and after the last real one."""

        def step(state: jax.Array, at: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
            projected, real = at
            new = self.advance(projected, state)
            state = new if real is None else jnp.where(real, new, state)
            return state, state

        last, outputs = jax.lax.scan(step, state, (time_first(self.project(inputs)), time_first(real)))
        return jnp.swapaxes(outputs, 0, 1), last


class GRUEncoder(nnx.Module):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
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
            )
        )
        self.embedding = nnx.Embed(vocab_size, embed_size, param_dtype=dtype, rngs=rngs)
        self.rnn = GRU(embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        valid_lens: jax.Array | None = None,
        state: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Encode a batch of token sequences.

        outputs, state = GRU(embedding[tokens])
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


def embed(title: str, embedding: nnx.Embed, tokens: jax.Array) -> jax.Array:
    """The embedded tokens, which have to be ids of the vocabulary."""
    if tokens.size and not isinstance(tokens, jax.core.Tracer):
        # By NumPy: while tracing, jax.numpy would turn a known array into an unknown minimum.
        known = np.asarray(tokens)
        check_tokens(title, "tokens", int(known.min()), int(known.max()), embedding.num_embeddings)
    return embedding(tokens)


def time_first(array: jax.Array | None, axis: int = 1) -> jax.Array | None:
    """The array with its axis of steps in front, where jax.lax.scan expects it."""
    return None if array is None else jnp.moveaxis(array, axis, 0)
