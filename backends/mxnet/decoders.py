"""Decoders in MXNet: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from typing import Any, NamedTuple

import mxnet as mx
from mxnet import autograd, np, npx
from mxnet.gluon import Block

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators.decoders import (
    BAHDANAU_DECODER,
    FIXED_CONTEXT_DECODER,
    LUONG_DECODER,
    check_initial,
    check_search,
)
from attention_core.specification import Layer
from backends.mxnet.attention import LAYERS, Memory, attention_layer, zero_masked
from backends.mxnet.encoders import embed, embedding
from backends.mxnet.local import LocalAttention
from backends.mxnet.module import Uniform, drawn_mask, initialise, linear, projected
from backends.mxnet.pooling import average
from backends.mxnet.recurrent import recurrent_layer

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and given by `step`.

    Shapes: rnn (num_layers, batch, state_size), attentional (batch, hidden_size), position (batch,), int32.
    """

    rnn: np.ndarray
    attentional: np.ndarray
    position: np.ndarray


class Decoder(Block):
    """What the decoders share: they differ in `advance`, one step up to what the logits are made of."""

    specification: Layer

    def __init__(
        self, *, dtype: str, prefix: str | None, params: mx.gluon.ParameterDict | None, **options: Any
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = sizes = check_options(self.specification, **options)
        self.dropout = sizes["dropout"]
        parts, shape = self.specification.inside(sizes), (sizes["num_layers"], sizes["state_size"])
        with self.name_scope():
            self.embedding = embedding(sizes["vocab_size"], sizes["embed_size"], dtype=dtype)
            if sizes["initial"] == "learned":
                drawn = Uniform(sizes["hidden_size"] ** -0.5)
                self.initial = self.params.get("initial", shape=shape, dtype=dtype, init=drawn)
            self.attention = (
                attention_layer(parts["attention"], ATTENTION, dtype=dtype) if "attention" in parts else None
            )
            self.rnn = recurrent_layer(parts["rnn"], dtype=dtype)
            self.dense = linear(sizes["dense_size"], sizes["vocab_size"], use_bias=True, dtype=dtype)
        initialise(self)

    def advance(
        self,
        embedded: np.ndarray,
        state: Any,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        raise NotImplementedError

    def attended(
        self, query: np.ndarray, memory: Memory, dropout_mask: np.ndarray | None, **at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The context of one query, (batch, memory_size), and its weights, (batch, keys)."""
        assert self.attention is not None
        factor = None if dropout_mask is None else dropout_mask[:, None]
        context, weights = self.attention.attend(np.expand_dims(query, 1), memory, **at, dropout_mask=factor)
        return np.squeeze(context, 1), weights[:, 0]

    def logits(self, features: np.ndarray) -> np.ndarray:
        """The last projection, of one step or of all of them."""
        return projected(self.dense, features)

    def prepare(
        self,
        encoder_outputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)

        Shapes: encoder_outputs (batch, keys, memory_size); valid_lens (batch,) or (batch, steps); mask
        (batch, steps, keys), each axis its size or 1.
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, state: np.ndarray | None = None) -> Any:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says

        Shapes: memory as from prepare; state (num_layers, batch, state_size), as is the result.
        """
        operator = self.specification.method("start")
        check_initial(operator.title, self.sizes["initial"], state)
        check(operator, self.sizes, self.dense.weight.dtype, memory=memory, state=state)
        if state is not None:
            return state
        batch, ctx = memory.values.shape[0], memory.values.ctx
        shape = (self.sizes["num_layers"], batch, self.sizes["state_size"])
        if self.sizes["initial"] == "zero" or batch == 0:
            return np.zeros(shape, dtype=memory.values.dtype, ctx=ctx)
        return np.broadcast_to(self.initial.data(ctx)[:, None], shape)

    def step(
        self,
        tokens: np.ndarray,
        state: Any,
        memory: Memory,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Decode one token.

        Shapes: tokens (batch,), state as from start, memory as from prepare, with one row in its mask; dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the state after the step, (batch, keys).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.dense.weight.dtype,
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        embedded, (batch, keys) = embed(self.specification.name, self.embedding, tokens), memory.values.shape[:2]
        if batch == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            like = {"dtype": embedded.dtype, "ctx": embedded.ctx}
            return np.zeros((0, self.sizes["vocab_size"]), **like), state, np.zeros((0, keys), **like)
        features, state, weights = self.advance(embedded, state, memory, dropout_mask, attention_dropout_mask)
        return self.logits(features), state, weights

    def __call__(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state
        (num_layers, batch, state_size), the encoder's; valid_lens (batch,) or (batch, steps); mask
        (batch, steps, keys), each axis its size or 1; dropout_mask (num_layers - 1, batch, steps, hidden_size);
        attention_dropout_mask (batch, steps, keys). Returns (logits, state, weights): (batch, steps, vocab_size), the
        state after the last step, (batch, steps, keys).
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.dense.weight.dtype,
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        check_initial(self.specification.name, self.sizes["initial"], state)
        return super().__call__(tokens, encoder_outputs, state, valid_lens, mask, dropout_mask, attention_dropout_mask)

    def forward(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Decode given tokens; Gluon enters here."""
        embedded = embed(self.specification.name, self.embedding, tokens)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        current, (batch, steps, _), keys = self.start(memory, state), embedded.shape, encoder_outputs.shape[1]
        if batch == 0 or steps == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            like = {"dtype": embedded.dtype, "ctx": embedded.ctx}
            logits = np.zeros((batch, steps, self.sizes["vocab_size"]), **like)
            return logits, current, np.zeros((batch, steps, keys), **like)
        features, current, weights = self.run_forced(embedded, current, memory, dropout_mask, attention_dropout_mask)
        return self.logits(features), current, weights

    def run_forced(
        self,
        embedded: np.ndarray,
        state: Any,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """All steps without the last projection."""
        features, weights = [], []
        for t in range(embedded.shape[1]):
            feature, state, attended = self.advance(
                embedded[:, t],
                state,
                memory._replace(mask=row(memory.mask, t)),
                None if dropout_mask is None else dropout_mask[:, :, t],
                None if attention_dropout_mask is None else attention_dropout_mask[:, t],
            )
            features.append(feature)
            weights.append(attended)
        if memory.keys.shape[1] == 0:  # MXNet stacks no empty arrays
            shape = (*embedded.shape[:2], 0)
            return np.stack(features, axis=1), state, np.zeros(shape, dtype=embedded.dtype, ctx=embedded.ctx)
        return np.stack(features, axis=1), state, np.stack(weights, axis=1)

    def greedy(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decode by feeding back the most probable token, up to an end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Shapes: encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size), the encoder's,
        valid_lens (batch,), mask (batch, 1, keys). Returns (tokens, lengths, weights): (batch, max_steps) ids, eos from
        the end on; (batch,) the number of tokens before eos; (batch, max_steps, keys), 0 after the end.
        """
        operator = self.specification.method("greedy")
        check_options(operator, bos=bos, eos=eos, max_steps=max_steps)
        check_tokens(operator.title, "bos", bos, bos, self.sizes["vocab_size"])
        check_tokens(operator.title, "eos", eos, eos, self.sizes["vocab_size"])
        check(
            operator,
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        check_initial(operator.title, self.sizes["initial"], state)
        (batch, keys, _), ctx = encoder_outputs.shape, encoder_outputs.ctx
        tokens = np.full((batch, max_steps), eos, dtype="int32", ctx=ctx)
        weights = np.zeros((batch, max_steps, keys), dtype=encoder_outputs.dtype, ctx=ctx)
        lengths = np.zeros((batch,), dtype="int32", ctx=ctx)
        if batch == 0:
            return tokens, lengths, weights
        ends = np.full((batch,), eos, dtype="int32", ctx=ctx)
        token = np.full((batch,), bos, dtype="int32", ctx=ctx)
        running = np.ones((batch,), dtype="bool", ctx=ctx)
        with autograd.pause():
            memory = self.prepare(encoder_outputs, valid_lens, mask)
            current = self.start(memory, state)
            for t in range(max_steps):
                if not running.any():
                    break
                features, current, attended = self.advance(self.embedding(token), current, memory, None, None)
                best = np.argmax(self.logits(features), axis=-1).astype("int32")
                token = np.where(running, best, ends)
                tokens[:, t] = token
                if keys:
                    weights[:, t] = np.where(running[:, None], attended, np.zeros_like(attended))
                running = running * (token != eos)
                lengths = lengths + running.astype("int32")
        return tokens, lengths, weights

    def beam(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Decode by keeping the best hypotheses of every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos

        Every step ranks all continuations of the running hypotheses, and the finished ones as they are, by their score,
        and keeps the best of them, width in number. Of two equal scores, the one that comes first by hypothesis, then
        by token, is the better.

        Shapes: encoder_outputs, state, valid_lens and mask as in greedy. Returns (tokens, lengths, scores, weights),
        best first: (batch, num_best, max_steps) ids, eos from the end on; (batch, num_best) the tokens before eos;
        (batch, num_best); (batch, num_best, max_steps, keys), 0 after the end.
        """
        operator, vocab_size = self.specification.method("beam"), self.sizes["vocab_size"]
        check_options(
            operator,
            bos=bos,
            eos=eos,
            max_steps=max_steps,
            width=width,
            num_best=num_best,
            length_penalty=length_penalty,
        )
        check_tokens(operator.title, "bos", bos, bos, vocab_size)
        check_tokens(operator.title, "eos", eos, eos, vocab_size)
        check_search(operator.title, width, num_best, vocab_size)
        check(
            operator,
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        check_initial(operator.title, self.sizes["initial"], state)
        (batch, keys, _), ctx, dtype = encoder_outputs.shape, encoder_outputs.ctx, encoder_outputs.dtype
        summed = {"dtype": "float32" if dtype == "float16" else dtype, "ctx": ctx}
        tokens = np.full((batch, num_best, max_steps), eos, dtype="int32", ctx=ctx)
        weights = np.zeros((batch, num_best, max_steps, keys), dtype=dtype, ctx=ctx)
        if batch == 0:
            empty = (0, num_best)
            return tokens, np.zeros(empty, dtype="int32", ctx=ctx), np.zeros(empty, dtype=dtype, ctx=ctx), weights
        with autograd.pause():
            memory = self.prepare(encoder_outputs, valid_lens, mask)
            # Hypothesis w of sequence b stands in row b width + w: each step is one step of the decoder.
            sequences = np.arange(batch, dtype="int64", ctx=ctx)
            current = self.reordered(self.start(memory, state), np.repeat(sequences, width))
            memory = Memory(*(repeated(part, width) for part in memory))
            token, first = np.full((batch * width,), bos, dtype="int32", ctx=ctx), sequences[:, None] * width
            nowhere, alone = np.full((width,), -np.inf, **summed), np.arange(width, dtype="int64", ctx=ctx) == 0
            totals = np.broadcast_to(np.where(alone, np.zeros_like(nowhere), nowhere), (batch, width))
            nowhere, ids = np.full((vocab_size,), -np.inf, **summed), np.arange(vocab_size, dtype="int64", ctx=ctx)
            itself = np.where(ids == eos, np.zeros_like(nowhere), nowhere)
            counts = np.zeros((batch, width), dtype="int32", ctx=ctx)
            running, steps = np.ones((batch, width), dtype="bool", ctx=ctx), []
            for _ in range(max_steps):
                if not running.any():
                    break
                features, current, attended = self.advance(self.embedding(token), current, memory, None, None)
                logs = log_softmax(self.logits(features).astype(summed["dtype"]))
                logs = np.reshape(logs, (batch, width, vocab_size))
                candidates = totals[:, :, None] + np.where(running[:, :, None], logs, itself)
                lengths = counts + running.astype("int32")
                ranked = candidates / penalty(lengths, length_penalty, candidates)[:, :, None]
                best = first_best(np.reshape(ranked, (batch, -1)), width)
                parents = np.floor(best.astype("float64") / vocab_size).astype("int64")
                token = np.reshape(np.mod(best, vocab_size).astype("int32"), (-1,))
                rows = np.reshape(first + parents, (-1,))
                open_rows = np.reshape(running, (-1,))
                steps.append(
                    (token, rows, np.where(open_rows[:, None], attended, np.zeros_like(attended)) if keys else None)
                )
                totals = np.take(np.reshape(candidates, (-1,)), best + first * vocab_size)
                counts = np.take(np.reshape(lengths, (-1,)), first + parents)
                running = np.take(open_rows, first + parents) * (np.reshape(token, (batch, width)) != eos)
                current = self.reordered(current, rows)
            # Back from the last step: which hypothesis each of the best comes from.
            rows = first + np.arange(num_best, dtype="int64", ctx=ctx)
            for t, (token, parents, attended) in reversed(list(enumerate(steps))):
                tokens[:, :, t] = np.take(token, rows)
                rows = np.take(parents, rows)
                if keys:
                    weights[:, :, t] = np.take(attended, rows, axis=0)
            ended = (running == 0) * (counts > 0)
            scores = totals / penalty(counts, length_penalty, totals)
        lengths = counts - ended.astype("int32")
        return tokens, lengths[:, :num_best], scores[:, :num_best].astype(dtype), weights

    def reordered(self, state: Any, rows: np.ndarray) -> Any:
        """The state of these rows of the batch, in this order."""
        return np.take(state, rows, axis=1)


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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
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
            prefix=prefix,
            params=params,
        )
        if readout == "maxout":
            with self.name_scope():
                self.readout = linear(
                    self.sizes["readout_size"], 2 * self.sizes["maxout_size"], use_bias=True, dtype=dtype
                )
            initialise(self)

    def advance(
        self,
        embedded: np.ndarray,
        state: np.ndarray,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step without the last projections: (features of the logits, state, weights)."""
        previous = state[-1] if self.sizes["cell"] == "gru" else state[-1][:, : self.sizes["hidden_size"]]
        context, weights = self.attended(previous, memory, attention_dropout_mask)
        output, state = self.rnn.advance(np.concatenate([context, embedded], axis=-1), state, dropout_mask)
        if self.sizes["readout"] == "maxout":
            output = np.concatenate([previous, embedded, context], axis=-1)
        return output, state, weights

    def logits(self, features: np.ndarray) -> np.ndarray:
        """The last projections, of one step or of all of them."""
        if self.sizes["readout"] == "maxout":
            pairs = projected(self.readout, features)
            features = np.maximum(pairs[..., 0::2], pairs[..., 1::2])
        return super().logits(features)


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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
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
            prefix=prefix,
            params=params,
        )
        with self.name_scope():
            self.W_c = linear(self.sizes["memory_size + hidden_size"], hidden_size, use_bias=False, dtype=dtype)
        initialise(self)

    def start(self, memory: Memory, state: np.ndarray | None = None) -> LuongState:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says; h̃ = 0, position = 0

        Shapes: memory as from prepare; state (num_layers, batch, state_size); returns a LuongState.
        """
        rnn = super().start(memory, state)
        attentional = np.zeros((rnn.shape[1], self.sizes["hidden_size"]), dtype=rnn.dtype, ctx=rnn.ctx)
        return LuongState(rnn, attentional, np.zeros(rnn.shape[1:2], dtype="int32", ctx=rnn.ctx))

    def advance(
        self,
        embedded: np.ndarray,
        state: LuongState,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, LuongState, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        inputs = np.concatenate([embedded, state.attentional], axis=-1) if self.sizes["input_feeding"] else embedded
        output, rnn = self.rnn.advance(inputs, state.rnn, dropout_mask)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attended(output, memory, attention_dropout_mask, **at)
        joined = np.concatenate([context, output], axis=-1)
        attentional = npx.activation(self.W_c(joined), act_type="tanh")
        return attentional, LuongState(rnn, attentional, state.position + 1), weights

    def reordered(self, state: LuongState, rows: np.ndarray) -> LuongState:
        """The state of these rows of the batch, in this order."""
        return LuongState(
            np.take(state.rnn, rows, axis=1),
            np.take(state.attentional, rows, axis=0),
            np.take(state.position, rows, axis=0),
        )


class FixedContextDecoder(Decoder):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last encoder output that is open, weights = 1 there
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b

    With a GRUEncoder of one direction, that output is the encoder's last state. Dropout acts on the weight, as on those
    of attention.

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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
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
            prefix=prefix,
            params=params,
        )

    def advance(
        self,
        embedded: np.ndarray,
        state: np.ndarray,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        context, weights = last_open(memory, self.dropout, attention_dropout_mask)
        output, state = self.rnn.advance(np.concatenate([context, embedded], axis=-1), state, dropout_mask)
        return output, state, weights


def last_open(memory: Memory, rate: float, dropout_mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The last value that is open, (batch, memory_size), and 1 where it stands, (batch, keys)."""
    (batch, keys, features), values = memory.values.shape, memory.values
    like = {"dtype": values.dtype, "ctx": values.ctx}
    if keys == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros((batch, features), **like), np.zeros((batch, 0), **like)
    ones = np.ones((batch, 1, keys), dtype="bool", ctx=values.ctx)
    allowed = ones if memory.mask is None else ones * memory.mask
    places = np.arange(1, keys + 1, dtype="int32", ctx=values.ctx)
    weights = (places == np.max(places * allowed, axis=-1, keepdims=True)).astype(values.dtype)
    if dropout_mask is None:
        dropout_mask = drawn_mask(rate, weights[:, 0].shape, weights)
    factor = None if dropout_mask is None else dropout_mask[:, None]
    return average(weights, values, weights > 0, factor)[:, 0], weights[:, 0]


def row(mask: np.ndarray | None, step: int) -> np.ndarray | None:
    """The mask's row for that step, or its only row, as (batch, 1, keys)."""
    return mask if mask is None or mask.shape[1] == 1 else mask[:, step : step + 1]


def repeated(array: np.ndarray | None, width: int) -> np.ndarray | None:
    """Every row of the batch, width times in a row; a mask's only row stays alone."""
    if array is None or (array.shape[0] == 1 and array.dtype == "bool"):
        return array
    if array.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros((array.shape[0] * width, *array.shape[1:]), dtype=array.dtype, ctx=array.ctx)
    return np.repeat(array, width, axis=0)


def first_best(scores: np.ndarray, count: int) -> np.ndarray:
    """The places of the highest scores of each row, best first; of two equal ones the first is the better."""
    places = np.arange(scores.shape[-1], dtype="int64", ctx=scores.ctx)
    taken, best = np.full_like(scores, -np.inf), []
    scores = np.maximum(scores, -np.finfo(scores.dtype).max)  # nothing is as low as what is taken
    for _ in range(count):
        best.append(np.argmax(scores, axis=-1).astype("int64"))
        scores = np.where(places == best[-1][:, None], taken, scores)
    return np.stack(best, axis=-1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the softmax, spelled out: in float32, npx.log_softmax is off by 30 eps."""
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def penalty(lengths: np.ndarray, length_penalty: float, like: np.ndarray) -> np.ndarray:
    """((5 + n)/6)^α of Wu et al."""
    return (((lengths.astype("float64") + 5.0) / 6.0) ** length_penalty).astype(like.dtype)
