"""Attention for sequence-to-sequence models in TensorFlow, with Keras 3 layers."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"backends.tf: Keras runs on {keras.backend.backend()}, expected tensorflow. "
        "Set the environment variable KERAS_BACKEND=tensorflow before Keras is first imported."
    )

from backends.tf.attention import (
    AdditiveAttention,
    ConcatAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    KernelAttention,
    LocationAttention,
    Memory,
)
from backends.tf.decoders import BahdanauDecoder, FixedContextDecoder, LuongDecoder, LuongState
from backends.tf.encoders import Bridge, GRUEncoder, LSTMEncoder
from backends.tf.hard import HardAttention
from backends.tf.local import LocalAttention
from backends.tf.masking import (
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
from backends.tf.multi_head import MultiHeadAttention, ablation_importance, taylor_importance
from backends.tf.parameters import get_parameters, set_parameters
from backends.tf.pooling import attention_pooling
from backends.tf.positions import LearnedPositions, SinusoidalPositions, position_permutation
from backends.tf.recurrent import GRU, LSTM
from backends.tf.regression import NadarayaWatson
from backends.tf.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)
from backends.tf.training import Trainer, adam, clip_by_global_norm, masked_cross_entropy, sgd
from backends.tf.translation import Translator

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
