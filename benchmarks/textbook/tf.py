"""What ours is compared with in TensorFlow: as tutorials write it, and by Keras's own layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from attention_core.operators.training import Batch
from backends import weights
from benchmarks.problem import BOS, EOS, MAX_NORM, Problem, inner_layers

Tensors = dict[str, Tensor]


def masked_softmax(scores: Tensor, valid_lens: Tensor) -> Tensor:
    """Softmax over the keys, with a large negative number where there is padding."""
    valid = tf.sequence_mask(valid_lens, scores.shape[-1])
    for _ in range(len(scores.shape) - 2):
        valid = tf.expand_dims(valid, 1)
    return tf.nn.softmax(tf.where(valid, scores, -1e6), axis=-1)


class AdditiveAttention(keras.layers.Layer):
    """softmax(w_v tanh(W_q q + W_k k)) v, with one tensor of (batch, queries, keys, hidden)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_q = keras.layers.Dense(size, use_bias=False)
        self.W_k = keras.layers.Dense(size, use_bias=False)
        self.w_v = keras.layers.Dense(1, use_bias=False)

    def call(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor, Tensor]:
        """(context, weights)."""
        queries, keys = self.W_q(queries), self.W_k(keys)
        features = tf.tanh(tf.expand_dims(queries, 2) + tf.expand_dims(keys, 1))
        weights = masked_softmax(tf.squeeze(self.w_v(features), -1), valid_lens)
        return tf.matmul(weights, values), weights


