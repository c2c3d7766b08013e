"""JoeyNMT's BahdanauAttention: projections of query and key, and a vector, all without biases.

https://github.com/joeynmt/joeynmt/blob/main/joeynmt/attention.py
"""

from __future__ import annotations

from backends.weights.table import NAN, Row, Source

SOURCE = Source(
    name="joeynmt.BahdanauAttention",
    layer="AdditiveAttention",
    warnings=(NAN,),
    rows=(
        Row("query_layer.weight", "h q -> h q", ("W_q",)),
        Row("key_layer.weight", "h k -> h k", ("W_k",)),
        Row("energy_layer.weight", "1 h -> (1 h)", ("w_v",)),
    ),
)
