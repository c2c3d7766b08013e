"""Sequence-to-sequence attention in JAX: queries, keys and values go in; contexts and weights come out."""

from backends import absence

if absence("jax"):
    raise ModuleNotFoundError(absence("jax"))

from backends.jax import (
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
from backends.jax.attention import *
from backends.jax.compressed import *
from backends.jax.decoders import *
from backends.jax.encoders import *
from backends.jax.feed_forward import *
from backends.jax.hard import *
from backends.jax.images import *
from backends.jax.linear import *
from backends.jax.local import *
from backends.jax.masking import *
from backends.jax.memory import *
from backends.jax.multi_head import *
from backends.jax.normalization import *
from backends.jax.parameters import *
from backends.jax.pooling import *
from backends.jax.positions import *
from backends.jax.recurrent import *
from backends.jax.regression import *
from backends.jax.scoring import *
from backends.jax.segments import *
from backends.jax.training import *
from backends.jax.transformer import *
from backends.jax.transformer_layers import *
from backends.jax.translation import *

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
