"""Patches of images and a Transformer over them, by hand."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from attention_core import reference


def test_patches_are_read_row_by_row_and_so_are_their_pixels():
    pixels = np.arange(2 * 4 * 6).reshape(1, 4, 6, 2) // 2.0
    images = pixels + np.array([0.0, 0.5])
    patches = reference.patches(images, patch_size=2)
    assert_array_equal(patches[0, 0], [0, 0.5, 1, 1.5, 6, 6.5, 7, 7.5])
    assert_array_equal(patches[0, :, 0], [0, 2, 4, 12, 14, 16])


def test_without_attention_classes_are_read_from_the_class_token_and_its_position():
    layer = reference.VisionTransformer(2, 2, 1, 1, 2, 4, 1, 3)
    arrays = {name: np.zeros(array.shape) for name, array in layer.parameters.items()}
    arrays |= {"class_token": np.array([3.0, 0.0, -3.0, 0.0]), "norm.g": np.ones(4), "dense.b": np.array([0.0, 10.0])}
    arrays["positions.P"][0] = [0.0, 3.0, 0.0, -3.0]
    arrays["positions.P"][1:] = 100.0
    arrays["dense.W"][0], arrays["dense.W"][1, 2] = [1.0, 2.0, 0.0, 0.0], 1.0
    reference.set_parameters(layer, arrays)
    logits, weights = layer(np.ones((1, 2, 2, 1)))
    assert_allclose(logits, [[3.0, 9.0]], rtol=1e-5)  # of the normalized 1, 1, -1, -1
    assert_allclose(weights, np.full((1, 1, 1, 5, 5), 0.2), rtol=1e-14)
