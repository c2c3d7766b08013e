"""Images as sequences of patches, and a Transformer that reads them, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.images import PATCHES, VISION_TRANSFORMER
from attention_core.reference.arrays import align, check, linear, promote
from attention_core.reference.transformer import AXES, Stack, of_layer
from attention_core.specification import Layer

__all__ = ["patches", "VisionTransformer"]


def patches(images: np.ndarray, *, patch_size: int) -> np.ndarray:
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
        ShapeError, DtypeError: an array does not fit the operator or the other arrays
        OptionError: an argument is outside its domain
        ShapeError: images whose height or width is no multiple of the size of a patch
    Source: Dosovitskiy et al. 2021, section 3.1, arXiv:2010.11929
    Example:
        patches = attention.patches(images, patch_size=patch_size)
    """
    check(PATCHES, images=images, patch_size=patch_size)
    *leading, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    split = promote(images).reshape(*leading, rows, patch_size, columns, patch_size, channels)
    return split.swapaxes(-4, -3).reshape(*leading, rows * columns, patch_size * patch_size * channels)


class VisionTransformer(Stack):
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
        activation (default 'gelu'): max(0, x), x Φ(x), its approximation by a tanh, or x σ(x): 'relu', 'gelu',
            'gelu_tanh', 'silu'
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
    Parameters:
        class_token: (features,), the first step, from whose output classes are read
        W_p: (features, patch_features), projects a patch
        b_p: (features,), biases of the projection
        dense.W: (num_classes, features), weights of the logits
        dense.b: (num_classes,), biases of the logits
        positions.*: the LearnedPositions of the class token and of the patches
        layers.{layer}.*: the layers
        norm.*: the last LayerNorm
    Raises:
        OptionError: an argument is outside its domain
    Source: Dosovitskiy et al. 2021, section 3.1, arXiv:2010.11929
    Example:
        layer = attention.VisionTransformer(height, width, channels, patch_size, num_classes, features, num_heads,
            hidden_size)
        logits, weights = layer(images)
    """

    specification: Layer = VISION_TRANSFORMER

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
    ) -> None:
        super().__init__(
            height=height,
            width=width,
            channels=channels,
            patch_size=patch_size,
            num_classes=num_classes,
            features=features,
            num_heads=num_heads,
            hidden_size=hidden_size,
            num_layers=num_layers,
            activation=activation,
            epsilon=epsilon,
            dropout=dropout,
        )

    def __call__(
        self,
        images: np.ndarray,
        *,
        need_weights: bool = True,
        embedding_dropout_mask: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Classify a batch of images.

        logits = dense.W x[0] + dense.b
        x = [class_token; W_p patches(images) + b_p] + positions, then each of the layers with norm='pre', then the last
        norm

        Step 0 is the class token, and step n + 1 is patch n.

        Args:
            images: (batch, height, width, channels); numbers of each pixel, channels last
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            embedding_dropout_mask (default None): (batch, patches + 1, features); factor of class token and patches
                with positions: 0 or 1/(1 - rate)
            self_dropout_mask (default None): (num_layers, batch, heads, patches + 1, patches + 1); factor of each
                weight of self-attention: 0 or 1/(1 - rate)
            hidden_dropout_mask (default None): (num_layers, batch, patches + 1, hidden_size); factor of each hidden
                feature: 0 or 1/(1 - rate)
            dropout_mask (default None): (num_layers, sublayers, batch, patches + 1, features); factor of what each
                sublayer adds, in order: 0 or 1/(1 - rate)
        Returns:
            logits: (batch, num_classes); scores of the classes (natural logarithm)
            weights: (num_layers, batch, heads, patches + 1, patches + 1); probabilities over the steps, of every head;
                None without need_weights
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
        Example:
            layer = attention.VisionTransformer(height, width, channels, patch_size, num_classes, features, num_heads,
                hidden_size)
            logits, weights = layer(images)
        """
        masks = {
            "self_dropout_mask": self_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        self._check(
            "call",
            images=images,
            need_weights=need_weights,
            embedding_dropout_mask=embedding_dropout_mask,
            **masks,
        )
        x, weights = self._embedded(patches(promote(images), patch_size=self.sizes["patch_size"])), []
        x = x if embedding_dropout_mask is None else x * promote(embedding_dropout_mask)
        for number in range(self.sizes["num_layers"]):
            factors = {
                name: None if array is None else of_layer(array, number, AXES[name]) for name, array in masks.items()
            }
            x, of_heads = self.inside(f"layers.{number}")(x, **factors)
            weights.append(of_heads)
        return self._logits(self.inside("norm")(x)), np.stack(weights, axis=-5) if need_weights else None

    def _embedded(self, flat: np.ndarray) -> np.ndarray:
        """The class token and the projected patches, with their positions."""
        projected = linear(flat, self.parameters["W_p"], self.parameters["b_p"])
        token = align(self.parameters["class_token"], 1, projected.ndim)
        token = np.broadcast_to(token, (*projected.shape[:-2], 1, projected.shape[-1]))
        return self.inside("positions")(np.concatenate([token, projected], axis=-2))

    def _logits(self, x: np.ndarray) -> np.ndarray:
        """The logits, from the output of the class token."""
        return linear(x[..., :1, :], self.parameters["dense.W"], self.parameters["dense.b"])[..., 0, :]
