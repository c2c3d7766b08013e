"""Attention for sequence-to-sequence models in MXNet."""

import sys

import numpy

if sys.version_info >= (3, 13):
    raise ImportError("MXNet 1.9.1, the last release, runs on Python up to 3.12: use Python 3.11 for this backend.")
if int(numpy.__version__.partition(".")[0]) >= 2:
    raise ImportError(
        f"MXNet 1.9.1, the last release, needs NumPy below 2, and this is {numpy.__version__}: "
        "install 'numpy>=1.23.5,<2' for this backend."
    )
if "bool" not in vars(numpy):
    vars(numpy)["bool"] = bool  # MXNet reads this alias while it is imported; NumPy 1.24 removed it

from mxnet import npx

from backends.mxnet.attention import (
    AdditiveAttention,
    ConcatAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    KernelAttention,
    LocationAttention,
    Memory,
)
from backends.mxnet.decoders import BahdanauDecoder, FixedContextDecoder, LuongDecoder, LuongState
from backends.mxnet.encoders import Bridge, GRUEncoder, LSTMEncoder
from backends.mxnet.hard import HardAttention
from backends.mxnet.local import LocalAttention
from backends.mxnet.masking import (
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
from backends.mxnet.multi_head import MultiHeadAttention, ablation_importance, taylor_importance
from backends.mxnet.parameters import get_parameters, set_parameters
from backends.mxnet.pooling import attention_pooling
from backends.mxnet.positions import LearnedPositions, SinusoidalPositions, position_permutation
from backends.mxnet.recurrent import GRU, LSTM
from backends.mxnet.regression import NadarayaWatson
from backends.mxnet.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)
from backends.mxnet.training import Trainer, adam, clip_by_global_norm, masked_cross_entropy, sgd
from backends.mxnet.translation import Translator

npx.set_np()

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
