"""PyTorch's layers as ONNX graphs, which onnxruntime runs with other lengths than they were exported with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from parity_tests.tests.backends.test_torch_graphs import LAYERS, made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["AdditiveAttention", "MultiHeadAttention", "LSTM", "BahdanauDecoder", "LuongDecoder", "Translator"]
)
def test_an_exported_layer_runs_in_onnxruntime_with_other_lengths(name: str, tmp_path: Path):
    layer, arguments = made(name)
    names = [f"argument{place}" for place in range(len(LAYERS[name].lengths))]
    dynamic = tuple({1: Dim(length, min=2, max=64)} if length else {} for length in LAYERS[name].lengths)
    file = tmp_path / "layer.onnx"
    options = {"dynamo": True, "dynamic_shapes": dynamic, "input_names": names, "verbose": False}
    with torch.no_grad():
        torch.onnx.export(layer, arguments(5), file, **options)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (5, 9, 2):
        inputs = {name: array.numpy() for name, array in zip(names, arguments(count), strict=True)}
        expected = [leaf.detach().numpy() for leaf in tree_leaves(layer(*arguments(count)))]
        for actual, of_layer in zip(session.run(None, inputs), expected, strict=True):
            np.testing.assert_allclose(actual, of_layer, rtol=0.0, atol=1e-6)
