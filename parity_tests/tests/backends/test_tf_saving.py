"""That every layer is trained by fit, comes back from .keras, and is exported, distributed and converted to TF Lite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from parity_tests.tests.backends.keras_layers import LAYERS, example
from parity_tests.tests.backends.keras_replicas import TRACED

Inputs = dict[str, tf.Tensor]

REPLICAS = "parity_tests.tests.backends.keras_replicas"
UNTRAINED = (
    "DotProductAttention",
    "CosineAttention",
    "HardAttention",
    "SinusoidalPositions",
    "RotaryPositions",
    "Bridge",
)
"""What has no parameters that a gradient reaches, with the options of its case."""


def modelled(kind: str) -> tuple[keras.Model, Inputs]:
    """A model of one layer, whose outputs are all of that layer's, with inputs for a batch of any size."""
    layer, inputs = example(kind)
    batch_first = {name: array for name, array in inputs.items() if name != "state"}
    axes = {
        name: keras.Input(array.shape[1:], dtype=array.dtype.name, name=name) for name, array in batch_first.items()
    }
    given = dict(axes)
    if "state" in inputs:  # whose batch stands behind its layers
        axes["state"] = keras.Input((inputs["state"].shape[0], inputs["state"].shape[2]), name="state")
        given["state"] = keras.ops.transpose(axes["state"], (1, 0, 2))
        batch_first["state"] = tf.transpose(inputs["state"], (1, 0, 2))
    return keras.Model(axes, keras.tree.flatten(layer(**given))), batch_first


def same(actual: list[tf.Tensor], expected: list[tf.Tensor], tolerance: float = 0.0):
    for one, other in zip(keras.tree.flatten(actual), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_model_comes_back_from_its_file_and_is_exported_for_batches_of_any_size(kind: str, tmp_path: Path):
    model, inputs = modelled(kind)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    same(again(inputs), model(inputs))
    again.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    some = {name: array[:1] for name, array in inputs.items()}
    same(loaded.serve(some), model(some), 1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_converted_to_tensorflow_lite(kind: str):
    """With its parameters as constants and sizes that are known: TensorFlow Lite itself has no other loops."""
    layer, inputs = example(kind)
    specs = [tf.TensorSpec(array.shape, array.dtype, name=name) for name, array in inputs.items()]
    function = tf.function(lambda *given: keras.tree.flatten(layer(*given)), input_signature=specs, autograph=False)
    frozen = convert_variables_to_constants_v2(function.get_concrete_function(), lower_control_flow=False)
    interpreter = tf.lite.Interpreter(
        model_content=tf.lite.TFLiteConverter.from_concrete_functions([frozen]).convert(), num_threads=1
    )
    interpreter.allocate_tensors()
    for found in interpreter.get_input_details():
        interpreter.set_tensor(found["index"], inputs[found["name"].partition(":")[0]].numpy())
    interpreter.invoke()
    outputs = sorted(interpreter.get_output_details(), key=lambda found: found["name"])
    same([interpreter.get_tensor(found["index"]) for found in outputs], keras.tree.flatten(layer(**inputs)), 1e-6)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_fit_step_on_two_replicas_equals_one_replica(mode: str):
    """All layers in one model, or some traced, in a process of its own: the number of devices cannot change later."""
    done = subprocess.run([sys.executable, "-m", REPLICAS, mode], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    compared = json.loads(done.stdout)
    assert set(compared) == set(LAYERS if mode == "eager" else TRACED)
    for kind, (moved, apart) in compared.items():
        assert apart <= 1e-6 and (moved > 1e-4) == (kind not in UNTRAINED), kind
