"""Sequence-to-sequence attention in PyTorch: masks, scores, attention layers, encoders, decoders and their training.

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

if absence("torch"):
    raise ModuleNotFoundError(absence("torch"))

from backends.torch import blocked as blocked  # registers its kernels
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

__all__ = exports(__name__)
