"""Decoders in JAX: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators.decoders import (
    BAHDANAU_DECODER,
    FIXED_CONTEXT_DECODER,
    LUONG_DECODER,
    check_initial,
    check_search,
)
from attention_core.specification import Layer, Operator
from backends.jax.attention import LAYERS, Memory, attention_layer, zero_masked
from backends.jax.encoders import embed
from backends.jax.local import LocalAttention
from backends.jax.module import drawn, drawn_mask, dropout_layer
from backends.jax.recurrent import recurrent_layer, time_first

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]

Factors = tuple[jax.Array | None, jax.Array | None]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and given by `step`.

    Shapes: rnn (num_layers, batch, state_size), attentional (batch, hidden_size), position (batch,), int32.
    """

    rnn: jax.Array
    attentional: jax.Array
    position: jax.Array


class Decoder(nnx.Module):
    """What the decoders share: they differ in `advance`, one step up to what the logits are made of."""

    specification: Layer

    def __init__(self, *, dtype: DTypeLike, rngs: nnx.Rngs, **options: Any) -> None:
        self.sizes = freeze(check_options(self.specification, **options))
        parts = self.specification.inside(self.sizes)
        self.embedding = nnx.Embed(self.sizes["vocab_size"], self.sizes["embed_size"], param_dtype=dtype, rngs=rngs)
        if "attention" in parts:
            self.attention = attention_layer(parts["attention"], ATTENTION, dtype=dtype, rngs=rngs)
        self.rnn = recurrent_layer(parts["rnn"], dtype=dtype, rngs=rngs)
        self.dense = nnx.Linear(self.sizes["dense_size"], self.sizes["vocab_size"], param_dtype=dtype, rngs=rngs)
        if self.sizes["initial"] == "learned":
            shape = self.sizes["num_layers"], self.sizes["state_size"]
            self.initial = drawn(shape, self.sizes["hidden_size"], dtype, rngs)
        self.dropout = dropout_layer(self.sizes["dropout"], rngs)

    def advance(
        self,
        embedded: jax.Array,
        state: Any,
        memory: Memory,
        dropout_mask: jax.Array | None,
        attention_dropout_mask: jax.Array | None,
    ) -> tuple[jax.Array, Any, jax.Array]:
        """One step without the last projection: (features of the logits, state, weights)."""
        raise NotImplementedError

    def prepare(
        self,
        encoder_outputs: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.dense.kernel.dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        if "attention" not in self.specification.parts:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, state: jax.Array | None = None) -> Any:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says

        Shapes: memory as from prepare; state (num_layers, batch, state_size), as is the result.
        """
        operator = self.specification.method("start")
        check_initial(operator.title, self.sizes["initial"], state)
        check(operator, self.sizes, self.dense.kernel.dtype, memory=memory, state=state)
        if state is not None:
            return state
        shape = self.sizes["num_layers"], memory.values.shape[0], self.sizes["state_size"]
        if self.sizes["initial"] == "zero":
            return jnp.zeros(shape, memory.values.dtype)
        return jnp.broadcast_to(self.initial[...][:, None], shape)

    def step(
        self,
        tokens: jax.Array,
        state: Any,
        memory: Memory,
        *,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, Any, jax.Array]:
        """Decode one token.

        Shapes: tokens (batch,), state as from start, memory as from prepare, with one row in its mask; dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the state after the step, (batch, keys).
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
        if attention_dropout_mask is None:
            attention_dropout_mask = drawn_mask(self.dropout, memory.values[..., 0])
        features, state, weights = self.advance(embedded, state, memory, dropout_mask, attention_dropout_mask)
        return self.dense(features), state, weights

    def __call__(
        self,
        tokens: jax.Array,
        encoder_outputs: jax.Array,
        state: jax.Array | None = None,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, Any, jax.Array]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state
        (num_layers, batch, state_size); valid_lens (batch,) or (batch, steps); mask (batch, steps, keys), each axis its
        size or 1; dropout_mask (num_layers - 1, batch, steps, hidden_size); attention_dropout_mask
        (batch, steps, keys); returns (logits, state, weights): (batch, steps, vocab_size), the state after the last
        step, (batch, steps, keys).
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
        check_initial(self.specification.name, self.sizes["initial"], state)
        embedded = embed(self.specification.name, self.embedding, tokens)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        factors = self.factors(tokens.shape[1], memory, dropout_mask, attention_dropout_mask)
        return self.run_forced(embedded, self.start(memory, state), memory, factors)

    def greedy(
        self,
        encoder_outputs: jax.Array,
        state: jax.Array | None = None,
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
        current, memory = self.begin(operator, encoder_outputs, state, valid_lens, mask)
        return self.run_greedy(current, memory, self.factors(max_steps, memory), bos, eos, max_steps)

    def beam(
        self,
        encoder_outputs: jax.Array,
        state: jax.Array | None = None,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Decode by keeping the best hypotheses of every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos

        Every step ranks all continuations of the running hypotheses, and the finished ones as they are, by their score,
        and keeps the best of them, width in number. Of two equal scores, the one that comes first by hypothesis, then
        by token, is the better.

        Shapes: as greedy. Returns (tokens, lengths, scores, weights), best first: (batch, num_best, max_steps) ids, eos
        from the end on; (batch, num_best) the tokens before eos; (batch, num_best);
        (batch, num_best, max_steps, keys), 0 after the end.
        """
        operator = self.specification.method("beam")
        check_options(
            operator,
            bos=bos,
            eos=eos,
            max_steps=max_steps,
            width=width,
            num_best=num_best,
            length_penalty=length_penalty,
        )
        check_tokens(operator.title, "bos", bos, bos, self.sizes["vocab_size"])
        check_tokens(operator.title, "eos", eos, eos, self.sizes["vocab_size"])
        check_search(operator.title, width, num_best, self.sizes["vocab_size"])
        current, memory = self.begin(operator, encoder_outputs, state, valid_lens, mask)
        # Hypothesis w of sequence b stands in row b width + w: each step is one step of the decoder.
        batch, keys = encoder_outputs.shape[:2]
        if batch == 0:  # there is no row to repeat
            shape, dtype = (0, num_best), memory.values.dtype
            tokens, lengths = jnp.zeros((*shape, max_steps), jnp.int32), jnp.zeros(shape, jnp.int32)
            return tokens, lengths, jnp.zeros(shape, dtype), jnp.zeros((*shape, max_steps, keys), dtype)
        if memory.mask is not None:
            memory = memory._replace(mask=jnp.broadcast_to(memory.mask, (batch, *memory.mask.shape[1:])))
        rows = jnp.repeat(jnp.arange(batch), width)
        current, memory = self.reordered(current, rows), jax.tree.map(lambda part: part[rows], memory)
        factors = self.factors(max_steps, memory)
        return self.run_beam(current, memory, factors, bos, eos, length_penalty, max_steps, width, num_best)

    def begin(
        self,
        operator: Operator,
        encoder_outputs: jax.Array,
        state: jax.Array | None,
        valid_lens: jax.Array | None,
        mask: jax.Array | None,
    ) -> tuple[Any, Memory]:
        """Check the arrays of a search; give the first state, and the memory."""
        arrays = {"encoder_outputs": encoder_outputs, "state": state, "valid_lens": valid_lens, "mask": mask}
        check(operator, self.sizes, self.dense.kernel.dtype, **arrays)
        check_initial(operator.title, self.sizes["initial"], state)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        return self.start(memory, state), memory

    # The loops are compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
    @jax.jit
    def run_forced(
        self, embedded: jax.Array, state: Any, memory: Memory, factors: Factors
    ) -> tuple[jax.Array, Any, jax.Array]:
        """All steps of embedded tokens, and the logits of all steps at once: (logits, state, weights)."""

        # Computed again on the way back: a smaller program, and no step keeps its (batch, keys, attention_size).
        @partial(jax.checkpoint, prevent_cse=False)
        def step(state: Any, at: tuple[Any, ...]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            embedded, row, factors = at
            seen = memory if row is None else memory._replace(mask=row)
            features, state, attended = self.advance(embedded, state, seen, *factors)
            return state, (features, attended)

        state, (features, weights) = jax.lax.scan(step, state, (time_first(embedded), rows(memory.mask), factors))
        return self.dense(jnp.swapaxes(features, 0, 1)), state, jnp.swapaxes(weights, 0, 1)

    @partial(jax.jit, static_argnames="max_steps")
    def run_greedy(
        self, state: Any, memory: Memory, factors: Factors, bos: int, eos: int, max_steps: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """All steps, each reading the token before it: (tokens, lengths, weights)."""
        batch = memory.values.shape[0]

        def step(carry: tuple[Any, ...], factors: Factors) -> tuple[Any, ...]:
            token, state, running = carry
            features, state, attended = self.advance(self.embedding(token), state, memory, *factors)
            token = jnp.where(running, jnp.argmax(self.dense(features), axis=-1), eos).astype(jnp.int32)
            attended = jnp.where(running[:, None], attended, 0.0)
            running = running & (token != eos)
            return (token, state, running), (token, running, attended)

        start = (jnp.full(batch, bos, jnp.int32), state, jnp.full(batch, True))
        # All max_steps run, whenever the sequences end: under jit, shapes may not depend on values.
        _, (tokens, running, weights) = jax.lax.scan(step, start, factors, length=max_steps)
        lengths = jnp.sum(running, axis=0, dtype=jnp.int32)
        return jnp.swapaxes(tokens, 0, 1), lengths, jnp.swapaxes(weights, 0, 1)

    @partial(jax.jit, static_argnames=("max_steps", "width", "num_best"))
    def run_beam(
        self,
        state: Any,
        memory: Memory,
        factors: Factors,
        bos: int,
        eos: int,
        length_penalty: float,
        max_steps: int,
        width: int,
        num_best: int,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """All steps, each keeping the best hypotheses, and the way back along the best: as beam."""
        (stacked, keys, _), dtype = memory.values.shape, memory.values.dtype
        batch, vocab_size = stacked // width, self.sizes["vocab_size"]
        precise = jnp.promote_types(dtype, jnp.float32)
        itself = jnp.where(jnp.arange(vocab_size) == eos, 0.0, -jnp.inf).astype(precise)
        first = jnp.arange(batch, dtype=jnp.int32)[:, None] * width

        def penalty(lengths: jax.Array) -> jax.Array:
            return ((5.0 + lengths.astype(precise)) / 6.0) ** length_penalty

        def step(carry: tuple[Any, ...], factors: Factors) -> tuple[Any, ...]:
            token, state, totals, counts, running = carry
            features, state, attended = self.advance(self.embedding(token), state, memory, *factors)
            logs = jax.nn.log_softmax(self.dense(features).astype(precise), axis=-1)
            logs = jnp.where(running[..., None], logs.reshape(batch, width, vocab_size), itself)
            attended = jnp.where(running[..., None], attended.reshape(batch, width, keys), 0.0)
            counts = counts + running
            candidates = totals[..., None] + logs
            ranked = candidates / penalty(counts)[..., None]
            # Of two equal ones, top_k takes the first.
            _, best = jax.lax.top_k(ranked.reshape(batch, width * vocab_size), width)
            parents, chosen = best // vocab_size, (best % vocab_size).astype(jnp.int32)
            totals = jnp.take_along_axis(candidates.reshape(batch, width * vocab_size), best, axis=-1)
            counts, running = (jnp.take_along_axis(array, parents, axis=-1) for array in (counts, running))
            state = self.reordered(state, (first + parents).reshape(stacked))
            carry = chosen.reshape(stacked), state, totals, counts, running & (chosen != eos)
            return carry, (parents, chosen, attended)

        def back(hypothesis: jax.Array, at: tuple[jax.Array, ...]) -> tuple[Any, ...]:
            parents, chosen, attended = at
            parent, token = (jnp.take_along_axis(array, hypothesis, axis=-1) for array in (parents, chosen))
            return parent, (token, jnp.take_along_axis(attended, parent[..., None], axis=1))

        start = (
            jnp.full(stacked, bos, jnp.int32),
            state,
            jnp.zeros((batch, width), precise).at[:, 1:].set(-jnp.inf),
            jnp.zeros((batch, width), jnp.int32),
            jnp.full((batch, width), True),
        )
        (_, _, totals, counts, running), kept = jax.lax.scan(step, start, factors, length=max_steps)
        hypotheses = jnp.broadcast_to(jnp.arange(num_best, dtype=jnp.int32), (batch, num_best))
        _, (tokens, weights) = jax.lax.scan(back, hypotheses, kept, length=max_steps, reverse=True)
        lengths = jnp.where(running, counts, jnp.maximum(counts - 1, 0))[:, :num_best]
        scores = (totals / penalty(counts)).astype(dtype)[:, :num_best]
        return jnp.moveaxis(tokens, 0, -1), lengths, scores, jnp.moveaxis(weights, 0, 2)

    def reordered(self, state: Any, rows: jax.Array) -> Any:
        """The state of these rows of the batch, in this order."""
        return state[:, rows]

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
            dropout_mask = drawn_mask(self.rnn.dropout, jax.ShapeDtypeStruct(self.rnn.between(batch, steps), dtype))
        if attention_dropout_mask is None:
            attention_dropout_mask = drawn_mask(self.dropout, jax.ShapeDtypeStruct((batch, steps, keys), dtype))
        return time_first(dropout_mask, 2), time_first(attention_dropout_mask)


class BahdanauDecoder(Decoder):
    """Decode with attention whose query is the previous output of the top recurrent layer.

    context, weights = attention(top output, encoder_outputs)
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b
    maxout: logits = dense.W m + dense.b, m[j] = max(t[2j], t[2j + 1]),
    t = readout.W [top output; embedding[token]; context] + readout.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size);
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
        score: str = "additive",
        num_positions: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        readout: str = "dense",
        maxout_size: int | None = None,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            memory_size=memory_size,
            attention_size=attention_size,
            score=score,
            num_positions=num_positions,
            cell=cell,
            initial=initial,
            readout=readout,
            maxout_size=maxout_size,
            dropout=dropout,
            dtype=dtype,
            rngs=rngs,
        )
        if readout == "maxout":
            pairs = 2 * self.sizes["maxout_size"]
            self.readout = nnx.Linear(self.sizes["readout_size"], pairs, param_dtype=dtype, rngs=rngs)

    def advance(
        self,
        embedded: jax.Array,
        state: jax.Array,
        memory: Memory,
        dropout_mask: jax.Array | None,
        attention_dropout_mask: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One step without the last projection: (features of the logits, state, weights)."""
        previous = state[-1, :, : self.sizes["hidden_size"]]
        context, weights = attended(self.attention, previous, memory, attention_dropout_mask)
        inputs = jnp.concatenate([context, embedded], axis=-1)
        features, state = self.rnn.step(inputs, state, dropout_mask=dropout_mask)
        if self.sizes["readout"] == "maxout":
            pairs = self.readout(jnp.concatenate([previous, embedded, context], axis=-1))
            features = jnp.where(pairs[:, 0::2] >= pairs[:, 1::2], pairs[:, 0::2], pairs[:, 1::2])
        return features, state, weights


class LuongDecoder(Decoder):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; h̃], state), without h̃ unless input_feeding
    context, weights = attention(top output', encoder_outputs);  h̃' = tanh(W_c [context; top output']);
    logits = dense.W h̃' + dense.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size);
    returns (logits, state, weights): (batch, steps, vocab_size), a LuongState, (batch, steps, keys).
    """

    specification = LUONG_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
        score: str = "general",
        num_positions: int | None = None,
        alignment: str = "global",
        window: int | None = None,
        input_feeding: bool = True,
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            memory_size=memory_size,
            attention_size=attention_size,
            score=score,
            num_positions=num_positions,
            alignment=alignment,
            window=window,
            input_feeding=input_feeding,
            cell=cell,
            initial=initial,
            dropout=dropout,
            dtype=dtype,
            rngs=rngs,
        )
        joined = self.sizes["memory_size + hidden_size"]
        self.W_c = nnx.Linear(joined, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)

    def start(self, memory: Memory, state: jax.Array | None = None) -> LuongState:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says; h̃ = 0, position = 0

        Shapes: memory as from prepare; state (num_layers, batch, state_size). Returns a LuongState.
        """
        rnn = super().start(memory, state)
        batch = rnn.shape[1]
        return LuongState(rnn, jnp.zeros((batch, self.sizes["hidden_size"]), rnn.dtype), jnp.zeros(batch, jnp.int32))

    def advance(
        self,
        embedded: jax.Array,
        state: LuongState,
        memory: Memory,
        dropout_mask: jax.Array | None,
        attention_dropout_mask: jax.Array | None,
    ) -> tuple[jax.Array, LuongState, jax.Array]:
        """One step without the last projection: (features of the logits, state, weights)."""
        fed = [embedded, state.attentional] if self.sizes["input_feeding"] else [embedded]
        output, rnn = self.rnn.step(jnp.concatenate(fed, axis=-1), state.rnn, dropout_mask=dropout_mask)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = attended(self.attention, output, memory, attention_dropout_mask, **at)
        attentional = jnp.tanh(self.W_c(jnp.concatenate([context, output], axis=-1)))
        return attentional, LuongState(rnn, attentional, state.position + 1), weights

    @jax.jit
    def run_forced(
        self, embedded: jax.Array, state: LuongState, memory: Memory, factors: Factors
    ) -> tuple[jax.Array, LuongState, jax.Array]:
        """As of every decoder; without input feeding no step's attention waits for the one before."""
        if self.sizes["input_feeding"]:
            return super().run_forced(embedded, state, memory, factors)
        between, attention = batch_first(factors)
        outputs, rnn = self.rnn(embedded, None, state.rnn, dropout_mask=between)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attention.attend(outputs, memory, **at, dropout_mask=attention)
        attentional = jnp.tanh(self.W_c(jnp.concatenate([context, outputs], axis=-1)))
        steps = embedded.shape[1]
        last = attentional[:, -1] if steps else state.attentional
        return self.dense(attentional), LuongState(rnn, last, state.position + steps), weights

    def reordered(self, state: LuongState, rows: jax.Array) -> LuongState:
        """The state of these rows of the batch, in this order."""
        return LuongState(state.rnn[:, rows], state.attentional[rows], state.position[rows])


