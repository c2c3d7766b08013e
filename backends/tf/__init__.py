"""Sequence-to-sequence attention in TensorFlow: queries, keys and values go in; contexts and weights come out.

The layers are those of Keras 3.
"""

import os

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

from backends.tf import (
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
