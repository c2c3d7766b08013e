"""Sequence-to-sequence attention in MXNet: masks, scores, attention layers, encoders, decoders and their training.

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

import sys

import numpy

from attention_core.operators import exports
from backends import absence

if sys.version_info >= (3, 13):
    raise ImportError("MXNet 1.9.1, the last release, runs on Python up to 3.12: use Python 3.11 for this backend.")
if int(numpy.__version__.partition(".")[0]) >= 2:
    raise ImportError(
        f"MXNet 1.9.1, the last release, needs NumPy below 2, and this is {numpy.__version__}: "
        "install 'numpy>=1.23.5,<2' for this backend."
    )
if absence("mxnet"):
    raise ModuleNotFoundError(absence("mxnet"))
if "bool" not in vars(numpy):
    vars(numpy)["bool"] = bool  # MXNet reads this alias while it is imported; NumPy 1.24 removed it

from mxnet import npx

from backends.mxnet import blocked as blocked  # registers its kernels
from backends.mxnet.attention import *
from backends.mxnet.compressed import *
from backends.mxnet.decoders import *
from backends.mxnet.encoders import *
from backends.mxnet.feed_forward import *
from backends.mxnet.hard import *
from backends.mxnet.images import *
from backends.mxnet.linear import *
from backends.mxnet.local import *
from backends.mxnet.masking import *
from backends.mxnet.memory import *
from backends.mxnet.multi_head import *
from backends.mxnet.normalization import *
from backends.mxnet.parameters import *
from backends.mxnet.pooling import *
from backends.mxnet.positions import *
from backends.mxnet.recurrent import *
from backends.mxnet.regression import *
from backends.mxnet.scoring import *
from backends.mxnet.segments import *
from backends.mxnet.training import *
from backends.mxnet.transformer import *
from backends.mxnet.transformer_layers import *
from backends.mxnet.translation import *

__all__ = exports(__name__)

npx.set_np()
