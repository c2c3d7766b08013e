"""What the backend in MXNet needs, and what MXNet does not have."""

from __future__ import annotations

from backends.requirements import Idiom, Requirements

VARIABLES = {
    "MXNET_SAFE_ACCUMULATION": "1",
    "MXNET_ENFORCE_DETERMINISM": "1",
    "MXNET_CUDA_ALLOW_TENSOR_CORE": "0",
    "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION": "0",
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    "MXNET_USE_FUSION": "0",
    "MXNET_SUBGRAPH_BACKEND": "NONE",
}
"""MXNet reads them when it is imported, or at the first operator: they have to be set before."""

NO_HALF_PRODUCT = "MXNet has no float16 matrix product on CPU"
MULTIPLYING = (
    "*dot_score",
    "additive_score",
    "cosine_score",
    "*_pooling",
    "*Attention",
    "NadarayaWatson",
    "FeedForward",
    "*Transformer*",
    "GRU*",
    "LSTM*",
    "Bridge",
    "*Decoder",
    "Translator",
    "*_importance",  # of the losses that the parity tests give
    "attention_rollout",
)

REQUIREMENTS = Requirements(
    distributions=("mxnet",),
    keywords=("dtype", "ctx", "prefix", "params"),
    idiom=Idiom(title="MXNet", example="dtype='float64', prefix='attention_'"),
    newest_python=(3, 12),
    variables=lambda cache, device: VARIABLES,
    share=8,
    gaps=(
        {"dtype": "bfloat16", "device": "*", "operator": "*", "reason": "MXNet's arrays have no bfloat16"},
        {"dtype": "mixed_*", "device": "*", "reason": "MXNet casts the operators of whole programs alone (amp)"},
        {"input": "int16", "device": "*", "reason": "MXNet's arrays have no int16"},
        *({"dtype": "float16", "device": "cpu", "operator": name, "reason": NO_HALF_PRODUCT} for name in MULTIPLYING),
    ),
)
