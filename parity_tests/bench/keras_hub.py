"""The decoder's layers of a Transformer of KerasHub, which keep keys and values, and searches that use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_hub.layers import TransformerDecoder
from tensorflow import Tensor

from parity_tests.bench.items import BOS, EOS


class DecoderLayer(keras.layers.Layer):
    """KerasHub's layer, called as the textbook's; its parts have the textbook's names once it was called."""

    def __init__(self, size: int, heads: int, hidden_size: int) -> None:
        super().__init__()
        self.layer = TransformerDecoder(hidden_size, heads, activation="relu", layer_norm_epsilon=1e-5)
        self.cache = (2, heads, size // heads)

    def call(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """The outputs; KerasHub makes the causal mask."""
        return self.layer(x, memory, encoder_padding_mask=memory_mask[:, 0])

    def step(self, x: Tensor, t: Tensor, past: Tensor, cross: Tensor, memory: Tensor, memory_mask: Tensor) -> Any:
        """The output of step t, and its keys and values with the earlier ones."""
        options = {"self_attention_cache": past, "self_attention_cache_update_index": t, "cross_attention_cache": cross}
        x, after, _ = self.layer(x, memory, encoder_padding_mask=memory_mask[:, 0], **options)
        return x, tf.ensure_shape(after, past.shape)

    def start(self, x: Tensor, steps: int, memory: Tensor, memory_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Zeros, with room for the steps, and the keys and values of the memory; x is any step."""
        pair, heads, features = self.cache
        past, cross = (tf.zeros((memory.shape[0], pair, room, heads, features)) for room in (steps, memory.shape[1]))
        at = {"self_attention_cache_update_index": 0, "cross_attention_cache_update_index": 0}
        caches = {"self_attention_cache": past, "cross_attention_cache": cross}
        return past, self.layer(x, memory, encoder_padding_mask=memory_mask[:, 0], **at, **caches)[2]

    @property
    def attentions(self) -> list[keras.layers.Layer]:
        """Self-attention, and attention to the memory."""
        return [self.layer._self_attention_layer, self.layer._cross_attention_layer]

    @property
    def norms(self) -> list[keras.layers.Layer]:
        """The normalizations, in order."""
        names = ("self_attention", "cross_attention", "feedforward")
        return [getattr(self.layer, f"_{name}_layer_norm") for name in names]

    @property
    def dense_1(self) -> keras.layers.Layer:
        """The first layer of the feed-forward network."""
        return self.layer._feedforward_intermediate_dense

    @property
    def dense_2(self) -> keras.layers.Layer:
        """The second layer of the feed-forward network."""
        return self.layer._feedforward_output_dense


Step = Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]]


def stepping(model: Any, steps: int, *encoded: Tensor) -> tuple[Step, list[Tensor]]:
    """What gives the logits behind the tokens of a step, and caches with its keys and values; and the first caches."""
    positions = model.positions(steps)

    def embedded(token: Tensor, t: Tensor | int) -> Tensor:
        return (model.target(token) * model.target.output_dim**0.5 + positions[t])[:, None]

    any_step = embedded(tf.fill((encoded[0].shape[0],), BOS), 0)
    started = [layer.start(any_step, steps, *encoded) for layer in model.decoder]

    def step(token: Tensor, t: Tensor, caches: Any) -> tuple[Tensor, Any]:
        x, following = embedded(token, t), []
        for layer, past, (_, cross) in zip(model.decoder, caches, started, strict=True):
            x, after = layer.step(x, t, past, cross, *encoded)
            following.append(after)
        return model.dense(x)[:, 0], following

    return step, [past for past, _ in started]


def greedy(model: Any, source: Tensor, source_lens: Tensor, *, steps: int) -> tuple[Tensor]:
    """A loop over the steps, each of which is behind those whose keys and values are there."""
    step, caches = stepping(model, steps, *model.encode(source, source_lens))

    def advance(t: Tensor, token: Tensor, ended: Tensor, tokens: Tensor, caches: Any) -> tuple[Any, ...]:
        logits, caches = step(token, t, caches)
        token = tf.where(ended, EOS, tf.argmax(logits, axis=-1, output_type=tf.int32))
        tokens = tf.where(tf.equal(tf.range(steps), t), token[:, None], tokens)
        return t + 1, token, tf.logical_or(ended, tf.equal(token, EOS)), tokens, caches

    batch = source.shape[0]
    start = 0, tf.fill((batch,), BOS), tf.zeros((batch,), tf.bool), tf.fill((batch, steps), EOS), caches
    return (searched(advance, start, steps)[3],)


def beam(model: Any, source: Tensor, source_lens: Tensor, *, steps: int, width: int, num_best: int) -> tuple[Tensor]:
    """The same for all hypotheses side by side, with keys and values of those that each is continued from."""
    batch, rows, vocabulary = source.shape[0], source.shape[0] * width, model.dense.units
    encoded = [tf.repeat(array, width, axis=0) for array in model.encode(source, source_lens)]
    step, caches = stepping(model, steps, *encoded)
    itself = tf.where(tf.equal(tf.range(vocabulary), EOS), 0.0, -np.inf)

    def advance(
        t: Tensor, token: Tensor, ended: Tensor, tokens: Tensor, caches: Any, totals: Tensor
    ) -> tuple[Any, ...]:
        logits, caches = step(token, t, caches)
        logs = tf.where(ended[:, None], itself, tf.nn.log_softmax(logits))
        candidates = totals[..., None] + tf.reshape(logs, (batch, width, vocabulary))
        totals, best = tf.math.top_k(tf.reshape(candidates, (batch, width * vocabulary)), width)
        parents = tf.reshape(tf.range(batch)[:, None] * width + best // vocabulary, (rows,))
        token = tf.reshape(best % vocabulary, (rows,))
        tokens, ended, *caches = (tf.gather(array, parents) for array in (tokens, ended, *caches))
        tokens = tf.where(tf.equal(tf.range(steps), t), token[:, None], tokens)
        return t + 1, token, tf.logical_or(ended, tf.equal(token, EOS)), tokens, caches, totals

    totals = tf.tile([[0.0] + [-np.inf] * (width - 1)], (batch, 1))
    start = 0, tf.fill((rows,), BOS), tf.zeros((rows,), tf.bool), tf.fill((rows, steps), EOS), caches, totals
    return (tf.reshape(searched(advance, start, steps)[3], (batch, width, steps))[:, :num_best],)


def searched(advance: Callable[..., tuple[Any, ...]], start: tuple[Any, ...], steps: int) -> tuple[Any, ...]:
    """The variables of a loop after the steps, or once all have ended, by the third."""
    return tf.while_loop(
        lambda t, token, ended, *_: tf.logical_not(tf.reduce_all(ended)), advance, start, maximum_iterations=steps
    )
