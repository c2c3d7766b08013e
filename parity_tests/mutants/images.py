"""Wrong patches of images, and a wrong Transformer over them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import linear, promote
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import with_parameters, with_sizes

# ------------------------------------------------------------------------------------------------ patches


def _split(images: Any, patch_size: int) -> Any:
    """The axes batch, rows, row in a patch, columns, column in a patch, channels."""
    *leading, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    return promote(images).reshape(*leading, rows, patch_size, columns, patch_size, channels)


def _in_order(split: Any, *axes: int) -> Any:
    """The patches from the five last axes in this order: two of the patch, three of its features."""
    leading = split.ndim - 5
    ordered = split.transpose(*range(leading), *(leading + axis for axis in axes))
    *first, rows, columns, one, other, last = ordered.shape
    return ordered.reshape(*first, rows * columns, one * other * last)


@mutant("patches", touches=lambda images, patch_size: min(images.shape[-3:-1]) > patch_size)
def patches_by_columns(images: Any, patch_size: int) -> Any:
    """The patches are those of the first column, then those of the next."""
    return _in_order(_split(images, patch_size), 2, 0, 1, 3, 4)


@mutant("patches", touches=lambda images, patch_size: min(images.shape[-1], patch_size) > 1)
def channels_before_pixels(images: Any, patch_size: int) -> Any:
    """The features of a patch are those of its first channel, then those of the next, as in PyTorch's convolution."""
    return _in_order(_split(images, patch_size), 0, 2, 4, 1, 3)


@mutant("patches", touches=lambda patch_size: patch_size > 1)
def pixels_by_columns(images: Any, patch_size: int) -> Any:
    """The pixels of a patch are those of its first column, then those of the next."""
    return _in_order(_split(images, patch_size), 0, 2, 3, 1, 4)


@mutant("patches", touches=lambda patch_size: patch_size > 1)
def pixels_apart(images: Any, patch_size: int) -> Any:
    """A patch has every so many-th pixel of the image, not neighbours."""
    *leading, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    split = promote(images).reshape(*leading, patch_size, rows, patch_size, columns, channels)
    return _in_order(split, 1, 3, 0, 2, 4)


# ------------------------------------------------------------------------------------------------ the Transformer


@mutant(cases="VisionTransformer-*")
def class_token_last() -> dict[str, Any]:
    """The class token is behind the patches."""

    def embed(self: Any, flat: Any) -> Any:
        projected = linear(flat, self.parameters["W_p"], self.parameters["b_p"])
        zeros = np.zeros((*projected.shape[:-2], 1, projected.shape[-1]))
        token = self.parameters["class_token"]
        place = np.eye(projected.shape[-2] + 1)[-1][:, None]
        token = token.reshape(*token.shape[:-1], *(1,) * (projected.ndim - token.ndim), token.shape[-1])
        return self.inside("positions")(np.concatenate([projected, zeros], axis=-2) + place * token)

    def logits(original: Any, x: Any) -> Any:
        return original(x=x[..., ::-1, :])

    layer = "images.VisionTransformer"
    return {f"{layer}._embed": embed, f"{layer}._logits": logits}


@mutant("images.VisionTransformer._embed")
def class_token_without_position(original: Any, self: Any) -> Any:
    """The class token has no position; those of the patches are the same."""
    positions = self.parameters["positions.P"]
    without = positions * (np.arange(positions.shape[-2]) > 0)[:, None]
    with with_parameters(self, **{"positions.P": without}):
        return original()


@mutant("images.VisionTransformer._embed")
def positions_of_patches_from_zero(original: Any, self: Any) -> Any:
    """The patches have the first positions, and the class token the last one."""
    with with_parameters(self, **{"positions.P": np.roll(self.parameters["positions.P"], 1, axis=-2)}):
        return original()


@mutant("images.VisionTransformer._logits")
def mean_instead_of_class_token(original: Any, x: Any) -> Any:
    """The logits are those of the mean over all steps."""
    return original(x=np.mean(x, axis=-2, keepdims=True))


@mutant("images.VisionTransformer._embed")
def patches_projected_without_bias(original: Any, self: Any) -> Any:
    """The projection of the patches has no biases."""
    with with_parameters(self, b_p=0.0 * self.parameters["b_p"]):
        return original()


@mutant("images.VisionTransformer.__call__")
def sums_normalized(original: Any, self: Any) -> Any:
    """The layers have norm='post', as those of text had first."""
    with ExitStack() as stack:
        for name, part in self.parts.items():
            if name.startswith("layers."):
                stack.enter_context(with_sizes(part, norm="post"))
        return original()


@mutant("images.VisionTransformer.__call__")
def class_token_not_normalized(original: Any, self: Any) -> Any:
    """The last normalization is missing."""
    with mock.patch.dict(self.parts, norm=lambda x: x):
        return original()
