"""KerasHub's TransformerDecoder, which is one layer; without cross-attention it is a causal TransformerEncoderLayer.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables. Its own epsilon is 1e-5.
https://keras.io/keras_hub/api/modeling_layers/transformer_decoder/
"""

from __future__ import annotations

from dataclasses import replace

from backends.weights.table import COMPUTES_PADDING, UNIFORM
from backends.weights.tables.keras_hub_transformer_encoder import table

NAME = "keras_hub.TransformerDecoder"
SELF, CROSS = {"self_attention": "self_attention"}, {"cross_attention": "cross_attention"}

SOURCE = replace(
    table(NAME, "TransformerDecoderLayer", {**SELF, **CROSS}, UNIFORM),
    also=(table(NAME, "TransformerEncoderLayer", SELF, COMPUTES_PADDING, UNIFORM, causal=True),),
)
