"""The runtime of JAX for workers: arrays, layers, gradients, versions and determinism settings."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax._src.xla_bridge import backends_are_initialized  # it has no public name

from backends.jax.arrays import find_device, from_numpy, to_numpy
from backends.jax.parameters import get_parameters

__all__ = ["from_numpy", "to_numpy", "configure", "describe", "build", "vjp"]

Arrays = Mapping[str, jax.Array]

CALLS = count(1)
MOST_CALLS = 128
"""The number of calls after which compiled programs are released: a program holds dozens of memory maps on a CPU, and
Linux gives a process 65,530. A thousand programs later, the next one is a crash.
"""


COMPILED = [0.0]
"""The seconds that this process has spent on making programs, or on finding them in the cache."""


OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
"""The flag for XLA's older emitters on a CPU."""


FLAGS: list[str] = []
"""The flags that XLA computes with in this process, once they are known."""


def configure() -> dict[str, Any]:
    """Set every switch that changes results, and return them as read back."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    start_counting()
    # XLA reads XLA_FLAGS once, at the first computation; JAX caches a program under what they are when it compiles it.
    computed = backends_are_initialized()
    if not (computed and FLAGS):
        FLAGS[:] = os.environ.get("XLA_FLAGS", "").split()
        # Where nothing is to be optimised, XLA's older emitters compile in half the time. Version 0.11 has no others.
        older = "--xla_backend_optimization_level=0" in FLAGS and jax.__version_info__ < (0, 11)
        if older and not computed and OLDER_EMITTERS not in FLAGS:
            FLAGS.append(OLDER_EMITTERS)
    os.environ["XLA_FLAGS"] = " ".join(FLAGS)
    return {
        "jax_enable_x64": jax.config.jax_enable_x64,
        "jax_default_matmul_precision": jax.config.jax_default_matmul_precision,
        "XLA_FLAGS": " ".join(flag for flag in FLAGS if flag != OLDER_EMITTERS),
        "older_emitters": OLDER_EMITTERS in FLAGS,
    }


def describe() -> dict[str, Any]:
    """Versions, and the devices by the judge's names."""
    devices = {"cpu": platform.processor() or platform.machine()}
    for index, device in enumerate(jax.devices()):
        kind = "cuda" if device.platform == "gpu" else device.platform
        devices.setdefault(f"{kind}:{index}" if index else kind, device.device_kind)
    versions = {name: version(name) for name in ("jax", "jaxlib", "flax")}
    return {"framework": "JAX", "versions": versions, "devices": devices}


def build(layer: type[nnx.Module], options: Mapping[str, Any], dtype: str, device: str = "cpu") -> nnx.Module:
    """Make a layer of that floating type on the device, in evaluation mode, for parameters that are still to be set.

    "mixed_bfloat16" and "mixed_float16", as Keras names such policies, compute so with parameters in float32.
    """
    graphdef, state = shapes(layer, dtype, **options)  # type: ignore[arg-type]  # a class is hashable
    with jax.default_device(find_device(device)):
        built = nnx.merge(graphdef, jax.tree.map(blank, state))
    built.eval()
    return built


def vjp(
    function: Callable[..., tuple[jax.Array, ...]],
    arguments: Arrays,
    cotangents: Mapping[int, jax.Array],
    layer: nnx.Module | None = None,
) -> tuple[tuple[jax.Array, ...], dict[str, jax.Array], dict[str, np.ndarray]]:
    """Outputs of function(layer, **arguments), and the gradients of sum over outputs of (cotangent · output).

    Returns (outputs, gradients of the floating arguments, gradients of the parameters as canonical arrays). Without
    cotangents nothing is differentiated, and no gradients are returned. All of it is compiled once for each function,
    layer structure and set of shapes: pass the same function again.
    """
    if next(CALLS) % MOST_CALLS == 0:
        jax.clear_caches()
    floating = {name: array for name, array in arguments.items() if jnp.issubdtype(array.dtype, jnp.floating)}
    others = {name: array for name, array in arguments.items() if name not in floating}
    graphdef, parameters, rest = (None, None, None) if layer is None else nnx.split(layer, nnx.Param, ...)
    if not cotangents:
        return forward(function, graphdef, parameters, rest, dict(arguments)), {}, {}
    outputs, gradients, of_parameters = forward_and_back(
        function, graphdef, parameters, rest, floating, others, dict(cotangents)
    )
    canonical = {} if layer is None else get_parameters(nnx.merge(graphdef, of_parameters, rest))
    return outputs, {name: gradients[name] for name in floating}, canonical


