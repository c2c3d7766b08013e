"""Images as sequences of patches, and a Transformer that reads them, in TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.images import PATCHES, VISION_TRANSFORMER
from backends.tf.masking import size
from backends.tf.module import Specified, draw_parameter, mode_of, project
from backends.tf.normalization import norm_layer
from backends.tf.positions import LearnedPositions
from backends.tf.transformer_layers import TransformerEncoderLayer

__all__ = ["patches", "VisionTransformer"]


def patches(images: tf.Tensor, *, patch_size: int) -> tf.Tensor:
    """Cut images into square patches, each as one vector.

    patches[b, i width/p + j, (r p + s) channels + c] = images[b, i p + r, j p + s, c]
    p = patch_size, and r and s are from 0 to p - 1

    A projection of the patches is a convolution whose stride is the size of its kernel.

    Args:
        images: (batch, height, width, channels); numbers of each pixel, channels last
        patch_size: height and width of a patch
    Returns:
        patches: (batch, patches, patch_features); the patches row by row, and so the pixels of each; its channels are
            neighbours
    Raises:
        ShapeError: images whose height or width is no multiple of the size of a patch
    Source: Dosovitskiy et al. 2021, section 3.1, arXiv:2010.11929
    Example:
        patches = attention.patches(images, patch_size=patch_size)
    """
    check(PATCHES, images=images, patch_size=patch_size)
    return _patches(images, patch_size)


def _patches(images: tf.Tensor, patch_size: int) -> tf.Tensor:
    batch, height, width, channels = (size(images, axis) for axis in range(4))
    rows, columns = height // patch_size, width // patch_size
    split = tf.reshape(images, (batch, rows, patch_size, columns, patch_size, channels))
    patch_features = patch_size * patch_size * channels
    return tf.reshape(tf.transpose(split, (0, 1, 3, 2, 4, 5)), (batch, rows * columns, patch_features))


@keras.saving.register_keras_serializable(package="attention_parity")
class VisionTransformer(Specified):
    """Classify images by layers of self-attention over their patches.

    logits = dense.W x[0] + dense.b
    x = [class_token; W_p patches(images) + b_p] + positions, then each of the layers with norm='pre', then the last
    norm

    Args:
        height: height of an image
        width: width of an image
        channels: channels of an image
        patch_size: height and width of a patch
        num_classes: number of classes
        features: features of a step
        num_heads: number of heads
        hidden_size: hidden features of the feed-forward network
        num_layers (default 1): number of layers
        activation (default 'gelu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        class_token: (features,), the first step, from whose output classes are read
        W_p: (features, patch_features), projects a patch
        b_p: (features,), biases of the projection
        dense.W: (num_classes, features), weights of the logits
        dense.b: (num_classes,), biases of the logits
        positions.*: the LearnedPositions of the class token and of the patches
        layers.{layer}.*: the layers
        norm.*: the last LayerNorm
    Source: Dosovitskiy et al. 2021, section 3.1, arXiv:2010.11929
    Example:
        layer = attention.VisionTransformer(height, width, channels, patch_size, num_classes, features, num_heads,
            hidden_size)
        logits, weights = layer(images)
    """

    specification = VISION_TRANSFORMER

    def __init__(
        self,
        height: int,
        width: int,
        channels: int,
        patch_size: int,
        num_classes: int,
        features: int,
        num_heads: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "gelu",
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        parts, policy = self.specification.inside(self.sizes), self.dtype_policy
        self.class_token = draw_parameter(self, "class_token", (features,), features)
        self.W_p = self._projection("W_p", self.sizes["patch_features"], features, use_bias=True)
        with keras.name_scope(self.name, caller=self):
            self.positions = LearnedPositions(**parts["positions"].config, dtype=policy, name="positions")
            self.layers = [
                TransformerEncoderLayer(**parts[f"layers.{number}"].config, dtype=policy, name=f"layer_{number}")
                for number in range(num_layers)
            ]
            self.norm = norm_layer(parts["norm"], dtype=policy, name="norm")
            for layer in (self.positions, *self.layers, self.norm):
                layer.build(None)
        self.dense = self._projection("dense", features, num_classes, use_bias=True)
        self.dropout = keras.layers.Dropout(dropout, dtype=policy)

    def __call__(
        self,
        images: tf.Tensor,
        *,
        need_weights: bool = True,
        embedding_dropout_mask: tf.Tensor | None = None,
        self_dropout_mask: tf.Tensor | None = None,
        hidden_dropout_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Classify a batch of images.

        logits = dense.W x[0] + dense.b
        x = [class_token; W_p patches(images) + b_p] + positions, then each of the layers with norm='pre', then the last
        norm

        Step 0 is the class token, and step n + 1 is patch n.

        Args:
            images: (batch, height, width, channels); numbers of each pixel, channels last
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            embedding_dropout_mask (default None): (batch, patches + 1, features); factor of class token and patches
                with positions
            self_dropout_mask (default None): (num_layers, batch, heads, patches + 1, patches + 1); factor of each
                weight of self-attention
            hidden_dropout_mask (default None): (num_layers, batch, patches + 1, hidden_size); factor of each hidden
                feature
            dropout_mask (default None): (num_layers, sublayers, batch, patches + 1, features); factor of what each
                sublayer adds, in order
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            logits: (batch, num_classes); scores of the classes (natural logarithm)
            weights: (num_layers, batch, heads, patches + 1, patches + 1); probabilities over the steps, of every head;
                None without need_weights
        """
        masks = {
            "self_dropout_mask": self_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        options = {"need_weights": need_weights, "embedding_dropout_mask": embedding_dropout_mask, **masks}
        self._check("call", images=images, **options)
        return super().__call__(images, **options, **mode_of(training))

    def call(
        self,
        images: tf.Tensor,
        *,
        need_weights: bool = True,
        embedding_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
        **masks: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Classify a batch of images; Keras enters here."""
        x = project(self.W_p, _patches(images, self.sizes["patch_size"]))
        token = tf.repeat(tf.cast(self.class_token, x.dtype)[None, None], size(x, 0), axis=0)
        x = self.positions(tf.concat([token, x], axis=1))
        x = self.dropout(x, training=training) if embedding_dropout_mask is None else x * embedding_dropout_mask
        weights = []
        for number, layer in enumerate(self.layers):
            factors: dict[str, Any] = {name: None if array is None else array[number] for name, array in masks.items()}
            x, of_heads = layer(x, need_weights=need_weights, training=training, **factors)
            weights.append(of_heads)
        return project(self.dense, self.norm(x[:, :1])[:, 0]), tf.stack(weights) if need_weights else None
