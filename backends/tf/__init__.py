"""Sequence-to-sequence attention in TensorFlow: masks, scores, attention layers, encoders, decoders and their training.

The layers are those of Keras 3.

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

import os

from attention_core.operators import exports
from backends import absence

if absence("tf"):
    raise ModuleNotFoundError(absence("tf"))

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"backends.tf: Keras runs on {keras.backend.backend()}, expected tensorflow. "
        "Set the environment variable KERAS_BACKEND=tensorflow before Keras is first imported."
    )

from backends.tf import blocked as blocked  # registers its kernels
from backends.tf.attention import *
from backends.tf.compressed import *
from backends.tf.decoders import *
from backends.tf.encoders import *
from backends.tf.feed_forward import *
from backends.tf.hard import *
from backends.tf.images import *
from backends.tf.linear import *
from backends.tf.local import *
from backends.tf.masking import *
from backends.tf.memory import *
from backends.tf.multi_head import *
from backends.tf.normalization import *
from backends.tf.parameters import *
from backends.tf.pooling import *
from backends.tf.positions import *
from backends.tf.recurrent import *
from backends.tf.regression import *
from backends.tf.scoring import *
from backends.tf.segments import *
from backends.tf.training import *
from backends.tf.transformer import *
from backends.tf.transformer_layers import *
from backends.tf.translation import *

__all__ = exports(__name__)
