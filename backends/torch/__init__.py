"""Attention for sequence-to-sequence models in PyTorch."""

from backends.torch.decoders import BahdanauDecoder
from backends.torch.layers import AdditiveAttention, DotProductAttention, Memory
from backends.torch.masking import attention_mask, masked_softmax
from backends.torch.parameters import get_parameters, set_parameters
from backends.torch.pooling import attention_pooling
from backends.torch.recurrent import GRU, GRUEncoder
from backends.torch.scoring import additive_score, dot_score, scaled_dot_score

__all__ = [
    "GRU",
    "AdditiveAttention",
    "BahdanauDecoder",
    "DotProductAttention",
    "GRUEncoder",
    "Memory",
    "additive_score",
    "attention_mask",
    "attention_pooling",
    "dot_score",
    "get_parameters",
    "masked_softmax",
    "scaled_dot_score",
    "set_parameters",
]
