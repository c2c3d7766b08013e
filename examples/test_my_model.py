"""Parity as a test of a project: its PyTorch layer and the specification agree, in outputs and gradients.

Run it with `pytest examples/test_my_model.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from attention_core import reference
from attention_core.differentiation import gradients
from attention_core.draws import uniform

SHAPES = {"queries": (2, 3, 5, 4), "keys": (2, 3, 7, 4), "values": (2, 3, 7, 6)}


def test_torchs_own_attention_agrees_with_the_specification():
    arrays = {name: uniform(f"example/{name}", shape) for name, shape in SHAPES.items()}
    mask = np.arange(7) < np.array([3, 6])[:, None, None, None]

    def reference_context(given):
        return reference.DotProductAttention()(given["queries"], given["keys"], given["values"], mask=mask)[:1]

    (expected,) = reference_context(arrays)
    cotangent = uniform("example/cotangent", expected.shape)
    expected_gradients = gradients(reference_context, arrays, {"0": cotangent}, stacked=False)

    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    context = scaled_dot_product_attention(*tensors.values(), attn_mask=torch.tensor(mask))
    context.backward(torch.tensor(cotangent))

    np.testing.assert_allclose(context.detach().numpy(), expected, rtol=0, atol=1e-13)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(tensor.grad.numpy(), expected_gradients[name], rtol=0, atol=1e-13)
