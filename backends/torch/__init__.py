"""Attention for sequence-to-sequence models in PyTorch."""

from backends.torch.attention import (
    AdditiveAttention,
    ConcatAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    KernelAttention,
    LocationAttention,
    Memory,
)
from backends.torch.decoders import BahdanauDecoder, FixedContextDecoder, LuongDecoder, LuongState
from backends.torch.encoders import Bridge, GRUEncoder, LSTMEncoder
from backends.torch.hard import HardAttention
from backends.torch.local import LocalAttention
from backends.torch.masking import (
    attention_mask,
    block_mask,
    causal_mask,
    from_additive_mask,
    from_key_padding_mask,
    global_mask,
    mask_and,
    mask_or,
    masked_softmax,
    stride_mask,
    to_additive_mask,
    to_key_padding_mask,
    window_mask,
)
from backends.torch.multi_head import MultiHeadAttention, ablation_importance, taylor_importance
from backends.torch.parameters import get_parameters, set_parameters
from backends.torch.pooling import attention_pooling
from backends.torch.positions import LearnedPositions, SinusoidalPositions, position_permutation
from backends.torch.recurrent import GRU, LSTM
from backends.torch.regression import NadarayaWatson
from backends.torch.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)
from backends.torch.training import Trainer, adam, clip_by_global_norm, masked_cross_entropy, sgd
from backends.torch.translation import Translator

__all__ = [
    "GRU",
    "LSTM",
    "AdditiveAttention",
    "BahdanauDecoder",
    "Bridge",
    "ConcatAttention",
    "CosineAttention",
    "DotProductAttention",
    "FixedContextDecoder",
    "GRUEncoder",
    "GeneralAttention",
    "HardAttention",
    "KernelAttention",
    "LSTMEncoder",
    "LearnedPositions",
    "LocalAttention",
    "LocationAttention",
    "LuongDecoder",
    "LuongState",
    "Memory",
    "MultiHeadAttention",
    "NadarayaWatson",
    "SinusoidalPositions",
    "ablation_importance",
    "additive_score",
    "attention_mask",
    "attention_pooling",
    "block_mask",
    "causal_mask",
    "cosine_score",
    "dot_score",
    "from_additive_mask",
    "from_key_padding_mask",
    "gaussian_score",
    "get_parameters",
    "global_mask",
    "location_score",
    "mask_and",
    "mask_or",
    "masked_softmax",
    "position_permutation",
    "scaled_dot_score",
    "set_parameters",
    "stride_mask",
    "taylor_importance",
    "to_additive_mask",
    "to_key_padding_mask",
    "window_mask",
    "Trainer",
    "Translator",
    "adam",
    "clip_by_global_norm",
    "masked_cross_entropy",
    "sgd",
]
