"""Sequence-to-sequence attention in MXNet: queries, keys and values go in; contexts and weights come out."""

import sys

import numpy

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

from backends.mxnet import (
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

npx.set_np()

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
