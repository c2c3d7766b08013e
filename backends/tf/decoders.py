"""Decoders in Keras: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from attention_core.errors import check, check_options, check_positions, check_tokens
from attention_core.operators.attention import LOCATION_ATTENTION
from attention_core.operators.decoders import (
    BAHDANAU_DECODER,
    FIXED_CONTEXT_DECODER,
    LUONG_DECODER,
    check_initial,
    check_search,
)
from backends.tf.attention import LAYERS, AdditiveAttention, Memory, attention_layer, zero_masked
from backends.tf.blocked import blocked_steps, takes_steps
from backends.tf.local import LocalAttention
from backends.tf.masking import precise, size
from backends.tf.module import Specified, chosen, drawn_mask
from backends.tf.recurrent import GRU, check_known, recurrent_layer

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and given by `step`.

    Shapes: rnn (num_layers, batch, state_size), attentional (batch, hidden_size), position (batch,), int32.
    """

    rnn: tf.Tensor
    attentional: tf.Tensor
    position: tf.Tensor


class Decoder(Specified):
    """What the decoders share: they differ in `advance`, one step up to what the logits are made of."""

    dense: keras.layers.Dense  # the layer of the logits, in place of the method that makes such layers

    def __init__(self, *, dtype: str | tf.DType | None, name: str | None, **options: Any) -> None:
        super().__init__(dtype=dtype, name=name, **options)
        sizes, dtype = self.sizes, self.variable_dtype
        parts = self.specification.inside(sizes)
        with keras.name_scope(self.name, caller=self):
            self.embedding = keras.layers.Embedding(
                sizes["vocab_size"], sizes["embed_size"], dtype=dtype, name="embedding"
            )
            self.rnn = recurrent_layer(parts["rnn"], dtype=dtype, name="rnn")
            for layer in (self.embedding, self.rnn):
                layer.build(None)
        self.attention = None
        if "attention" in parts:
            self.attention = attention_layer(parts["attention"], ATTENTION, caller=self, name="attention")
        self.initial = None
        if sizes["initial"] == "learned":
            self.initial = self.uniform("initial", (sizes["num_layers"], sizes["state_size"]), sizes["hidden_size"])
        self.dense = self.projection("dense", sizes["dense_size"], sizes["vocab_size"], use_bias=True)
        self.dropout = keras.layers.Dropout(sizes["dropout"], autocast=False)

    def embedded(self, tokens: tf.Tensor) -> tf.Tensor:
        """What each step reads of its token, which needs no step before it."""
        return self.embedding(tokens)

    def of_steps(self) -> list[tuple[tf.Tensor, ...]]:
        """What each step reads of the recurrent layers."""
        return self.rnn.of_steps()

    def advance(
        self,
        embedded: tf.Tensor,
        state: Any,
        memory: Memory,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        layers: Sequence[tuple[tf.Tensor, ...]],
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """One step without the last projection: (features of the logits, state, weights).

        The memory's mask has one row, and its values are 0 where that is closed.
        """
        raise NotImplementedError

    def prepare(
        self,
        encoder_outputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.variable_dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, state: tf.Tensor | None = None) -> Any:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says

        Shapes: memory as from prepare; state (num_layers, batch, state_size), as is the result.
        """
        operator = self.specification.method("start")
        check_initial(operator.title, self.sizes["initial"], state)
        check(operator, self.sizes, self.variable_dtype, memory=memory, state=state)
        if state is not None:
            return state
        shape = (self.sizes["num_layers"], size(memory.values, 0), self.sizes["state_size"])
        if self.initial is None:
            return tf.zeros(shape, memory.values.dtype)
        return tf.broadcast_to(self.initial.value[:, None], shape)

    def step(
        self,
        tokens: tf.Tensor,
        state: Any,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Decode one token.

        Shapes: tokens (batch,), state as from start, memory as from prepare, with one row in its mask; dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the state after the step, (batch, keys).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.variable_dtype,
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        check_known(self.specification.name, tokens, self.sizes["vocab_size"])
        lead, keys = (size(memory.values, 0),), size(memory.values, 1)
        between, factor = self.dropped(dropout_mask, attention_dropout_mask, lead, keys, training)
        factor = None if factor is None else factor[:, None]
        memory = memory._replace(values=seen(memory.values, memory.mask))
        features, state, weights = self.advance(self.embedded(tokens), state, memory, between, factor, self.of_steps())
        return self.dense(features), state, weights

    def __call__(
        self,
        tokens: tf.Tensor,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: valid_lens (batch,) or (batch, steps); mask (batch, steps, keys), each axis its size or 1; dropout_mask
        (num_layers - 1, batch, steps, hidden_size); attention_dropout_mask (batch, steps, keys).
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        check_initial(self.specification.name, self.sizes["initial"], state)
        check_known(self.specification.name, tokens, self.sizes["vocab_size"])
        check_room(self.sizes, encoder_outputs)
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(
            tokens,
            encoder_outputs,
            state,
            valid_lens,
            mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
            **chosen(training),
        )

    def call(
        self,
        tokens: tf.Tensor,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing); Keras enters here."""
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        lead, keys = (size(tokens, 0), size(tokens, 1)), size(encoder_outputs, 1)
        masks = self.dropped(dropout_mask, attention_dropout_mask, lead, keys, training)
        features, state, weights = self.run_forced(tokens, self.start(memory, state), memory, *masks)
        return self.dense(features), state, weights

    def run_forced(
        self,
        tokens: tf.Tensor,
        state: Any,
        memory: Memory,
        between: tf.Tensor | None,
        factors: tf.Tensor | None,
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """All steps without the last projection, each reading its own token, with both dropout masks as a call's."""
        embedded, layers = self.embedded(tokens), self.of_steps()
        batch, steps, keys = size(tokens, 0), size(tokens, 1), size(memory.values, 1)
        dtype = embedded.dtype
        embedded = tf.TensorArray(dtype, size=steps).unstack(tf.transpose(embedded, (1, 0, 2)))
        # A row before the first step stands in front: an empty TensorArray cannot be stacked.
        features = tf.TensorArray(dtype, size=steps + 1).write(0, tf.zeros((batch, self.sizes["dense_size"]), dtype))
        weights = tf.TensorArray(dtype, size=steps + 1).write(0, tf.zeros((batch, keys), dtype))

        def advance(
            t: tf.Tensor, state: Any, features: tf.TensorArray, weights: tf.TensorArray
        ) -> tuple[tf.Tensor, Any, tf.TensorArray, tf.TensorArray]:
            own, after, attended = self.advance(
                embedded.read(t),
                state,
                of_step(memory, t),
                None if between is None else between[:, :, t],
                None if factors is None else factors[:, t, None],
                layers,
            )
            return t + 1, shaped_as(after, state), features.write(t + 1, own), weights.write(t + 1, attended)

        _, state, features, weights = tf.while_loop(
            lambda t, *_: t < steps, advance, (0, state, features, weights), maximum_iterations=steps
        )
        features, weights = (tf.transpose(own.stack()[1:], (1, 0, 2)) for own in (features, weights))
        return features, state, weights

    def greedy(
        self,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
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
            self.variable_dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        check_initial(operator.title, self.sizes["initial"], state)
        memory, layers = self.prepare(encoder_outputs, valid_lens, mask), self.of_steps()
        batch, keys = size(encoder_outputs, 0), size(encoder_outputs, 1)
        # What stands after the end is there from the start. An empty TensorArray cannot be stacked: one row at least.
        rows, dtype = max(max_steps, 1), encoder_outputs.dtype
        tokens = tf.TensorArray(tf.int32, size=rows).unstack(tf.fill((rows, batch), int(eos)))
        weights = tf.TensorArray(dtype, size=rows).unstack(tf.zeros((rows, batch, keys), dtype))
        token = tf.fill((batch,), int(bos))
        running = tf.ones((batch,), tf.bool)
        lengths = tf.zeros((batch,), tf.int32)

        def advance(
            t: tf.Tensor,
            token: tf.Tensor,
            state: Any,
            running: tf.Tensor,
            tokens: tf.TensorArray,
            lengths: tf.Tensor,
            weights: tf.TensorArray,
        ) -> tuple[Any, ...]:
            features, after, attended = self.advance(self.embedded(token), state, memory, None, None, layers)
            token = tf.where(running, tf.argmax(self.dense(features), axis=-1, output_type=tf.int32), int(eos))
            tokens = tokens.write(t, token)
            weights = weights.write(t, tf.where(tf.expand_dims(running, axis=1), attended, 0.0))
            running = tf.logical_and(running, tf.not_equal(token, int(eos)))
            lengths = lengths + tf.cast(running, tf.int32)
            return t + 1, token, shaped_as(after, state), running, tokens, lengths, weights

        *_, tokens, lengths, weights = tf.while_loop(
            lambda t, token, state, running, *_: tf.logical_and(t < max_steps, tf.reduce_any(running)),
            advance,
            (0, token, self.start(memory, state), running, tokens, lengths, weights),
        )
        tokens = tf.transpose(tokens.stack()[:max_steps])
        return tokens, lengths, tf.stop_gradient(tf.transpose(weights.stack()[:max_steps], (1, 0, 2)))

    def beam(
        self,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Decode by keeping the best hypotheses of every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos

        Of two equal scores, the one that comes first by hypothesis, then by token, is the better.

        Shapes: as greedy. Returns (tokens, lengths, scores, weights), best first: (batch, num_best, max_steps) ids, eos
        from the end on; (batch, num_best) the tokens before eos; (batch, num_best); (batch, num_best, max_steps, keys),
        0 after the end.
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
            self.variable_dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        check_initial(operator.title, self.sizes["initial"], state)
        memory, layers = self.prepare(encoder_outputs, valid_lens, mask), self.of_steps()
        batch, keys = size(encoder_outputs, 0), size(encoder_outputs, 1)
        # Hypothesis w of sequence b stands in row b width + w: each step is one step of the decoder.
        start = self.reordered(self.start(memory, state), tf.repeat(tf.range(batch), width))
        if memory.mask is not None:  # which may be the same for all sequences
            memory = memory._replace(mask=tf.broadcast_to(memory.mask, (batch, 1, keys)))
        memory = Memory(*(None if part is None else tf.repeat(part, width, axis=0) for part in memory))
        first = tf.range(batch)[:, None] * width
        dtype = precise(memory.values[:0]).dtype
        token = tf.fill((batch * width,), int(bos))
        tokens = tf.fill((batch, width, max_steps), int(eos))
        weights = tf.zeros((batch, width, max_steps, keys), memory.values.dtype)
        totals = tf.where(tf.equal(tf.range(width), 0), tf.zeros((batch, width), dtype), -math.inf)
        counts, running = tf.zeros((batch, width), tf.int32), tf.ones((batch, width), tf.bool)
        itself = tf.where(tf.equal(tf.range(vocab_size), int(eos)), tf.zeros((), dtype), -math.inf)

        def advance(
            t: tf.Tensor,
            token: tf.Tensor,
            state: Any,
            running: tf.Tensor,
            counts: tf.Tensor,
            totals: tf.Tensor,
            tokens: tf.Tensor,
            weights: tf.Tensor,
        ) -> tuple[Any, ...]:
            features, after, attended = self.advance(self.embedded(token), state, memory, None, None, layers)
            logs = tf.reshape(tf.nn.log_softmax(precise(self.dense(features))), (batch, width, vocab_size))
            candidates = totals[..., None] + tf.where(running[..., None], logs, itself)
            lengths = counts + tf.cast(running, tf.int32)
            ranked = candidates / penalty(lengths, length_penalty, dtype)[..., None]
            # The lower index comes first among equals.
            _, best = tf.math.top_k(tf.reshape(ranked, (batch, width * vocab_size)), k=width)
            parents, chosen_tokens = best // vocab_size, best % vocab_size
            now = tf.equal(tf.range(max_steps), t)
            attended = tf.where(running[..., None], tf.reshape(attended, (batch, width, keys)), 0.0)
            following = (
                tf.reshape(chosen_tokens, (-1,)),
                self.reordered(after, tf.reshape(first + parents, (-1,))),
                tf.logical_and(of_hypotheses(running, parents), tf.not_equal(chosen_tokens, int(eos))),
                of_hypotheses(lengths, parents),
                of_hypotheses(tf.reshape(candidates, (batch, width * vocab_size)), best),
                tf.where(now, chosen_tokens[..., None], of_hypotheses(tokens, parents)),
                of_hypotheses(tf.where(now[:, None], attended[:, :, None], weights), parents),
            )
            return t + 1, *shaped_as(following, (token, state, running, counts, totals, tokens, weights))

        *_, running, counts, totals, tokens, weights = tf.while_loop(
            lambda t, token, state, running, *_: tf.logical_and(t < max_steps, tf.reduce_any(running)),
            advance,
            (0, token, start, running, counts, totals, tokens, weights),
        )
        # A finished hypothesis counts its eos, which is no token before it.
        lengths = counts - tf.cast(tf.logical_not(running), tf.int32)
        scores = tf.cast(totals / penalty(counts, length_penalty, dtype), memory.values.dtype)
        tokens, lengths, scores, weights = (array[:, :num_best] for array in (tokens, lengths, scores, weights))
        return tokens, lengths, tf.stop_gradient(scores), tf.stop_gradient(weights)

    def reordered(self, state: Any, rows: tf.Tensor) -> Any:
        """The state of these rows of the batch, in this order."""
        return tf.gather(state, rows, axis=1)

    def dropped(
        self,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        lead: tuple[int | tf.Tensor, ...],
        keys: int | tf.Tensor,
        training: bool | None,
    ) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """Both masks as given, or drawn where something is dropped; lead is (batch,) or (batch, steps)."""
        if dropout_mask is None:
            between = (self.sizes["num_layers - 1"], *lead, self.sizes["hidden_size"])
            dropout_mask = drawn_mask(self.dropout, tf.zeros(between, self.variable_dtype), training)
        if attention_dropout_mask is None:
            scores = tf.zeros((*lead, keys), self.variable_dtype)
            attention_dropout_mask = drawn_mask(self.dropout, scores, training)
        return dropout_mask, attention_dropout_mask


@keras.saving.register_keras_serializable(package="attention_parity")
class BahdanauDecoder(Decoder):
    """Decode with attention whose query is the previous output of the top recurrent layer.

    context, weights = attention(top output, encoder_outputs)
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b

    With readout="maxout", the logits are those of the paper, from the previous output, the token and the context.

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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
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
            name=name,
        )
        if readout == "maxout":
            pairs = 2 * self.sizes["maxout_size"]
            self.readout = self.projection("readout", self.sizes["readout_size"], pairs, use_bias=True)

    def embedded(self, tokens: tf.Tensor) -> tf.Tensor:
        """The token's part in the first recurrent layer's W x + b, and the embedding where the readout has it, too.

        It is one product, of the tokens of all steps or, where these are more, of the vocabulary.
        """
        count = tokens.shape.num_elements()
        if count is not None and count > self.sizes["vocab_size"]:
            known = keras.ops.take(self.rnn.project_known(self.embedding.embeddings.value), tokens, axis=0)
        else:
            known = self.rnn.project_known(self.embedding(tokens))
        return known if self.sizes["readout"] == "dense" else tf.concat([known, self.embedding(tokens)], axis=-1)

    def of_steps(self) -> list[tuple[tf.Tensor, ...]]:
        """What each step reads of the recurrent layers beside what `embedded` gives."""
        return self.rnn.of_steps(known=self.sizes["embed_size"])

    def advance(
        self,
        embedded: tf.Tensor,
        state: tf.Tensor,
        memory: Memory,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        layers: Sequence[tuple[tf.Tensor, ...]],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        assert self.attention is not None
        previous = tf.unstack(state, num=self.sizes["num_layers"])[-1][:, : self.sizes["hidden_size"]]
        context, weights = self.attention.attend_cleared(previous[:, None], memory, attention_dropout_mask)
        context, known = tf.squeeze(context, axis=1), embedded
        if self.sizes["readout"] == "maxout":
            known, embedded = tf.split(embedded, [-1, self.sizes["embed_size"]], axis=-1)
        features, state = self.rnn.advance(context, state, dropout_mask, layers, known)
        if self.sizes["readout"] == "maxout":
            features = self.maxout(previous, embedded, context)
        return features, state, tf.squeeze(weights, axis=1)

    def maxout(self, previous: tf.Tensor, embedded: tf.Tensor, context: tf.Tensor) -> tf.Tensor:
        """The larger of each pair, of the previous output, the token and the context."""
        pairs = self.readout(tf.concat([previous, embedded, context], axis=-1))
        first, second = pairs[..., 0::2], pairs[..., 1::2]
        return tf.where(first >= second, first, second)

    def run_forced(
        self,
        tokens: tf.Tensor,
        state: tf.Tensor,
        memory: Memory,
        between: tf.Tensor | None,
        factors: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """All steps without the last projection; where `takes_steps` says so, as one function with its own backward."""
        attention, usual = self.attention, isinstance(self.rnn, GRU)
        if not (usual and isinstance(attention, AdditiveAttention) and takes_steps(tokens, state, *memory)):
            return super().run_forced(tokens, state, memory, between, factors)
        embedded = known = self.embedded(tf.transpose(tokens))
        if self.sizes["readout"] == "maxout":
            known, embedded = tf.split(embedded, [-1, self.sizes["embed_size"]], axis=-1)
        one_layer = between is None or self.sizes["num_layers"] == 1
        outputs, last, weights, contexts = blocked_steps(
            known,
            state,
            memory._replace(values=seen(memory.values, memory.mask)),
            attention.W_q.kernel,
            attention.w_v,
            self.of_steps(),
            None if one_layer else tf.transpose(between, (0, 2, 1, 3)),
            None if factors is None else tf.transpose(factors, (1, 0, 2)),
        )
        features = outputs
        if self.sizes["readout"] == "maxout":
            previous = tf.concat([state[-1:], outputs[:-1]], axis=0)
            features = self.maxout(previous, embedded, contexts)
        return tf.transpose(features, (1, 0, 2)), last, tf.transpose(weights, (1, 0, 2))


@keras.saving.register_keras_serializable(package="attention_parity")
class LuongDecoder(Decoder):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; h̃], state), without h̃ unless input_feeding
    context, weights = attention(top output', encoder_outputs);  h̃' = tanh(W_c [context; top output']);
    logits = dense.W h̃' + dense.b

    Shapes: as BahdanauDecoder, but a state between steps is a LuongState, and so is the one that is returned.
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
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
            name=name,
        )
        self.W_c = self.projection("W_c", self.sizes["memory_size + hidden_size"], self.sizes["hidden_size"])

    def start(self, memory: Memory, state: tf.Tensor | None = None) -> LuongState:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says; h̃ = 0, position = 0

        Shapes: memory as from prepare; state (num_layers, batch, state_size).
        """
        rnn, batch = super().start(memory, state), size(memory.values, 0)
        attentional = tf.zeros((batch, self.sizes["hidden_size"]), rnn.dtype)
        return LuongState(rnn, attentional, tf.zeros((batch,), tf.int32))

    def advance(
        self,
        embedded: tf.Tensor,
        state: LuongState,
        memory: Memory,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        layers: Sequence[tuple[tf.Tensor, ...]],
    ) -> tuple[tf.Tensor, LuongState, tf.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        assert self.attention is not None
        inputs = tf.concat([embedded, state.attentional], axis=-1) if self.sizes["input_feeding"] else embedded
        output, rnn = self.rnn.advance(inputs, state.rnn, dropout_mask, layers)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attention.attend(output[:, None], memory, **at, dropout_mask=attention_dropout_mask)
        attentional = tf.tanh(self.W_c(tf.concat([tf.squeeze(context, axis=1), output], axis=-1)))
        return attentional, LuongState(rnn, attentional, state.position + 1), tf.squeeze(weights, axis=1)

    def reordered(self, state: LuongState, rows: tf.Tensor) -> LuongState:
        """The state of these rows of the batch, in this order."""
        rnn = tf.gather(state.rnn, rows, axis=1)
        return LuongState(rnn, tf.gather(state.attentional, rows), tf.gather(state.position, rows))


@keras.saving.register_keras_serializable(package="attention_parity")
class FixedContextDecoder(Decoder):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last encoder output that is open, weights = 1 there
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b

    Dropout acts on the weight, as on those of attention. A sequence without an open key gets context 0 and weights 0.

    Shapes: as BahdanauDecoder.
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
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
            name=name,
        )

    def advance(
        self,
        embedded: tf.Tensor,
        state: tf.Tensor,
        memory: Memory,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        layers: Sequence[tuple[tf.Tensor, ...]],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        batch, keys = size(memory.values, 0), size(memory.values, 1)
        ranks = tf.broadcast_to(tf.range(1, keys + 1), (batch, 1, keys))
        open_ranks = ranks if memory.mask is None else tf.where(memory.mask, ranks, 0)
        last = tf.equal(ranks, tf.reduce_max(open_ranks, axis=-1, keepdims=True))
        weights = tf.cast(last, memory.values.dtype)
        # A weight of 0 does not silence a NaN, which may stand in a value that another step may attend to.
        values = tf.where(tf.transpose(last, (0, 2, 1)), memory.values, 0.0)
        dropped = weights if attention_dropout_mask is None else weights * attention_dropout_mask
        context = tf.squeeze(tf.matmul(dropped, values), axis=1)
        output, state = self.rnn.advance(tf.concat([context, embedded], axis=-1), state, dropout_mask, layers)
        return output, state, tf.squeeze(weights, axis=1)


def penalty(lengths: tf.Tensor, length_penalty: float, dtype: tf.DType) -> tf.Tensor:
    """((5 + n)/6)^α of Wu et al."""
    return ((5.0 + tf.cast(lengths, dtype)) / 6.0) ** length_penalty


def of_hypotheses(array: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """The entries of each sequence at these places, in this order."""
    return tf.gather(array, chosen, axis=1, batch_dims=1)


def shaped_as(after: Any, before: Any) -> Any:
    """The tensors after a step, with what is known of the shapes before it: a loop demands that they are the same."""
    tf.nest.map_structure(lambda new, old: new.set_shape(old.shape), after, before)
    return after


def of_step(memory: Memory, step: tf.Tensor) -> Memory:
    """The memory with the mask's row for that step, as (batch, 1, keys), and the values that it leaves open."""
    if memory.mask is None or memory.mask.shape[1] == 1:
        return memory
    last = size(memory.mask, 1) - 1
    mask = tf.expand_dims(tf.gather(memory.mask, tf.minimum(step, last), axis=1), axis=1)
    return Memory(memory.keys, seen(memory.values, mask), mask)


def seen(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """The values, with 0 where a mask of one row is closed."""
    # A weight of 0 does not silence a NaN, which may stand in a value that another step may attend to.
    return values if mask is None else tf.where(tf.transpose(mask, (0, 2, 1)), values, 0.0)


def check_room(sizes: Mapping[str, Any], keys: tf.Tensor) -> None:
    """Refuse more keys than a location score has positions for, before Keras rewrites what is raised inside a call."""
    positions, num_keys = sizes.get("num_positions"), keys.shape[1]
    if positions is not None and num_keys is not None:
        check_positions(LOCATION_ATTENTION.name, num_keys, positions)