class FixedContextDecoder(Decoder):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last encoder output that is open, weights = 1 there
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b

    Dropout acts on the weight, as on those of attention. A sequence without an open key gets context 0 and weights 0.

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size);
    returns (logits, state, weights): (batch, steps, vocab_size), the shape of state, (batch, steps, keys).
    """

    specification = FIXED_CONTEXT_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            memory_size=memory_size,
            cell=cell,
            initial=initial,
            dropout=dropout,
            dtype=dtype,
            rngs=rngs,
        )

    def advance(
        self,
        embedded: jax.Array,
        state: jax.Array,
        memory: Memory,
        dropout_mask: jax.Array | None,
        attention_dropout_mask: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """One step without the last projection: (features of the logits, state, weights)."""
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        context, weights = self.last(1, memory, factor)
        inputs = jnp.concatenate([context[:, 0], embedded], axis=-1)
        output, state = self.rnn.step(inputs, state, dropout_mask=dropout_mask)
        return output, state, weights[:, 0]

    @jax.jit
    def run_forced(
        self, embedded: jax.Array, state: jax.Array, memory: Memory, factors: Factors
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """As of every decoder; no step's context waits for the one before."""
        between, attention = batch_first(factors)
        context, weights = self.last(embedded.shape[1], memory, attention)
        inputs = jnp.concatenate([context, embedded], axis=-1)
        outputs, state = self.rnn(inputs, None, state, dropout_mask=between)
        return self.dense(outputs), state, weights

    def last(self, steps: int, memory: Memory, dropout_mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """The last open value of each step, (batch, steps, memory_size), and its weights, (batch, steps, keys)."""
        batch, keys, _ = memory.values.shape
        seen = jnp.broadcast_to(True if memory.mask is None else memory.mask, (batch, steps, keys))
        ends = jnp.max(jnp.arange(1, keys + 1) * seen, axis=-1, keepdims=True, initial=0)
        weights = (jnp.arange(1, keys + 1) == ends).astype(memory.values.dtype)
        # Taken, not multiplied: a weight of 0 does not silence a NaN. Where nothing is open, the place is outside: 0.
        places = jnp.where(ends == 0, keys, ends - 1)
        context = jnp.take_along_axis(memory.values, places, axis=1, mode="fill", fill_value=0)
        if dropout_mask is not None:
            context = context * jnp.sum(weights * dropout_mask, axis=-1, keepdims=True)
        return context, weights


def attended(
    attention: Any, queries: jax.Array, memory: Memory, dropout_mask: jax.Array | None, **at: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Attend with one query for each sequence: (context, weights), without the axis of queries."""
    factor = None if dropout_mask is None else dropout_mask[:, None]
    context, weights = attention.attend(queries[:, None], memory, **at, dropout_mask=factor)
    return context[:, 0], weights[:, 0]


def rows(mask: jax.Array | None) -> jax.Array | None:
    """The mask's row for each step, (steps, batch, 1, keys), or None where one row, or no mask, serves all."""
    return None if mask is None or mask.shape[1] == 1 else jnp.swapaxes(mask, 0, 1)[:, :, None]


def batch_first(factors: Factors) -> Factors:
    """The two dropout masks as they were before their steps came first."""
    between, attention = factors
    return (
        None if between is None else jnp.moveaxis(between, 0, 2),
        None if attention is None else jnp.moveaxis(attention, 0, 1),
    )