# ------------------------------------------------------------------------------------------------ particular to JAX


@functools.cache
def start_counting() -> None:
    """Begin to count, once in a process."""
    jax.monitoring.register_event_duration_secs_listener(count_compilation)


def count_compilation(event: str, seconds: float, **_: Any) -> None:
    """Add what JAX says to have taken for lowering or compiling; traces lie within each other."""
    if event in ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration"):
        COMPILED[0] += seconds


def compile_seconds() -> float:
    """The seconds spent on compiling until now: the judge tells them apart from those of computing."""
    return COMPILED[0]


@functools.cache
def shapes(layer: type[nnx.Module], dtype: str, **options: Any) -> tuple[nnx.GraphDef, nnx.State]:
    """The structure of a layer and the shapes of its arrays: drawing first values would compile a dozen functions."""
    kind, _, half = dtype.rpartition("_")
    dtypes = {"dtype": jnp.dtype(half), "param_dtype": jnp.float32} if kind else {"param_dtype": jnp.dtype(dtype)}
    keywords = dtypes if layer.specification.trainable else {}
    graphdef, state = nnx.split(nnx.eval_shape(lambda: layer(**options, **keywords, rngs=nnx.Rngs(0))))
    return graphdef, state


def blank(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros of that shape and dtype, or the key of a stream of random numbers."""
    # NumPy's zeros, since jnp.zeros would compile two functions for every shape.
    key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key(0) if key else jax.device_put(np.zeros(leaf.shape, leaf.dtype))


def compute_outputs(
    function: Callable[..., tuple[jax.Array, ...]],
    graphdef: nnx.GraphDef | None,
    parameters: nnx.State | None,
    rest: nnx.State | None,
    arguments: dict[str, jax.Array],
) -> tuple[jax.Array, ...]:
    """Return the outputs of a function of the layer."""
    layer = None if graphdef is None else nnx.merge(graphdef, parameters, rest)
    return tuple(function(layer, **arguments))


forward = jax.jit(compute_outputs, static_argnums=(0, 1))
"""Outputs, as one compiled function."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def forward_and_back(
    function: Callable[..., tuple[jax.Array, ...]],
    graphdef: nnx.GraphDef | None,
    parameters: nnx.State | None,
    rest: nnx.State | None,
    floating: dict[str, jax.Array],
    others: dict[str, jax.Array],
    cotangents: dict[int, jax.Array],
) -> tuple[tuple[jax.Array, ...], dict[str, jax.Array], nnx.State | None]:
    """Outputs, and gradients of the floating arguments and of the parameters, as one compiled function."""

    def run(floating: dict[str, jax.Array], parameters: nnx.State | None) -> tuple[Any, tuple[jax.Array, ...]]:
        outputs = compute_outputs(function, graphdef, parameters, rest, {**floating, **others})
        # Only outputs with a cotangent are differentiated; integer ones, which cannot be, are among the rest.
        return {index: outputs[index] for index in cotangents}, outputs

    _, pull_back, outputs = jax.vjp(run, floating, parameters, has_aux=True)
    # Without parameters to follow, a layer answers float32 with float32 in mixed precision.
    return outputs, *pull_back({index: array.astype(outputs[index].dtype) for index, array in cotangents.items()})
