"""The layers of the Transformer: self-attention, cross-attention and feed-forward networks, in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.transformer_layers import (
    TRANSFORMER_DECODER_LAYER,
    TRANSFORMER_ENCODER_LAYER,
)
from backends.tf.arrays import Lengths, lengths
from backends.tf.feed_forward import FeedForward
from backends.tf.masking import distances, size
from backends.tf.memory import Memory
from backends.tf.module import Specified, attached_mask, join_attached, mode_of, with_mask
from backends.tf.multi_head import MultiHeadAttention
from backends.tf.normalization import norm_layer

__all__ = ["TransformerEncoderLayer", "TransformerDecoderLayer"]

Sublayer = Callable[[tf.Tensor], tf.Tensor]


class TransformerLayer(Specified):
    """Base class of the layers: self-attention, a feed-forward network, and how a sublayer is added."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        parts, dtype = self.specification.inside(self.sizes), self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.self_attention = MultiHeadAttention(
                **parts["self_attention"].config, dtype=dtype, name="self_attention"
            )
            self.feed_forward = FeedForward(**parts["feed_forward"].config, dtype=dtype, name="feed_forward")
            self.norm_1 = norm_layer(parts["norm_1"], dtype=dtype, name="norm_1")
            self.norm_2 = norm_layer(parts["norm_2"], dtype=dtype, name="norm_2")
            for layer in (self.self_attention, self.feed_forward, self.norm_1, self.norm_2):
                layer.build(None)
        self.dropout = keras.layers.Dropout(self.sizes["dropout"], dtype=dtype)

    def _add_sublayer(
        self,
        number: int,
        x: tf.Tensor,
        sublayer: Sublayer,
        dropout_mask: tf.Tensor | None,
        training: bool | None,
    ) -> tf.Tensor:
        """norm(x + f(x)), or x + f(norm(x)); number counts the sublayers from 1."""
        norm, pre = getattr(self, f"norm_{number}"), self.sizes["norm"] == "pre"
        added = sublayer(norm(x) if pre else x)
        added = self.dropout(added, training=training) if dropout_mask is None else added * dropout_mask[number - 1]
        return x + added if pre else norm(x + added)


@keras.saving.register_keras_serializable(package="attention_parity")
class TransformerEncoderLayer(TransformerLayer):
    """Let each step attend to all steps, then transform it on its own.

    x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
    f = self_attention(x, x, x), feed_forward(x)

    What stands in a step from valid_lens on, NaN and inf included, has no effect and gets gradient 0.

    Args:
        features: features of a step
        num_heads: number of heads
        hidden_size: hidden features of the feed-forward network
        num_key_heads (default None): number of heads of keys and values; num_heads if None
        score (default 'scaled_dot'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'gaussian'
        rotary_layout (default None): which features rotate together by position: neighbours, or one of each half; none
            if None; scores 'dot' and 'scaled_dot' only: 'interleaved', 'concatenated'
        rotary_base (default None): highest rate over the limit of the lowest; 10000.0 if None; needs rotary_layout
        norm (default 'post'): whether sums are normalized, as in the paper, or what a sublayer reads: 'post', 'pre'
        rms (default False): whether RMSNorm takes the place of LayerNorm
        activation (default 'relu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        gated (default False): whether a second projection multiplies the hidden features
        bias (default True): whether projections, networks and LayerNorm have biases
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
        causal (default False): whether a step attends only to itself and earlier ones
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        self_attention.*: the MultiHeadAttention of each step to the steps
        feed_forward.*: the FeedForward
        norm_1.*: the LayerNorm or RMSNorm of the first sublayer
        norm_2.*: that of the second
    Source: Vaswani et al. 2017, section 3.1, arXiv:1706.03762; norm='pre': Xiong et al. 2020, section 3,
    arXiv:2002.04745
    Example:
        layer = attention.TransformerEncoderLayer(features, num_heads, hidden_size)
        outputs, weights = layer(inputs)
    """

    specification = TRANSFORMER_ENCODER_LAYER

    def __init__(
        self,
        features: int,
        num_heads: int,
        hidden_size: int,
        *,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        causal: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())

    def __call__(
        self,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        self_dropout_mask: tf.Tensor | None = None,
        hidden_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Transform the steps of a batch of sequences.

        x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
        f = self_attention(x, x, x), feed_forward(x)

        Args:
            inputs: (batch, steps, features); one vector for each step
            valid_lens (default None): integers (batch,), or a list; steps of each sequence; later ones have no effect,
                and output 0
            mask (default None): booleans (batch, [heads], steps, steps), broadcast; True where a step may attend to
                another
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], steps, steps), broadcast; numbers added to the scores of self-
                attention; -inf hides a step from another
            self_dropout_mask (default None): (batch, heads, steps, steps); factor of each weight of self-attention
            hidden_dropout_mask (default None): (batch, steps, hidden_size); factor of each hidden feature
            dropout_mask (default None): (sublayers, batch, steps, features); factor of what each sublayer adds, in
                order
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, features); one vector for each step
            weights: (batch, heads, steps, steps); probabilities over the steps, of every head; None without
                need_weights
        """
        options = {
            "need_weights": need_weights,
            "bias": bias,
            "self_dropout_mask": self_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        self._check("call", inputs=inputs, valid_lens=valid_lens, mask=mask, **options)
        return super().__call__(inputs, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(
        self,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        attention_mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        self_dropout_mask: tf.Tensor | None = None,
        hidden_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Transform the steps of a batch of sequences; Keras enters here."""
        # Keras would fill an argument named mask with the one that it has attached to the first input.
        attached, mask = attached_mask(inputs), join_attached(attention_mask, inputs)
        if self.sizes["causal"]:
            causal = distances(size(inputs, 1), size(inputs, 1), None) <= 0
            mask = causal if mask is None else tf.logical_and(mask, causal)
        weights = None

        def self_attention(x: tf.Tensor) -> tf.Tensor:
            nonlocal weights
            context, weights = self.self_attention(
                *(x, x, x, valid_lens, mask),
                per_head=need_weights,
                need_weights=need_weights,
                bias=bias,
                dropout_mask=self_dropout_mask,
                training=training,
            )
            return context

        def feed_forward(x: tf.Tensor) -> tf.Tensor:
            return self.feed_forward(x, dropout_mask=hidden_dropout_mask, training=training)

        x = self._add_sublayer(1, without_padding(inputs, valid_lens), self_attention, dropout_mask, training)
        x = self._add_sublayer(2, x, feed_forward, dropout_mask, training)
        return with_mask(without_padding(x, valid_lens), attached), weights


