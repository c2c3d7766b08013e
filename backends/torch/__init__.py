"""Sequence-to-sequence attention in PyTorch: queries, keys and values go in; contexts and weights come out."""

from backends import absence

if absence("torch"):
    raise ModuleNotFoundError(absence("torch"))

from backends.torch import (
    attention,
    compressed,
    decoders,
    encoders,
    feed_forward,
    hard,
    images,
    linear,
    local,
    masking,
    memory,
    multi_head,
    normalization,
    parameters,
    pooling,
    positions,
    recurrent,
    regression,
    scoring,
    segments,
    training,
    transformer,
    transformer_layers,
    translation,
)
from backends.torch.attention import *
from backends.torch.compressed import *
from backends.torch.decoders import *
from backends.torch.encoders import *
from backends.torch.feed_forward import *
from backends.torch.hard import *
from backends.torch.images import *
from backends.torch.linear import *
from backends.torch.local import *
from backends.torch.masking import *
from backends.torch.memory import *
from backends.torch.multi_head import *
from backends.torch.normalization import *
from backends.torch.parameters import *
from backends.torch.pooling import *
from backends.torch.positions import *
from backends.torch.recurrent import *
from backends.torch.regression import *
from backends.torch.scoring import *
from backends.torch.segments import *
from backends.torch.training import *
from backends.torch.transformer import *
from backends.torch.transformer_layers import *
from backends.torch.translation import *

__all__ = [
    *attention.__all__,
    *compressed.__all__,
    *decoders.__all__,
    *encoders.__all__,
    *feed_forward.__all__,
    *hard.__all__,
    *images.__all__,
    *linear.__all__,
    *local.__all__,
    *masking.__all__,
    *memory.__all__,
    *multi_head.__all__,
    *normalization.__all__,
    *parameters.__all__,
    *pooling.__all__,
    *positions.__all__,
    *recurrent.__all__,
    *regression.__all__,
    *scoring.__all__,
    *segments.__all__,
    *training.__all__,
    *transformer.__all__,
    *transformer_layers.__all__,
    *translation.__all__,
]
