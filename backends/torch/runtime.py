"""The runtime of PyTorch for workers: arrays, layers, gradients, versions and determinism settings."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import nn

from backends.torch.arrays import from_numpy, to_numpy
from backends.torch.parameters import get_parameters

__all__ = ["from_numpy", "to_numpy", "configure", "describe", "build", "vjp"]

Tensors = Mapping[str, torch.Tensor]

REDUCED = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


def configure() -> dict[str, Any]:
    """Set every switch that changes results, and return them as read back."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.enabled = False  # its GRU and LSTM approximate what they compute in float32
    for name in REDUCED:
        setattr(torch.backends.cuda.matmul, name, False)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which imports the compiler, too
    return {
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn": torch.backends.cudnn.enabled,
        **{f"cuda.matmul.{name}": getattr(torch.backends.cuda.matmul, name) for name in REDUCED},
        "mha.fastpath": torch.backends.mha.get_fastpath_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }


def describe() -> dict[str, Any]:
    """Versions, and the devices by the judge's names."""
    devices = {"cpu": platform.processor() or platform.machine()}
    if torch.cuda.is_available():
        devices["cuda"] = torch.cuda.get_device_name()
    return {"framework": "PyTorch", "versions": {"torch": version("torch")}, "devices": devices}


def build(layer: type[nn.Module], options: Mapping[str, Any], dtype: str, device: str = "cpu") -> nn.Module:
    """Construct a layer of a floating type on the device, in evaluation mode; its parameters are set later.

    "mixed_bfloat16" and "mixed_float16", as Keras names such policies, are parameters in float32, and calls by `vjp` in
    that autocast.
    """
    half = dtype.removeprefix("mixed_")
    parameters = getattr(torch, dtype if half == dtype else "float32")
    built = layer(**options, **({"dtype": parameters, "device": device} if layer.specification.trainable else {}))
    if half != dtype:
        precision: Any = torch.autocast(torch.device(device).type, getattr(torch, half))
        built.precision = precision
    return built.eval()


def vjp(
    function: Callable[..., tuple[torch.Tensor, ...]],
    arguments: Tensors,
    cotangents: Mapping[int, torch.Tensor],
    layer: nn.Module | None = None,
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Outputs of function(layer, **arguments), and the gradients of sum over outputs of (cotangent · output).

    Returns (outputs, gradients of the floating arguments, gradients of the parameters as canonical arrays). Without
    cotangents nothing is differentiated, and no gradients are returned.
    """
    if not cotangents:
        with torch.no_grad(), getattr(layer, "precision", contextlib.nullcontext()):
            return function(layer, **arguments), {}, {}
    # Not copied: a call that changes its arguments shall be seen to do so.
    arguments = {
        name: tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in arguments.items()
    }
    differentiable = {name: tensor for name, tensor in arguments.items() if tensor.requires_grad}
    parameters = [] if layer is None else list(layer.parameters())
    with getattr(layer, "precision", contextlib.nullcontext()):
        outputs = function(layer, **arguments)
    sources = [*differentiable.values(), *parameters]
    targets = [index for index in cotangents if outputs[index].requires_grad]
    if not sources or not targets:
        computed = [torch.zeros_like(source) for source in sources]
    else:
        # The gradient of a sum: with cotangents of its own, autograd first imports the compiler of symbolic shapes.
        cast = {index: cotangents[index].to(outputs[index].dtype) for index in targets}  # autocast leaves some wide
        total = torch.stack([(outputs[index] * cast[index]).sum() for index in targets]).sum()
        computed = torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)
    gradients = dict(zip(differentiable, computed, strict=False))
    of_parameter = dict(zip(parameters, computed[len(gradients) :], strict=True))
    canonical = {} if layer is None else get_parameters(layer, read=of_parameter.__getitem__)
    return outputs, gradients, canonical
