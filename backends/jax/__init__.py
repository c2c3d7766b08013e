"""Attention for sequence-to-sequence models in JAX."""

from backends.jax.decoders import BahdanauDecoder
from backends.jax.layers import AdditiveAttention, DotProductAttention, Memory
from backends.jax.masking import attention_mask, masked_softmax
from backends.jax.parameters import get_parameters, set_parameters
from backends.jax.pooling import attention_pooling
from backends.jax.recurrent import GRU, GRUEncoder
from backends.jax.scoring import additive_score, dot_score, scaled_dot_score

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
