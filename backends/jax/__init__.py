"""Sequence-to-sequence attention in JAX: masks, scores, attention layers, encoders, decoders and their training.

Every function and method checks its arguments before any arithmetic, and raises the errors of `attention_core.errors`:

    ShapeError, DtypeError: an array does not fit the operator, the layer's parameters or the other arrays
    MaskError: a mask is not boolean
    OptionError: an option is outside its domain, or would be ignored beside the others
    TokenError: a token id is outside the vocabulary

A docstring names those that a function or method raises beside them. Of arguments, these rules are general:

    valid_lens: lengths out of range are clipped; lengths and mask combine by logical and
    an array that is broadcast has for each axis its size or 1
    a dropout mask holds 0 or 1/(1 - rate), by which what is dropped is multiplied
"""

from attention_core.operators import exports
from backends import absence

if absence("jax"):
    raise ModuleNotFoundError(absence("jax"))

from backends.jax import blocked as blocked  # registers its kernels
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

__all__ = exports(__name__)
