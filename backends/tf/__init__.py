"""Attention for sequence-to-sequence models in TensorFlow, with Keras 3 layers."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"backends.tf: Keras runs on {keras.backend.backend()}, expected tensorflow. "
        "Set the environment variable KERAS_BACKEND=tensorflow before Keras is first imported."
    )

from backends.tf.decoders import BahdanauDecoder
from backends.tf.layers import (
    AdditiveAttention,
    ConcatAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    Memory,
)
from backends.tf.masking import (
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
from backends.tf.parameters import get_parameters, set_parameters
from backends.tf.pooling import attention_pooling
from backends.tf.recurrent import GRU, GRUEncoder
from backends.tf.scoring import (
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
