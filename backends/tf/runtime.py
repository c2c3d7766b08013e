"""The runtime of TensorFlow for workers: arrays, layers, gradients, versions and determinism settings."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from backends.tf.arrays import DEVICES, from_numpy, to_numpy
from backends.tf.parameters import get_parameters

__all__ = ["from_numpy", "to_numpy", "configure", "describe", "build", "vjp"]

Tensors = Mapping[str, tf.Tensor]


def configure() -> dict[str, Any]:
    """Set every switch that changes results, and return them as read back."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.experimental.enable_op_determinism()
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return {
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(),
        "keras_backend": keras.backend.backend(),
        "keras_floatx": keras.config.floatx(),
        "keras_dtype_policy": keras.config.dtype_policy().name,
    }


def describe() -> dict[str, Any]:
    """Versions, and the devices by the judge's names."""
    devices = {"cpu": platform.processor() or platform.machine()}
    for device in tf.config.list_physical_devices("GPU")[:1]:
        devices["cuda"] = tf.config.experimental.get_device_details(device).get("device_name", device.name)
    versions = {package: version(package) for package in ("tensorflow", "keras")}
    return {"framework": "TensorFlow", "versions": versions, "devices": devices}


def build(
    layer: type[keras.layers.Layer], options: Mapping[str, Any], dtype: str, device: str = "cpu"
) -> keras.layers.Layer:
    """Make a layer of that floating type on the device, for parameters that are still to be set.

    Without parameters a layer takes any, unless dtype is a mixed policy of Keras: parameters are in float32 then, and
    computed with in the other type. A Keras layer is in evaluation mode by default.
    """
    fixed = layer.specification.trainable or dtype.startswith("mixed_")
    with tf.device(DEVICES[device]):
        return layer(**options, **({"dtype": dtype} if fixed else {}))


def vjp(
    function: Callable[..., tuple[tf.Tensor, ...]],
    arguments: Tensors,
    cotangents: Mapping[int, tf.Tensor],
    layer: keras.layers.Layer | None = None,
) -> tuple[tuple[tf.Tensor, ...], dict[str, tf.Tensor], dict[str, np.ndarray]]:
    """Outputs of function(layer, **arguments), and the gradients of sum over outputs of (cotangent · output).

    Returns (outputs, gradients of the floating arguments, gradients of the parameters as canonical arrays). Without
    cotangents nothing is differentiated, and no gradients are returned.
    """
    differentiable = {name: tensor for name, tensor in arguments.items() if tensor.dtype.is_floating}
    parameters = [] if layer is None else layer.trainable_variables
    # TensorFlow computes on a GPU whatever it can, wherever the arguments are, unless told where.
    where = next((tensor.device for tensor in (differentiable or arguments).values()), None)
    with tf.device(where):
        if not cotangents:
            return function(layer, **arguments), {}, {}
        with tf.GradientTape() as tape:
            tape.watch(differentiable)
            outputs = function(layer, **arguments)
        targets = [outputs[index] for index in cotangents]
        computed = tape.gradient(
            targets,
            [*differentiable.values(), *(parameter.value for parameter in parameters)],
            list(cotangents.values()),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # The gradient of an embedding holds only the rows that were looked up.
        computed = [tf.convert_to_tensor(gradient) for gradient in computed]
    gradients = dict(zip(differentiable, computed, strict=False))
    of_parameter = {
        id(parameter): gradient for parameter, gradient in zip(parameters, computed[len(gradients) :], strict=True)
    }
    canonical = {} if layer is None else get_parameters(layer, read=lambda parameter: of_parameter[id(parameter)])
    return outputs, gradients, canonical
