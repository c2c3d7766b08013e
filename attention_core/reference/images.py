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
        super().__init__(locals())

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
        x, weights = self._embed(patches(promote(images), patch_size=self.sizes["patch_size"])), []
        x = x if embedding_dropout_mask is None else x * promote(embedding_dropout_mask)
        for number in range(self.sizes["num_layers"]):
            factors = {
                name: None if array is None else of_layer(array, number, AXES[name]) for name, array in masks.items()
            }
            x, of_heads = self.inside(f"layers.{number}")(x, **factors)
            weights.append(of_heads)
        return self._logits(self.inside("norm")(x)), np.stack(weights, axis=-5) if need_weights else None

    def _embed(self, flat: np.ndarray) -> np.ndarray:
        """The class token and the projected patches, with their positions."""
        projected = linear(flat, self.parameters["W_p"], self.parameters["b_p"])
        token = align(self.parameters["class_token"], 1, projected.ndim)
        token = np.broadcast_to(token, (*projected.shape[:-2], 1, projected.shape[-1]))
        return self.inside("positions")(np.concatenate([token, projected], axis=-2))

    def _logits(self, x: np.ndarray) -> np.ndarray:
        """The logits, from the output of the class token."""
        return linear(x[..., :1, :], self.parameters["dense.W"], self.parameters["dense.b"])[..., 0, :]
