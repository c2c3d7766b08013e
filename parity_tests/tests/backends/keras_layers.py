"""How the tests of Keras' habits get a layer of each kind: that of a case, with its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attention_core.operators import LAYERS as SPECIFIED
from parity_tests.cases.suite import all_cases

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

LAYERS = [layer.name for layer in SPECIFIED]


def example(kind: str, dtype: str = "float32", **options: Any) -> tuple[keras.layers.Layer, dict[str, tf.Tensor]]:
    """The layer of the first case that calls one of that kind, with the case's parameters, and the case's inputs."""
    from backends import tf as attention
    from backends.tf import runtime

    case = next(case for case in all_cases() if (case.operator, case.method) == (kind, "call"))
    inputs, parameters = case.at("float32")
    layer = runtime.build(getattr(attention, kind), {**case.config, **options}, dtype)
    attention.set_parameters(layer, parameters)
    return layer, {name: runtime.from_numpy(array) for name, array in inputs.items()}
