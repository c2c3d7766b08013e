"""What the backend in JAX needs."""

from __future__ import annotations

import os
from pathlib import Path

from backends.requirements import XLA_LEVEL, Idiom, Requirements


def variables(cache: Path, device: str) -> dict[str, str]:
    """The environment of a worker that compiles for that device, and keeps its programs in that folder."""
    kind, _, index = device.partition(":")
    flags = [
        "--xla_allow_excess_precision=false",
        "--xla_cpu_multi_thread_eigen=false",
        "--xla_gpu_deterministic_ops=true",
        "--xla_gpu_enable_triton_gemm=false",
        "--xla_gpu_autotune_level=0",
    ]
    if kind == "cpu":
        # Without LLVM's optimisations a first run takes half as long. They round otherwise here and there.
        level = os.environ.get(XLA_LEVEL, "0")
        flags.append(f"--xla_backend_optimization_level={level}")
        if level == "0":  # a small program is compiled faster in one piece
            flags.append("--xla_cpu_parallel_codegen_split_count=1")
        if index:
            flags.append(f"--xla_force_host_platform_device_count={int(index) + 1}")
    return {
        "JAX_ENABLE_X64": "1",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
        "JAX_PLATFORMS": kind,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": " ".join(flags),
    }


REQUIREMENTS = Requirements(
    distributions=("jax", "flax", "optax"),
    keywords=("dtype", "param_dtype", "rngs"),
    idiom=Idiom(
        title="JAX",
        namespace="jnp",
        dtype='param_dtype="{}"',
        required="rngs=nnx.Rngs(0)",
        example="param_dtype=jnp.float64, rngs=nnx.Rngs(0)",
        imports=("from flax import nnx",),
        wide=("import jax", 'jax.config.update("jax_enable_x64", True)'),
    ),
    variables=variables,
    determinism={"jax_enable_x64": True, "jax_default_matmul_precision": "highest"},
    compiles=True,
    share=1,
)