class KerasAdditiveAttention(keras.layers.Layer):
    """Keras's own layer, with the projections before it that it leaves to the user."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_q = keras.layers.Dense(size, use_bias=False)
        self.W_k = keras.layers.Dense(size, use_bias=False)
        self.attention = keras.layers.AdditiveAttention()

    def call(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor, Tensor]:
        """(context, weights)."""
        valid = tf.sequence_mask(valid_lens, keys.shape[1])
        inputs = [self.W_q(queries), values, self.W_k(keys)]
        return self.attention(inputs, mask=[None, valid], return_attention_scores=True)


class BahdanauDecoder(keras.layers.Layer):
    """A loop over the steps; each projects the keys, attends, and runs the recurrent layers for one step."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, size)
        self.attention = AdditiveAttention(size)
        self.rnn = [keras.layers.GRU(size, return_sequences=True, return_state=True) for _ in range(layers)]
        self.dense = keras.layers.Dense(vocabulary)

    def call(
        self, tokens: Tensor, encoder_outputs: Tensor, state: Tensor, valid_lens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, state, weights)."""
        embedded = self.embedding(tokens)
        states = tf.unstack(state)
        outputs, attended = [], []
        for t in range(tokens.shape[1]):
            query = tf.expand_dims(states[-1], 1)
            context, weights = self.attention(query, encoder_outputs, encoder_outputs, valid_lens)
            x = tf.concat([context, embedded[:, t : t + 1]], axis=-1)
            for index, layer in enumerate(self.rnn):
                x, states[index] = layer(x, initial_state=states[index])
            outputs.append(x)
            attended.append(weights)
        return self.dense(tf.concat(outputs, axis=1)), tf.stack(states), tf.concat(attended, axis=1)


class LuongDecoder(BahdanauDecoder):
    """A loop over the steps; each runs the recurrent layers, projects the keys, and attends with the new output."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__(vocabulary, size, layers)
        self.W_c = keras.layers.Dense(size, use_bias=False)

    def call(
        self, tokens: Tensor, encoder_outputs: Tensor, state: Tensor, valid_lens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, state, weights)."""
        embedded = self.embedding(tokens)
        states = tf.unstack(state)
        attentional, outputs, attended = tf.zeros_like(states[-1])[:, None], [], []
        for t in range(tokens.shape[1]):
            x = tf.concat([embedded[:, t : t + 1], attentional], axis=-1)
            for index, layer in enumerate(self.rnn):
                x, states[index] = layer(x, initial_state=states[index])
            context, weights = self.attention(x, encoder_outputs, encoder_outputs, valid_lens)
            attentional = tf.tanh(self.W_c(tf.concat([context, x], axis=-1)))
            outputs.append(attentional)
            attended.append(weights)
        return self.dense(tf.concat(outputs, axis=1)), tf.stack(states), tf.concat(attended, axis=1)


class Encoder(keras.layers.Layer):
    """An embedding and recurrent layers, which a mask tells where a sentence ends."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, size)
        self.rnn = [keras.layers.GRU(size, return_sequences=True, return_state=True) for _ in range(layers)]

    def call(self, source: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs, states)."""
        outputs, states = self.embedding(source), []
        for layer in self.rnn:
            outputs, state = layer(outputs, mask=tf.sequence_mask(lens, source.shape[1]))
            states.append(state)
        return outputs, tf.stack(states)


Step = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]
"""The logits behind the tokens of each row up to step t, and the state after it, whose rows come first."""
Stepping = Callable[[Tensor, Tensor, int, int], tuple[Step, Any]]
"""A step and its first state, for a source and its lengths, and at most so many steps and hypotheses."""


class Translator(keras.layers.Layer):
    """The encoder, and a decoder of those above."""

    def __init__(self, source_vocabulary: int, vocabulary: int, size: int, layers: int, decoder: str) -> None:
        super().__init__()
        self.encoder = Encoder(source_vocabulary, size, layers)
        made = LuongDecoder if decoder == "luong" else BahdanauDecoder
        self.decoder = made(vocabulary, size, layers)

    def call(self, source: Tensor, source_lens: Tensor, inputs: Tensor) -> Tensor:
        """The logits."""
        outputs, state = self.encoder(source, source_lens)
        return self.decoder(inputs, outputs, state, source_lens)[0]

    def stepping(self, source: Tensor, source_lens: Tensor, steps: int, width: int) -> tuple[Step, list[Tensor]]:
        """A step of Bahdanau's decoder, and the first state of each of its layers."""
        outputs, state = self.encoder(source, source_lens)
        outputs, lens = (tf.repeat(array, width, axis=0) for array in (outputs, source_lens))

        def step(tokens: Tensor, t: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            token = tf.gather(tokens, t, axis=1)[:, None]
            logits, state, _ = self.decoder(token, outputs, tf.stack(state), lens)
            return logits[:, 0], tf.unstack(state)

        return step, tf.unstack(tf.repeat(state, width, axis=1))


class TransformerLayer(keras.layers.Layer):
    """Self-attention, attention to a memory in a decoder, two Dense, and a normalization behind each: Keras alone."""

    def __init__(self, size: int, heads: int, hidden_size: int, attentions: int) -> None:
        super().__init__()
        self.attentions = [keras.layers.MultiHeadAttention(heads, size // heads) for _ in range(attentions)]
        self.norms = [keras.layers.LayerNormalization(epsilon=1e-5) for _ in range(attentions + 1)]
        self.dense_1, self.dense_2 = keras.layers.Dense(hidden_size, activation="relu"), keras.layers.Dense(size)

    def call(self, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None) -> Tensor:
        """The outputs; memory is the encoder's outputs."""
        sources = [(x, mask), (memory, memory_mask)][: len(self.attentions)]
        for attention, norm, (keys, open_keys) in zip(self.attentions, self.norms[:-1], sources, strict=True):
            x = norm(x + attention(x, keys, attention_mask=open_keys))
        return self.norms[-1](x + self.dense_2(self.dense_1(x)))


def fill(layer: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Set the parameters of a Transformer's layer, which the first call has made, to canonical ones."""
    inner = inner_layers(arrays, layer.attentions[0].num_heads)
    for module, (name, parameters, form) in zip((*layer.attentions, *layer.norms), inner, strict=True):
        variables = {variable.path.removeprefix(f"{module.path}/"): variable for variable in module.variables}
        for path, array in weights.from_canonical(name, parameters, SOURCES[name], **form).items():
            variables[path].assign(array)
    for number, dense in enumerate((layer.dense_1, layer.dense_2), 1):
        dense.kernel.assign(arrays[f"feed_forward.W_{number}"].T)
        dense.bias.assign(arrays[f"feed_forward.b_{number}"])


SOURCES = {"MultiHeadAttention": "keras.MultiHeadAttention", "LayerNorm": "keras.LayerNormalization"}
"""Where the tables of weights have the parameters of our layers."""


class Transformer(keras.layers.Layer):
    """Embeddings times √size, with sines and cosines added, layers of Keras' parts, and logits.

    made makes a layer of the decoder from its size, heads and hidden size: another than that of Keras' parts.
    """

    def __init__(self, problem: Problem, made: Callable[[int, int, int], keras.layers.Layer] | None = None) -> None:
        super().__init__()
        sizes = problem.sizes
        self.size = size = sizes["hidden"]
        layer = size, sizes["heads"], 4 * size
        self.source = keras.layers.Embedding(sizes["source_vocabulary"], size)
        self.target = keras.layers.Embedding(sizes["vocabulary"], size)
        self.encoder = [TransformerLayer(*layer, 1) for _ in range(sizes["layers"])]
        made = made or partial(TransformerLayer, attentions=2)
        self.decoder = [made(*layer) for _ in range(sizes["layers"])]
        self.dense = keras.layers.Dense(sizes["vocabulary"])

    def call(self, source: Tensor, source_lens: Tensor, inputs: Tensor) -> Tensor:
        """The logits."""
        return self.dense(self.decode(inputs, *self.encode(source, source_lens)))

    def encode(self, source: Tensor, source_lens: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's outputs, and where they are open."""
        keys, opened = self.embed(self.source, source), tf.sequence_mask(source_lens, source.shape[1])[:, None]
        for layer in self.encoder:
            keys = layer(keys, opened)
        return keys, opened

    def decode(self, inputs: Tensor, *encoded: Tensor) -> Tensor:
        """The features of each step."""
        x, steps = self.embed(self.target, inputs), tf.shape(inputs)[1]
        causal = tf.linalg.band_part(tf.ones((1, steps, steps), tf.bool), -1, 0)
        for layer in self.decoder:
            x = layer(x, causal, *encoded)
        return x

    def embed(self, embedding: keras.layers.Embedding, tokens: Tensor) -> Tensor:
        """The tokens as vectors, at their positions."""
        return embedding(tokens) * self.size**0.5 + self.positions(tf.shape(tokens)[1])

    def positions(self, steps: Tensor | int) -> Tensor:
        """Sines and cosines."""
        rates = (1 / 10000 ** (np.arange(0, self.size, 2) / self.size)).astype(np.float32)
        angles = tf.range(steps, dtype=tf.float32)[:, None] * rates
        return tf.reshape(tf.stack([tf.sin(angles), tf.cos(angles)], axis=-1), (-1, self.size))

    def stepping(self, source: Tensor, source_lens: Tensor, steps: int, width: int) -> tuple[Step, Any]:
        """A step that decodes all tokens so far, since Keras' layers have no cache, and no state."""
        encoded = [tf.repeat(array, width, axis=0) for array in self.encode(source, source_lens)]
        return lambda tokens, t, state: (self.dense(self.decode(tokens[:, : t + 1], *encoded)[:, -1]), state), ()

    def fill(self, problem: Problem) -> None:
        """Set the parameters, which the first call has made, to canonical ones."""
        parameters = problem.parameters
        for embedding, part in ((self.source, "encoder"), (self.target, "decoder")):
            embedding.embeddings.assign(parameters[f"{part}.embedding"])
            for made, arrays in zip(getattr(self, part), problem.stack(part), strict=True):
                fill(made, arrays)
        self.dense.kernel.assign(parameters["decoder.dense.W"].T)
        self.dense.bias.assign(parameters["decoder.dense.b"])


def greedy(stepping: Stepping, source: Tensor, source_lens: Tensor, *, steps: int) -> tuple[Tensor]:
    """A loop over the steps, up to the one in which the last sentence ends."""
    step, state = stepping(source, source_lens, steps, 1)

    def advance(t: Tensor, tokens: Tensor, ended: Tensor, state: Any) -> tuple[Any, ...]:
        logits, state = step(tokens, t, state)
        token = tf.where(ended, EOS, tf.argmax(logits, axis=-1, output_type=tf.int32))
        return t + 1, write_token(tokens, t + 1, token), tf.logical_or(ended, tf.equal(token, EOS)), state

    return (search(advance, source.shape[0], steps, state),)


def beam(
    stepping: Stepping, source: Tensor, source_lens: Tensor, *, steps: int, width: int, num_best: int
) -> tuple[Tensor]:
    """The same for all hypotheses of a sentence side by side; what has ended goes on as itself."""
    batch, (step, state) = source.shape[0], stepping(source, source_lens, steps, width)

    def advance(t: Tensor, tokens: Tensor, ended: Tensor, state: Any, totals: Tensor) -> tuple[Any, ...]:
        logits, state = step(tokens, t, state)
        vocabulary = logits.shape[-1]
        itself = tf.where(tf.equal(tf.range(vocabulary), EOS), 0.0, -np.inf)
        logs = tf.where(ended[:, None], itself, tf.nn.log_softmax(logits))
        candidates = totals[..., None] + tf.reshape(logs, (batch, width, vocabulary))
        totals, best = tf.math.top_k(tf.reshape(candidates, (batch, width * vocabulary)), width)
        parents = tf.reshape(tf.range(batch)[:, None] * width + best // vocabulary, (-1,))
        token = tf.reshape(best % vocabulary, (-1,))
        tokens, ended, state = tf.nest.map_structure(lambda array: tf.gather(array, parents), (tokens, ended, state))
        return t + 1, write_token(tokens, t + 1, token), tf.logical_or(ended, tf.equal(token, EOS)), state, totals

    totals = tf.tile([[0.0] + [-np.inf] * (width - 1)], (batch, 1))
    tokens = search(advance, batch * width, steps, state, totals)
    return (tf.reshape(tokens, (batch, width, steps))[:, :num_best],)


def write_token(tokens: Tensor, t: Tensor, token: Tensor) -> Tensor:
    """The tokens with those of step t."""
    return tf.where(tf.equal(tf.range(tokens.shape[1]), t), token[:, None], tokens)


def search(advance: Callable[..., tuple[Any, ...]], rows: int, steps: int, *start: Any) -> Tensor:
    """The tokens of a loop that begins with those variables, after steps of it, or once all have ended."""
    tokens = tf.where(tf.equal(tf.range(steps + 1), 0), BOS, tf.fill((rows, steps + 1), EOS))
    _, tokens, *_ = tf.while_loop(
        lambda t, tokens, ended, *_: tf.logical_not(tf.reduce_all(ended)),
        advance,
        (0, tokens, tf.zeros((rows,), tf.bool), *start),
        maximum_iterations=steps,
    )
    return tokens[:, 1:]


def training_step(
    model: keras.layers.Layer, optimizer: keras.optimizers.Optimizer, held: Mapping[str, Tensor], batch: Batch
) -> tuple[Tensor, Tensor]:
    """Logits of all steps, a loss for each, of which those of padding are masked, clipping, and Adam."""
    sources = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        logits = model(batch.source, batch.source_lens, batch.inputs)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch.targets, logits=logits)
        mask = tf.sequence_mask(batch.target_lens, losses.shape[1], losses.dtype)
        loss = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)
    gradients = map(tf.convert_to_tensor, tape.gradient(loss, sources))
    paths = [variable.path for variable in model.trainable_variables]
    kept = [gradient * held.get(path, 1.0) for path, gradient in zip(paths, gradients, strict=True)]
    clipped, norm = tf.clip_by_global_norm(kept, MAX_NORM)
    optimizer.apply(clipped)
    return loss, norm


class DotProductAttention(keras.layers.Layer):
    """softmax(q k / sqrt(d)) v, with one tensor of (batch, heads, queries, keys)."""

    def call(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor, Tensor]:
        """(context, weights)."""
        scores = tf.matmul(queries, keys, transpose_b=True) / tf.sqrt(float(queries.shape[-1]))
        weights = masked_softmax(scores, valid_lens)
        return tf.matmul(weights, values), weights


class KerasDotProductAttention(keras.layers.Layer):
    """Keras's own function, which has time before heads and returns no weights."""

    def call(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor) -> tuple[Tensor]:
        """The context alone."""
        by_time = (tf.transpose(array, (0, 2, 1, 3)) for array in (queries, keys, values))
        mask = tf.sequence_mask(valid_lens, keys.shape[2])[:, None, None, :]
        return (tf.transpose(keras.ops.dot_product_attention(*by_time, mask=mask), (0, 2, 1, 3)),)
