"""What the backend in TensorFlow needs."""

from __future__ import annotations

from backends.requirements import Idiom, Requirements

REQUIREMENTS = Requirements(
    distributions=("tensorflow", "keras"),
    keywords=("dtype", "name", "training"),
    idiom=Idiom(title="TensorFlow", namespace="tf", example="dtype='float64', name='attention'"),
    variables=lambda cache, device: {
        "KERAS_BACKEND": "tensorflow",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    },
    determinism={
        "tensor_float_32": False,
        "keras_backend": "tensorflow",
        "intra_op_threads": 1,
        "inter_op_threads": 1,
    },
    share=4,
)
