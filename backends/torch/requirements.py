"""What the backend in PyTorch needs."""

from __future__ import annotations

from backends.requirements import Idiom, Requirements

REQUIREMENTS = Requirements(
    distributions=("torch",),
    keywords=("dtype", "device"),
    idiom=Idiom(
        title="PyTorch",
        call="forward",
        namespace="torch",
        dtype="dtype=torch.{}",
        example="dtype=torch.float64, device='cuda'",
        imports=("import torch",),
    ),
    variables=lambda cache, device: {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    determinism={
        "threads": 1,
        "float32_matmul_precision": "highest",
        "cuda.matmul.allow_tf32": False,
        "cudnn": False,
        "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
        "cuda.matmul.allow_bf16_reduced_precision_reduction": False,
        "mha.fastpath": False,
        "deterministic_algorithms": True,
    },
    share=16,
)
