"""JoeyNMT's LuongAttention: one projection of the key to the size of the query, without a bias.

https://github.com/joeynmt/joeynmt/blob/main/joeynmt/attention.py
"""

from __future__ import annotations

from backends.weights.table import NAN, Row, Source

SOURCE = Source(
    name="joeynmt.LuongAttention",
    layer="GeneralAttention",
    warnings=(NAN,),
    rows=(Row("key_layer.weight", "q k -> q k", ("W",)),),
)
