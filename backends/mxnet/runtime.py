"""The runtime of MXNet for workers: arrays, layers, gradients, versions and determinism settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import mxnet as mx
import numpy
from mxnet import autograd, np
from mxnet.gluon import Block

from backends.mxnet.arrays import context, from_numpy, to_numpy
from backends.mxnet.parameters import get_parameters
from backends.mxnet.requirements import VARIABLES

__all__ = ["from_numpy", "to_numpy", "configure", "describe", "build", "vjp"]

Tensors = Mapping[str, np.ndarray]


def configure() -> dict[str, Any]:
    """The settings that change results, all of them environment variables, as they stand."""
    features = mx.runtime.Features()
    return {
        **{name: os.environ.get(name) for name in ("OMP_NUM_THREADS", *VARIABLES)},
        **{f"features.{name}": features.is_enabled(name) for name in ("CUDA", "CUDNN", "MKLDNN", "INT64_TENSOR_SIZE")},
    }


def describe() -> dict[str, Any]:
    """Versions, and the devices by the judge's names."""
    devices = {"cpu": platform.processor() or platform.machine()}
    if mx.context.num_gpus():
        devices["cuda"] = str(mx.gpu())
    versions = {name: version(name) for name in ("mxnet", "numpy")}
    return {"framework": "MXNet", "versions": versions, "devices": devices}


def build(layer: type[Block], options: Mapping[str, Any], dtype: str, device: str = "cpu") -> Block:
    """Make a layer of that floating type on the device, for parameters that are still to be set.

    It evaluates wherever autograd does not train.
    """
    keywords = {"dtype": dtype} if layer.specification.trainable else {}
    with context(device):
        return layer(**options, **keywords)


def vjp(
    function: Callable[..., tuple[np.ndarray, ...]],
    arguments: Tensors,
    cotangents: Mapping[int, np.ndarray],
    layer: Block | None = None,
) -> tuple[tuple[np.ndarray, ...], dict[str, np.ndarray], dict[str, numpy.ndarray]]:
    """Outputs of function(layer, **arguments), and the gradients of sum over outputs of (cotangent · output).

    Returns (outputs, gradients of the floating arguments, gradients of the parameters as canonical arrays). Without
    cotangents nothing is differentiated, and no gradients are returned.
    """
    if not cotangents:
        return function(layer, **arguments), {}, {}
    # Not copied: a call that changes its arguments shall be seen to do so.
    arguments = {name: tensor.detach() for name, tensor in arguments.items()}
    differentiable = {name: tensor for name, tensor in arguments.items() if tensor.dtype.kind == "f"}
    for tensor in differentiable.values():
        tensor.attach_grad()
    if layer is not None:
        layer.collect_params().zero_grad()
    with autograd.record(train_mode=False):
        outputs = function(layer, **arguments)
        # MXNet refuses to differentiate what depends on no variable: adding one that is 0 makes every output depend.
        targets = {index: outputs[index] for index in cotangents if outputs[index].size}
        anchors = {index: np.zeros_like(target) for index, target in targets.items()}
        for anchor in anchors.values():
            anchor.attach_grad()
        heads = [target + anchors[index] for index, target in targets.items()]
    if heads:
        autograd.backward(heads, [cotangents[index] for index in targets], train_mode=False)
    gradients = {name: tensor.grad for name, tensor in differentiable.items()}
    canonical = {} if layer is None else get_parameters(layer, read=lambda parameter: parameter.grad())
    return outputs, gradients, canonical
