"""Switches that stand in the environment before a framework is imported, so that its arithmetic is comparable."""

from __future__ import annotations

from pathlib import Path

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


def environment(backend: str, cache: Path, device: str) -> dict[str, str]:
    """The variables that a worker of the backend starts with."""
    chosen = {**COMMON, **SWITCHES.get(backend, {})}
    if backend == "jax":
        chosen["JAX_COMPILATION_CACHE_DIR"] = str(cache / "jax")
        chosen["JAX_PLATFORMS"] = device
    if device == "cpu":
        chosen["CUDA_VISIBLE_DEVICES"] = ""
    return chosen