@keras.saving.register_keras_serializable(package="attention_parity")
class TransformerDecoderLayer(TransformerLayer):
    """Let each step attend to the steps so far and to an encoder's outputs, then transform it on its own.

    x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
    f = self_attention(x, x, x), cross_attention(x, encoder_outputs, encoder_outputs), feed_forward(x)
    step t attends to the steps up to t

    valid_lens and mask are of cross-attention. A key that no step may attend to has no effect.

    Args:
        features: features of a step
        num_heads: number of heads
        hidden_size: hidden features of the feed-forward network
        memory_size (default None): features of the encoder's outputs; features if None
        num_key_heads (default None): number of heads of keys and values; num_heads if None
        score (default 'scaled_dot'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'gaussian'
        rotary_layout (default None): which features rotate together by position: neighbours, or one of each half; none
            if None; scores 'dot' and 'scaled_dot' only: 'interleaved', 'concatenated'
        rotary_base (default None): highest rate over the limit of the lowest; 10000.0 if None; needs rotary_layout
        norm (default 'post'): whether sums are normalized, as in the paper, or what a sublayer reads: 'post', 'pre'
        rms (default False): whether RMSNorm takes the place of LayerNorm
        activation (default 'relu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        gated (default False): whether a second projection multiplies the hidden features
        bias (default True): whether projections, networks and LayerNorm have biases
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        self_attention.*: the MultiHeadAttention of each step to the steps
        cross_attention.*: the MultiHeadAttention of each step to the encoder's outputs
        feed_forward.*: the FeedForward
        norm_1.*: the LayerNorm or RMSNorm of the first sublayer
        norm_2.*: that of the second
        norm_3.*: that of the third
    Source: Vaswani et al. 2017, section 3.1, arXiv:1706.03762; norm='pre': Xiong et al. 2020, section 3,
    arXiv:2002.04745
    Example:
        layer = attention.TransformerDecoderLayer(features, num_heads, hidden_size)
        outputs, weights, self_weights = layer(inputs, encoder_outputs)
    """

    specification = TRANSFORMER_DECODER_LAYER

    def __init__(
        self,
        features: int,
        num_heads: int,
        hidden_size: int,
        *,
        memory_size: int | None = None,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        parts, policy = self.specification.inside(self.sizes), self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.cross_attention = MultiHeadAttention(
                **parts["cross_attention"].config, dtype=policy, name="cross_attention"
            )
            self.norm_3 = norm_layer(parts["norm_3"], dtype=policy, name="norm_3")
            for layer in (self.cross_attention, self.norm_3):
                layer.build(None)

    def __call__(
        self,
        inputs: tf.Tensor,
        encoder_outputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        self_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        hidden_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any, tf.Tensor | Any]:
        """Transform the steps of a batch of sequences.

        x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order
        f = self_attention(x, x, x), cross_attention(x, encoder_outputs, encoder_outputs), feed_forward(x)
        step t attends to the steps up to t

        Args:
            inputs: (batch, steps, features); one vector for each step
            encoder_outputs: (batch, keys, memory_size); keys and values of cross-attention
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], steps, keys), broadcast; True where a query may attend
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], steps, steps), broadcast; numbers added to the scores of self-
                attention; -inf hides a step from another
            self_dropout_mask (default None): (batch, heads, steps, steps); factor of each weight of self-attention
            attention_dropout_mask (default None): (batch, heads, steps, keys); factor of each weight of cross-attention
            hidden_dropout_mask (default None): (batch, steps, hidden_size); factor of each hidden feature
            dropout_mask (default None): (sublayers, batch, steps, features); factor of what each sublayer adds, in
                order
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, features); one vector for each step
            weights: (batch, heads, steps, keys); probabilities over the keys, of every head; None without need_weights
            self_weights: (batch, heads, steps, steps); probabilities over the steps, of every head
        """
        options = {
            "need_weights": need_weights,
            "bias": bias,
            "self_dropout_mask": self_dropout_mask,
            "attention_dropout_mask": attention_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        given = {"inputs": inputs, "encoder_outputs": encoder_outputs, "valid_lens": valid_lens, "mask": mask}
        self._check("call", **given, **options)
        return super().__call__(inputs, encoder_outputs, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(
        self,
        inputs: tf.Tensor,
        encoder_outputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        self_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        hidden_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any, tf.Tensor | Any]:
        """Transform the steps of a batch of sequences; Keras enters here."""
        attached = attached_mask(inputs)
        causal = distances(size(inputs, 1), size(inputs, 1), None) <= 0
        options: dict[str, Any] = {"per_head": need_weights, "need_weights": need_weights, "training": training}
        weights = self_weights = None

        def self_attention(x: tf.Tensor) -> tf.Tensor:
            nonlocal self_weights
            context, self_weights = self.self_attention(
                *(x, x, x, None, causal), **options, bias=bias, dropout_mask=self_dropout_mask
            )
            return context

        def cross_attention(x: tf.Tensor) -> tf.Tensor:
            nonlocal weights
            context, weights = self.cross_attention(
                *(x, encoder_outputs, encoder_outputs, valid_lens, mask), **options, dropout_mask=attention_dropout_mask
            )
            return context

        def feed_forward(x: tf.Tensor) -> tf.Tensor:
            return self.feed_forward(x, dropout_mask=hidden_dropout_mask, training=training)

        x = self._add_sublayer(1, inputs, self_attention, dropout_mask, training)
        x = self._add_sublayer(2, x, cross_attention, dropout_mask, training)
        x = self._add_sublayer(3, x, feed_forward, dropout_mask, training)
        return with_mask(x, attached), weights, self_weights

    def _step(
        self, x: tf.Tensor, past: Memory, position: tf.Tensor, memory: Memory, bias: tf.Tensor | None
    ) -> tuple[tf.Tensor, Memory, tf.Tensor | Any]:
        """One step, behind those of the past: its output, the past with it, and the weights of cross-attention."""
        places = tf.range(size(past.keys, -2))
        now, seen = tf.equal(places, position[:, None]), places <= position[:, None]
        weights = None

        def self_attention(x: tf.Tensor) -> tf.Tensor:
            nonlocal past
            new = self.self_attention._prepare(x, x, None, None, position)
            keys, values = (
                tf.where(now[:, None, :, None], one, other) for one, other in zip(new[:2], past[:2], strict=True)
            )
            past = Memory(keys, values, seen[:, None, None])
            return self.self_attention._attend(x, past, need_weights=False, bias=bias, offset=position)[0]

        def cross_attention(x: tf.Tensor) -> tf.Tensor:
            nonlocal weights
            context, weights = self.cross_attention._attend(x, memory)
            return context

        x = self._add_sublayer(1, x, self_attention, None, False)
        x = self._add_sublayer(2, x, cross_attention, None, False)
        return self._add_sublayer(3, x, self.feed_forward, None, False), past, weights


def without_padding(steps: tf.Tensor, valid_lens: Lengths | None) -> tf.Tensor:
    """The steps with zeros from valid_lens on."""
    if valid_lens is None:
        return steps
    # tf.sequence_mask casts lengths to int32, where the largest of int64 are negative.
    valid = tf.range(tf.cast(size(steps, 1), tf.int64)) < tf.cast(valid_lens, tf.int64)[:, None]
    return tf.where(valid[..., None], steps, 0.0)
