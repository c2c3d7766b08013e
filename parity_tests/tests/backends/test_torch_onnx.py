"""PyTorch's layers as ONNX graphs, which onnxruntime runs with other numbers of keys than they were exported with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from parity_tests.tests.backends.test_torch_graphs import DECODERS, made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["AdditiveAttention", "MultiHeadAttention", "BahdanauDecoder", "LuongDecoder"])
def test_an_exported_layer_runs_in_onnxruntime_with_other_keys(name: str, tmp_path: Path):
    layer, arguments = made(name)
    keys = {1: Dim("keys", min=2, max=64)}
    names, dynamic = ("queries", "keys", "values", "lens"), ({}, keys, keys, {})
    if name in DECODERS:
        names, dynamic = ("tokens", "outputs", "state", "lens"), ({}, keys, {}, {})
    file = tmp_path / "layer.onnx"
    torch.onnx.export(layer, arguments(5), file, dynamo=True, dynamic_shapes=dynamic, input_names=names, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (5, 9, 2):
        inputs = {name: array.numpy() for name, array in zip(names, arguments(count), strict=True)}
        expected = [leaf.detach().numpy() for leaf in tree_leaves(layer(*arguments(count)))]
        for actual, of_layer in zip(session.run(None, inputs), expected, strict=True):
            np.testing.assert_allclose(actual, of_layer, rtol=0.0, atol=1e-6)
