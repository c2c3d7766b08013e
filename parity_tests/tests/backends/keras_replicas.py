"""Compare a step of layers on one device with the same step under MirroredStrategy; print what moved, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from parity_tests.tests.backends.keras_layers import LAYERS, example

BATCH = 2
TRACED = ("MultiHeadAttention", "GRUEncoder", "BahdanauDecoder")
"""The layers whose step is taken as a graph: tracing all would take longer than all other steps."""


def trained(
    strategy: tf.distribute.Strategy, kinds: Sequence[str], eagerly: bool
) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Each parameter of each layer before and after a step on both halves of a batch."""
    layers, axes, outputs, inputs = {}, {}, [], {}
    with strategy.scope():
        for kind in kinds:
            layers[kind], arrays = example(kind)
            given = {}
            for name, array in arrays.items():
                array = tf.transpose(array, (1, 0, 2)) if name == "state" else array
                given[name] = keras.Input(array.shape[1:], dtype=array.dtype.name, name=f"{kind}_{name}")
                axes[f"{kind}_{name}"], inputs[f"{kind}_{name}"] = given[name], array[:BATCH].numpy()
            if "state" in given:
                given["state"] = keras.ops.transpose(given["state"], (1, 0, 2))
            outputs.append(keras.tree.flatten(layers[kind](**given))[0])
        model = keras.Model(axes, outputs)
        model.compile(keras.optimizers.SGD(0.1), ["mse"] * len(outputs), run_eagerly=eagerly)
    before = {kind: layer.get_weights() for kind, layer in layers.items()}
    labels = [np.ones((BATCH, *output.shape[1:]), np.float32) for output in outputs]
    model.fit(inputs, labels, batch_size=BATCH, shuffle=False, verbose=0)
    return {kind: list(zip(before[kind], layer.get_weights(), strict=True)) for kind, layer in layers.items()}


def largest(differences: list[np.ndarray]) -> float:
    return max((float(np.abs(difference).max()) for difference in differences), default=0.0)


def compared(
    strategies: Sequence[tf.distribute.Strategy], kinds: Sequence[str], *, eagerly: bool
) -> dict[str, tuple[float, float]]:
    """For each layer how far its parameters moved, and how far apart they are on one device and on two."""
    alone, together = (trained(strategy, kinds, eagerly) for strategy in strategies)
    moved = {kind: largest([after - before for before, after in pairs]) for kind, pairs in alone.items()}
    apart = {
        kind: largest([one[1] - other[1] for one, other in zip(pairs, together[kind], strict=True)])
        for kind, pairs in alone.items()
    }
    return {kind: (moved[kind], apart[kind]) for kind in kinds}


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    both = tf.distribute.OneDeviceStrategy("CPU:0"), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    eagerly = sys.argv[1] == "eager"
    print(json.dumps(compared(both, LAYERS if eagerly else TRACED, eagerly=eagerly)))
