"""The specification in NumPy: float64 throughout, and differentiable by complex step.

Arrays are promoted to float64, or kept complex while `attention_core.differentiation` perturbs them. Every floating
argument and parameter may then carry one more leading axis, the same for all of them: one pass computes many
perturbations. Formulas therefore compare by the real part, write the sigmoid by tanh, and use neither abs nor norm.
"""

from attention_core.reference.attention import (
    AdditiveAttention,
    ConcatAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    KernelAttention,
    LocationAttention,
    Memory,
)
from attention_core.reference.decoders import (
    BahdanauDecoder,
    FixedContextDecoder,
    LuongDecoder,
    LuongState,
)
from attention_core.reference.encoders import Bridge, GRUEncoder, LSTMEncoder
from attention_core.reference.hard import HardAttention
from attention_core.reference.local import LocalAttention
from attention_core.reference.masking import (
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
from attention_core.reference.multi_head import MultiHeadAttention, ablation_importance, taylor_importance
from attention_core.reference.parameters import (
    get_parameters,
    set_parameters,
)
from attention_core.reference.pooling import (
    attention_pooling,
)
from attention_core.reference.positions import LearnedPositions, SinusoidalPositions, position_permutation
from attention_core.reference.recurrent import GRU, LSTM
from attention_core.reference.regression import NadarayaWatson
from attention_core.reference.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)
from attention_core.reference.training import (
    Trainer,
    adam,
    clip_by_global_norm,
    masked_cross_entropy,
    sgd,
)
from attention_core.reference.translation import Translator

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
