"""Switches that stand in the environment before a framework is imported, so that its arithmetic is comparable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

XLA_LEVEL = "ATTENTION_PARITY_XLA_LEVEL"
"""The variable that names LLVM's optimisation level for JAX on a CPU: 0 unless set; 3 is what JAX takes by itself."""

PATH = "ATTENTION_PARITY_PATH"
"""The variable that makes every backend take one path for all sizes (backends/<x>/blocked.py): blocked, or plain."""

COMMON = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
}
"""One thread gives repeatable bits; TensorFloat-32 keeps 10 bits of a float32 product."""

SWITCHES: dict[str, dict[str, str]] = {
    "torch": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "tf": {
        "KERAS_BACKEND": "tensorflow",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    },
    "jax": {
        "JAX_ENABLE_X64": "1",
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_FLAGS": "--xla_allow_excess_precision=false --xla_cpu_multi_thread_eigen=false "
        "--xla_gpu_deterministic_ops=true --xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0",
    },
    "mxnet": {
        "MXNET_SAFE_ACCUMULATION": "1",
        "MXNET_ENFORCE_DETERMINISM": "1",
        "MXNET_CUDA_ALLOW_TENSOR_CORE": "0",
        "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION": "0",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        "MXNET_USE_FUSION": "0",
        "MXNET_SUBGRAPH_BACKEND": "NONE",
    },
}


IN_FORCE: dict[str, dict[str, Any]] = {
    "torch": {
        "threads": 1,
        "float32_matmul_precision": "highest",
        "cuda.matmul.allow_tf32": False,
        "cudnn.allow_tf32": False,
        "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
        "cuda.matmul.allow_bf16_reduced_precision_reduction": False,
        "mha.fastpath": False,
        "deterministic_algorithms": True,
    },
    "tf": {"tensor_float_32": False, "keras_backend": "tensorflow", "intra_op_threads": 1, "inter_op_threads": 1},
    "jax": {"jax_enable_x64": True, "jax_default_matmul_precision": "highest"},
}
"""What a runtime has to read back once it has set its switches; variables of the environment besides."""


def asked(backend: str, device: str) -> dict[str, Any]:
    """The switches that a backend has to run under, as its runtime reads them back."""
    return {**environment(backend, Path(), device), **IN_FORCE.get(backend, {})}


def unmet(backend: str, device: str, in_force: Mapping[str, Any]) -> list[str]:
    """What a recording's switches lack, in words; nothing is asked of a backend that is not ours."""
    wanted = asked(backend, device)
    lacking = [
        f"{name} is {value!r}, expected {wanted[name]!r}"
        for name, value in in_force.items()
        if name in wanted and value != wanted[name]
    ]
    return lacking + [f"{name} was not read back" for name in IN_FORCE.get(backend, {}) if name not in in_force]


def environment(backend: str, cache: Path, device: str) -> dict[str, str]:
    """The variables that a worker of the backend starts with."""
    # Nobody knows what somebody else's implementation imports: it gets the switches of all.
    own = SWITCHES.get(backend, {name: value for group in SWITCHES.values() for name, value in group.items()})
    chosen = {**COMMON, **own}
    if PATH in os.environ:
        chosen[PATH] = os.environ[PATH]
    kind, _, index = device.partition(":")
    if backend not in SWITCHES and "KERAS_BACKEND" in os.environ:
        chosen["KERAS_BACKEND"] = os.environ["KERAS_BACKEND"]
    if backend == "jax" or backend not in SWITCHES:
        chosen["JAX_COMPILATION_CACHE_DIR"] = str(cache / "jax")
        chosen["JAX_PLATFORMS"] = kind
        if kind == "cpu":
            # Without LLVM's optimisations a first run takes half as long. They round otherwise here and there.
            level = os.environ.get(XLA_LEVEL, "0")
            chosen["XLA_FLAGS"] += f" --xla_backend_optimization_level={level}"
            if level == "0":  # a small program is compiled faster in one piece
                chosen["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
        if kind == "cpu" and index:
            chosen["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={int(index) + 1}"
    if kind == "cpu":
        chosen["CUDA_VISIBLE_DEVICES"] = ""
    return chosen
