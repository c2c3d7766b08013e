"""Arguments that are arrays, and no tensors that the layers in PyTorch take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention_core.errors import DtypeError, ShapeError
from backends import torch as attention


def test_a_numpy_array_is_refused_with_its_conversion():
    tensor, array = torch.zeros(2, 3, 4), np.zeros((2, 3, 4), np.float32)
    advice = r"is a NumPy array, expected a tensor\. Convert it with torch\.from_numpy first\."
    with pytest.raises(DtypeError, match=f"dot_score: queries {advice}"):
        attention.dot_score(array, array)
    with pytest.raises(DtypeError, match=f"AdditiveAttention: keys {advice}"):
        attention.AdditiveAttention(4, 4, 8)(tensor, array, tensor)
    with pytest.raises(DtypeError, match=f"GRU: valid_lens {advice}"):
        attention.GRU(4, 5)(tensor, np.array([1, 2]))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_is_refused_with_the_way_to_pad_it(layout: torch.layout):
    nested = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)], layout=layout)
    with pytest.raises(ShapeError, match=r"keys is a nested tensor, expected a padded one\. Pad it with"):
        attention.DotProductAttention()(torch.zeros(2, 3, 4), nested, nested)
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    context, _ = attention.DotProductAttention()(torch.zeros(2, 3, 4), padded, padded, torch.tensor([2, 3]))
    assert context.shape == (2, 3, 4)
