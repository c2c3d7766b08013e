"""MLX's own attention, on a CPU, as a target."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from parity_tests.third_party.signatures import Attention, Outputs, takes


def from_numpy(array: np.ndarray) -> mx.array:
    """The array in MLX, which does not read NumPy's bfloat16."""
    if array.dtype == ml_dtypes.bfloat16:
        return mx.array(array.astype(np.float32)).astype(mx.bfloat16)
    return mx.array(array, dtype=mx.float64) if array.dtype == np.float64 else mx.array(array)


def to_numpy(array: mx.array) -> np.ndarray:
    """The array in NumPy."""
    if array.dtype == mx.bfloat16:
        return np.array(array.astype(mx.float32)).astype(ml_dtypes.bfloat16)
    return np.array(array)


def vjp(
    function: Callable[..., tuple[Any, ...]], arguments: Mapping[str, Any], cotangents: Mapping[int, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The outputs, and gradients by name of the floating arguments."""
    names = [name for name, array in arguments.items() if mx.issubdtype(array.dtype, mx.floating)]

    def call(*arrays: mx.array) -> list[mx.array]:
        return list(function(**{**arguments, **dict(zip(names, arrays, strict=True))}))

    given = [arguments[name] for name in names]
    factors = [cotangents.get(index, mx.zeros_like(output)) for index, output in enumerate(call(*given))]
    outputs, gradients = mx.vjp(call, given, factors)
    return tuple(outputs), dict(zip(names, gradients, strict=True))


def describe() -> dict[str, Any]:
    """Versions and the only device."""
    return {
        "framework": "MLX",
        "versions": {"mlx": version("mlx")},
        "devices": {"cpu": platform.processor() or platform.machine()},
    }


@takes(Attention, "mask", "scale", "num_key_heads", "causal")
def attend(call: Attention) -> Outputs:
    """mx.fast.scaled_dot_product_attention: "causal" is a value of its mask."""
    heads = call.queries.ndim == 4
    arrays = [array if heads else array[:, None] for array in (call.queries, call.keys, call.values)]
    mask = "causal" if call.causal else call.head_mask
    context = mx.fast.scaled_dot_product_attention(*arrays, scale=call.factor, mask=mask)
    return context if heads else context[:, 0], None


mx.set_default_device(mx.cpu)
runtime = SimpleNamespace(from_numpy=from_numpy, to_numpy=to_numpy, vjp=vjp, describe=describe)
fast_attention = SimpleNamespace(runtime=runtime, DotProductAttention=attend)
