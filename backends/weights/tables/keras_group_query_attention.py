"""Keras' GroupQueryAttention: the arrays of its MultiHeadAttention, with fewer heads of keys and values.

A sliding window is in no array: pass one as the mask. The second spelling is that of a .weights.h5 file.
https://keras.io/api/layers/attention_layers/group_query_attention/
"""

from __future__ import annotations

from backends.weights.table import OF_EVERY_LAYER, UNIFORM, Row, Settings, Source
from backends.weights.tables.keras_multi_head_attention import FREE, rows

GATED = "use_gate multiplies the outputs of the heads by a sigmoid of the queries; the specification does not"

SOURCE = Source(
    name="keras.GroupQueryAttention",
    layer="MultiHeadAttention",
    warnings=(UNIFORM,),
    config={"score": "scaled_dot"},
    settings=Settings(
        ("GroupQueryAttention", "GroupedQueryAttention"),
        options={"num_query_heads": "num_heads"},
        free=(*OF_EVERY_LAYER, *FREE, "num_key_value_heads"),
    ),
    rows=(*rows("_", "key_heads"), Row.absent("gate/kernel | _gate_dense/vars/0", GATED)),
)
