"""Decoders with attention in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import BAHDANAU_DECODER
from backends.jax.layers import AdditiveAttention, Memory, drawn_mask
from backends.jax.recurrent import GRU, embed, time_first

__all__ = ["BahdanauDecoder"]

Factors = tuple[jax.Array | None, jax.Array | None]


class BahdanauDecoder(nnx.Module):
    """Decode with additive attention whose query is the previous state of the top recurrent layer.

    context, weights = AdditiveAttention(top state, encoder_outputs)
    state' = GRU([context; embedding[token]], state);  logits = dense.W state'[top] + dense.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, hidden_size);
    returns (logits, state, weights): (batch, steps, vocab_size), the shape of state, (batch, steps, keys).
    """

    specification = BAHDANAU_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
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
                memory_size=memory_size,
                attention_size=attention_size,
                dropout=dropout,
            )
        )
        memory_size, attention_size = self.sizes["memory_size"], self.sizes["attention_size"]
        self.embedding = nnx.Embed(vocab_size, embed_size, param_dtype=dtype, rngs=rngs)
        self.attention = AdditiveAttention(
            hidden_size, memory_size, attention_size, dropout=dropout, dtype=dtype, rngs=rngs
        )
        self.rnn = GRU(memory_size + embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype, rngs=rngs)
        self.dense = nnx.Linear(hidden_size, vocab_size, param_dtype=dtype, rngs=rngs)

    def prepare(
        self,
        encoder_outputs: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = AdditiveAttention.prepare(encoder_outputs, encoder_outputs)
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.dense.kernel.dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def step(
        self,
        tokens: jax.Array,
        state: jax.Array,
        memory: Memory,
        *,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Decode one token.

        Shapes: tokens (batch,), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the shape of state, (batch, keys).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.dense.kernel.dtype,
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        embedded = embed(self.specification.name, self.embedding, tokens)
        output, state, weights = self.advance(embedded, state, memory, dropout_mask, attention_dropout_mask)
        return self.dense(output), state, weights

    def __call__(
        self,
        tokens: jax.Array,
        encoder_outputs: jax.Array,
        state: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: valid_lens (batch,) or (batch, steps); mask (batch, steps, keys), each axis its size or 1; dropout_mask
        (num_layers - 1, batch, steps, hidden_size); attention_dropout_mask (batch, steps, keys).
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.dense.kernel.dtype,
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        embedded = embed(self.specification.name, self.embedding, tokens)
        factors = self.factors(tokens.shape[1], memory, dropout_mask, attention_dropout_mask)
        return self.run_forced(embedded, state, memory, factors)

    def greedy(
        self,
        encoder_outputs: jax.Array,
        state: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Decode by feeding back the most probable token, up to an end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Shapes: valid_lens (batch,), mask (batch, 1, keys). Returns (tokens, lengths, weights): (batch, max_steps) ids,
        eos from the end on; (batch,) the number of tokens before eos; (batch, max_steps, keys), 0 after the end.
        """
        operator = self.specification.method("greedy")
        check_options(operator, bos=bos, eos=eos, max_steps=max_steps)
        check_tokens(operator.title, "bos", bos, bos, self.sizes["vocab_size"])
        check_tokens(operator.title, "eos", eos, eos, self.sizes["vocab_size"])
        check(
            operator,
            self.sizes,
            self.dense.kernel.dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        return self.run_greedy(state, memory, self.factors(max_steps, memory), bos, eos, max_steps)

    def advance(
        self,
        embedded: jax.Array,
        state: jax.Array,
        memory: Memory,
        dropout_mask: jax.Array | None,
        attention_dropout_mask: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One step without the readout: (output, state, weights)."""
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        context, weights = self.attention.attend(state[-1][:, None], memory, dropout_mask=factor)
        inputs = jnp.concatenate([context[:, 0], embedded], axis=-1)
        output, state = self.rnn.step(inputs, state, dropout_mask=dropout_mask)
        return output, state, weights[:, 0]

    # Both loops are compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
    @jax.jit
    def run_forced(
        self, embedded: jax.Array, state: jax.Array, memory: Memory, factors: Factors
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """All steps of embedded tokens, and the readout of all steps at once: (logits, state, weights)."""

        def step(state: jax.Array, at: tuple[Any, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            embedded, row, factors = at
            seen = memory if row is None else memory._replace(mask=row)
            output, state, attended = self.advance(embedded, state, seen, *factors)
            return state, (output, attended)

        state, (outputs, weights) = jax.lax.scan(step, state, (time_first(embedded), rows(memory.mask), factors))
        return self.dense(jnp.swapaxes(outputs, 0, 1)), state, jnp.swapaxes(weights, 0, 1)

    @partial(jax.jit, static_argnames="max_steps")
    def run_greedy(
        self, state: jax.Array, memory: Memory, factors: Factors, bos: int, eos: int, max_steps: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """All steps, each reading the token before it: (tokens, lengths, weights)."""
        batch = state.shape[1]

        def step(carry: tuple[jax.Array, ...], factors: Factors) -> tuple[Any, ...]:
            token, state, running = carry
            between, attention = factors
            logits, state, attended = self.step(
                token, state, memory, dropout_mask=between, attention_dropout_mask=attention
            )
            token = jnp.where(running, jnp.argmax(logits, axis=-1), eos).astype(jnp.int32)
            attended = jnp.where(running[:, None], attended, 0.0)
            running = running & (token != eos)
            return (token, state, running), (token, running, attended)

        start = (jnp.full(batch, bos, jnp.int32), state, jnp.full(batch, True))
        # All max_steps run, whenever the sequences end: under jit, shapes may not depend on values.
        _, (tokens, running, weights) = jax.lax.scan(step, start, factors, length=max_steps)
        lengths = jnp.sum(running, axis=0, dtype=jnp.int32)
        return jnp.swapaxes(tokens, 0, 1), lengths, jnp.swapaxes(weights, 0, 1)

    def factors(
        self,
        steps: int,
        memory: Memory,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> Factors:
        """The two dropout masks, time first; drawn for all steps at once, since no nnx stream moves inside a scan."""
        (batch, keys, _), dtype = memory.values.shape, memory.values.dtype
        if dropout_mask is None:
            between = (self.sizes["num_layers - 1"], batch, steps, self.sizes["hidden_size"])
            dropout_mask = drawn_mask(self.rnn.dropout, jax.ShapeDtypeStruct(between, dtype))
        if attention_dropout_mask is None:
            attention_dropout_mask = drawn_mask(
                self.attention.dropout, jax.ShapeDtypeStruct((batch, steps, keys), dtype)
            )
        return time_first(dropout_mask, 2), time_first(attention_dropout_mask)


def rows(mask: jax.Array | None) -> jax.Array | None:
    """The mask's row for each step, (steps, batch, 1, keys), or None where one row, or no mask, serves all."""
    return None if mask is None or mask.shape[1] == 1 else jnp.swapaxes(mask, 0, 1)[:, :, None]
