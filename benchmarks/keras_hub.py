"""The decoder's layers of a Transformer of KerasHub, which keep keys and values, and the step of a search by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras_hub.layers import TransformerDecoder
from tensorflow import Tensor

from benchmarks.problem import BOS


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


def stepping(
    model: Any, source: Tensor, source_lens: Tensor, steps: int, width: int
) -> tuple[Callable[..., tuple[Tensor, list[Tensor]]], list[Tensor]]:
    """A step behind those whose keys and values the layers have cached, and the first caches."""
    encoded = [tf.repeat(array, width, axis=0) for array in model.encode(source, source_lens)]
    positions = model.positions(steps)

    def embed(token: Tensor, t: Tensor | int) -> Tensor:
        return (model.target(token) * model.target.output_dim**0.5 + positions[t])[:, None]

    any_step = embed(tf.fill((encoded[0].shape[0],), BOS), 0)
    started = [layer.start(any_step, steps, *encoded) for layer in model.decoder]

    def step(tokens: Tensor, t: Tensor, caches: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, following = embed(tf.gather(tokens, t, axis=1), t), []
        for layer, past, (_, cross) in zip(model.decoder, caches, started, strict=True):
            x, after = layer.step(x, t, past, cross, *encoded)
            following.append(after)
        return model.dense(x)[:, 0], following

    return step, [past for past, _ in started]
