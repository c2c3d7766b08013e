"""Every function and layer of the specification, as data; and the files and public names that each backend has."""

from __future__ import annotations

from attention_core.operators.decoders import (
    BAHDANAU_DECODER,
    FIXED_CONTEXT_DECODER,
    LUONG_DECODER,
    check_initial,
    check_search,
)
from attention_core.operators.layers import (
    ABLATION_IMPORTANCE,
    ADDITIVE_ATTENTION,
    ALIKE_SCORES,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    HARD_ATTENTION,
    HIDDEN_SCORES,
    KERNEL_ATTENTION,
    LEARNED_POSITIONS,
    LOCAL_ATTENTION,
    LOCATION_ATTENTION,
    MULTI_HEAD_ATTENTION,
    NADARAYA_WATSON,
    POSITION_PERMUTATION,
    SCORE_NAMES,
    SINUSOIDAL_POSITIONS,
    TAYLOR_IMPORTANCE,
    scored,
)
from attention_core.operators.masking import (
    ATTENTION_MASK,
    BLOCK_MASK,
    CAUSAL_MASK,
    FROM_ADDITIVE_MASK,
    FROM_KEY_PADDING_MASK,
    GLOBAL_MASK,
    MASK_AND,
    MASK_OR,
    MASKED_SOFTMAX,
    STRIDE_MASK,
    TO_ADDITIVE_MASK,
    TO_KEY_PADDING_MASK,
    WINDOW_MASK,
)
from attention_core.operators.pooling import (
    ATTENTION_POOLING,
)
from attention_core.operators.recurrent import (
    BRIDGE,
    GRU,
    GRU_ENCODER,
    LSTM,
    LSTM_ENCODER,
    check_one_direction,
)
from attention_core.operators.scoring import (
    ADDITIVE_SCORE,
    COSINE_SCORE,
    DOT_SCORE,
    GAUSSIAN_SCORE,
    LOCATION_SCORE,
    SCALED_DOT_SCORE,
)
from attention_core.operators.training import (
    ADAM,
    CLIP_BY_GLOBAL_NORM,
    MASKED_CROSS_ENTROPY,
    MASKS,
    SGD,
    UPDATES,
    Batch,
)
from attention_core.operators.translation import TRANSLATOR
from attention_core.specification import Layer, Operator

SPECIFICATION_VERSION = "5"

__all__ = [
    "ABLATION_IMPORTANCE",
    "ADAM",
    "ADDITIVE_ATTENTION",
    "ADDITIVE_SCORE",
    "ATTENTION_MASK",
    "ATTENTION_POOLING",
    "BAHDANAU_DECODER",
    "BLOCK_MASK",
    "BRIDGE",
    "CAUSAL_MASK",
    "CLIP_BY_GLOBAL_NORM",
    "CONCAT_ATTENTION",
    "COSINE_ATTENTION",
    "COSINE_SCORE",
    "DOT_PRODUCT_ATTENTION",
    "DOT_SCORE",
    "EXPORTED",
    "FILES",
    "FIXED_CONTEXT_DECODER",
    "FRAMEWORKS",
    "FRAMEWORK_KEYWORDS",
    "FROM_ADDITIVE_MASK",
    "FROM_KEY_PADDING_MASK",
    "GAUSSIAN_SCORE",
    "GENERAL_ATTENTION",
    "GLOBAL_MASK",
    "GRU",
    "GRU_ENCODER",
    "HARD_ATTENTION",
    "KERNEL_ATTENTION",
    "LAYERS",
    "LEARNED_POSITIONS",
    "LOCAL_ATTENTION",
    "LOCATION_ATTENTION",
    "LOCATION_SCORE",
    "LSTM",
    "LSTM_ENCODER",
    "LUONG_DECODER",
    "MASKED_CROSS_ENTROPY",
    "MASKED_SOFTMAX",
    "MASKS",
    "MASK_AND",
    "MASK_OR",
    "MULTI_HEAD_ATTENTION",
    "NADARAYA_WATSON",
    "OPERATORS",
    "UPDATES",
    "POSITION_PERMUTATION",
    "SCALED_DOT_SCORE",
    "ALIKE_SCORES",
    "HIDDEN_SCORES",
    "SCORE_NAMES",
    "SGD",
    "SINUSOIDAL_POSITIONS",
    "SPECIFICATION_VERSION",
    "STRIDE_MASK",
    "TAYLOR_IMPORTANCE",
    "TO_ADDITIVE_MASK",
    "TO_KEY_PADDING_MASK",
    "TRANSLATOR",
    "WINDOW_MASK",
    "Batch",
    "check_initial",
    "check_one_direction",
    "check_search",
    "find",
    "scored",
]

