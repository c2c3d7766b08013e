"""Images as sequences of patches, and a Transformer that reads them, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attention_core.operators.images import PATCHES, VISION_TRANSFORMER
from backends.torch.arrays import check
from backends.torch.module import Specified, draw_parameter
from backends.torch.normalization import norm_layer
from backends.torch.positions import LearnedPositions
from backends.torch.transformer_layers import TransformerEncoderLayer

__all__ = ["patches", "VisionTransformer"]


def patches(images: torch.Tensor, *, patch_size: int) -> torch.Tensor:
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


def _patches(images: torch.Tensor, patch_size: int) -> torch.Tensor:
    batch, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    split = images.reshape(batch, rows, patch_size, columns, patch_size, channels).transpose(2, 3)
    return split.reshape(batch, rows * columns, patch_size * patch_size * channels)


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
        device: where to allocate
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        placed: dict[str, Any] = {"dtype": dtype, "device": device}
        parts = self.specification.inside(self.sizes)
        self.class_token = draw_parameter((features,), features, dtype, device)
        self.W_p = nn.Linear(self.sizes["patch_features"], features, **placed)
        self.positions = LearnedPositions(**parts["positions"].config, **placed)
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(**parts[f"layers.{number}"].config, **placed) for number in range(num_layers)
        )
        self.norm = norm_layer(parts["norm"], **placed)
        self.dense = nn.Linear(features, num_classes, **placed)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        images: torch.Tensor,
        *,
        need_weights: bool = True,
        embedding_dropout_mask: torch.Tensor | None = None,
        self_dropout_mask: torch.Tensor | None = None,
        hidden_dropout_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
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
        self._check(
            "call",
            images=images,
            need_weights=need_weights,
            embedding_dropout_mask=embedding_dropout_mask,
            **masks,
        )
        x = self.W_p(_patches(images, self.sizes["patch_size"]))
        x = self.positions(torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1))
        x = self.dropout(x) if embedding_dropout_mask is None else x * embedding_dropout_mask
        weights = []
        for number, layer in enumerate(self.layers):
            factors = {name: None if array is None else array[number] for name, array in masks.items()}
            x, of_heads = layer(x, need_weights=need_weights, **factors)
            weights.append(of_heads)
        return self.dense(self.norm(x[:, :1])[:, 0]), torch.stack(weights) if need_weights else None
