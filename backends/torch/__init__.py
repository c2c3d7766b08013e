"""Attention for sequence-to-sequence models in PyTorch."""

from backends.torch.decoders import BahdanauDecoder
from backends.torch.layers import (
    AdditiveAttention,
    ConcatAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    Memory,
)
from backends.torch.masking import (
    attention_mask,
    block_mask,
    causal_mask,
    global_mask,
    mask_and,
    mask_or,
    masked_softmax,
    stride_mask,
    window_mask,
)
from backends.torch.parameters import get_parameters, set_parameters
from backends.torch.pooling import attention_pooling
from backends.torch.recurrent import GRU, GRUEncoder
from backends.torch.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)

__all__ = [
    "GRU",
    "AdditiveAttention",
    "BahdanauDecoder",
    "ConcatAttention",
    "CosineAttention",
    "DotProductAttention",
    "GRUEncoder",
    "GeneralAttention",
    "Memory",
    "additive_score",
    "attention_mask",
    "attention_pooling",
    "block_mask",
    "causal_mask",
    "cosine_score",
    "dot_score",
    "gaussian_score",
    "get_parameters",
    "global_mask",
    "location_score",
    "mask_and",
    "mask_or",
    "masked_softmax",
    "scaled_dot_score",
    "set_parameters",
    "stride_mask",
    "window_mask",
]