OPERATORS = (
    ATTENTION_MASK,
    CAUSAL_MASK,
    WINDOW_MASK,
    BLOCK_MASK,
    STRIDE_MASK,
    GLOBAL_MASK,
    MASK_AND,
    MASK_OR,
    FROM_KEY_PADDING_MASK,
    TO_KEY_PADDING_MASK,
    FROM_ADDITIVE_MASK,
    TO_ADDITIVE_MASK,
    MASKED_SOFTMAX,
    DOT_SCORE,
    SCALED_DOT_SCORE,
    ADDITIVE_SCORE,
    COSINE_SCORE,
    LOCATION_SCORE,
    GAUSSIAN_SCORE,
    ATTENTION_POOLING,
    ABLATION_IMPORTANCE,
    TAYLOR_IMPORTANCE,
    POSITION_PERMUTATION,
    MASKED_CROSS_ENTROPY,
)

LAYERS = (
    DOT_PRODUCT_ATTENTION,
    ADDITIVE_ATTENTION,
    GENERAL_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    LOCATION_ATTENTION,
    KERNEL_ATTENTION,
    LOCAL_ATTENTION,
    HARD_ATTENTION,
    NADARAYA_WATSON,
    MULTI_HEAD_ATTENTION,
    SINUSOIDAL_POSITIONS,
    LEARNED_POSITIONS,
    GRU,
    LSTM,
    GRU_ENCODER,
    LSTM_ENCODER,
    BRIDGE,
    BAHDANAU_DECODER,
    LUONG_DECODER,
    FIXED_CONTEXT_DECODER,
    TRANSLATOR,
)


def find(name: str) -> Operator | Layer:
    """The function or layer of that name."""
    for entry in (*OPERATORS, *LAYERS, *UPDATES):
        if entry.name == name:
            return entry
    raise KeyError(f"no operator {name!r}; there are {', '.join(entry.name for entry in (*OPERATORS, *LAYERS))}")


# ------------------------------------------------------------------------------------------------ structure

FRAMEWORKS = ("torch", "tf", "jax", "mxnet")

FILES: dict[str, tuple[str, ...]] = {
    "masking": (
        "attention_mask",
        "causal_mask",
        "window_mask",
        "block_mask",
        "stride_mask",
        "global_mask",
        "mask_and",
        "mask_or",
        "from_key_padding_mask",
        "to_key_padding_mask",
        "from_additive_mask",
        "to_additive_mask",
        "masked_softmax",
    ),
    "scoring": ("dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"),
    "blocked": (
        "takes_blocks",
        "force",
        "blocked_additive_score",
        "blocked_additive_attention",
        "blocked_dot_attention",
    ),
    "pooling": ("attention_pooling",),
    "layers": (
        "Memory",
        "DotProductAttention",
        "AdditiveAttention",
        "GeneralAttention",
        "ConcatAttention",
        "CosineAttention",
        "LocationAttention",
        "KernelAttention",
        "LocalAttention",
        "HardAttention",
        "NadarayaWatson",
        "MultiHeadAttention",
        "ablation_importance",
        "taylor_importance",
        "SinusoidalPositions",
        "LearnedPositions",
        "position_permutation",
    ),
    "recurrent": ("GRU", "LSTM", "GRUEncoder", "LSTMEncoder", "Bridge"),
    "decoders": ("LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"),
    "translation": ("Translator",),
    "training": ("masked_cross_entropy", "clip_by_global_norm", "sgd", "adam", "Trainer"),
    "parameters": ("get_parameters", "set_parameters"),
    "runtime": ("configure", "describe", "from_numpy", "to_numpy", "build", "vjp"),
}
"""The files of every backend and the public names of each, in order."""

EXPORTED = ("masking", "scoring", "pooling", "layers", "recurrent", "decoders", "translation", "training", "parameters")
"""The files whose names a backend's package exports; `blocked` and `runtime` are imported by name."""

FRAMEWORK_KEYWORDS: dict[str, tuple[str, ...]] = {
    "torch": ("dtype", "device"),
    "tf": ("dtype", "name", "training"),
    "jax": ("dtype", "rngs"),
    "mxnet": ("dtype", "ctx", "prefix", "params"),
}
"""Keywords that a framework's users expect; they follow the shared arguments of a constructor or a call."""
