"""Flax linen's MultiHeadDotProductAttention: kernels (inputs, heads, head size).

https://flax-linen.readthedocs.io/en/latest/api_reference/flax.linen/layers.html
"""

from __future__ import annotations

from backends.weights.table import UNIFORM, Row, Source

SOURCE = Source(
    name="flax.linen.MultiHeadDotProductAttention",
    layer="MultiHeadAttention",
    warnings=(UNIFORM,),
    config={"score": "scaled_dot"},
    rows=(
        Row("query/kernel", "q num_heads d -> (num_heads d) q", ("W_q",)),
        Row("query/bias", "num_heads d -> (num_heads d)", ("b_q",), optional="bias"),
        Row("key/kernel", "k num_heads d -> (num_heads d) k", ("W_k",)),
        Row("key/bias", "num_heads d -> (num_heads d)", ("b_k",), optional="bias"),
        Row("value/kernel", "v num_heads d -> (num_heads d) v", ("W_v",)),
        Row("value/bias", "num_heads d -> (num_heads d)", ("b_v",), optional="bias"),
        Row("out/kernel", "num_heads d q -> q (num_heads d)", ("W_o",)),
        Row("out/bias", "q -> q", ("b_o",), optional="bias"),
        Row.absent("query_ln/scale", "normalize_qk normalises queries and keys; the specification does not"),
        Row.absent("key_ln/scale", "normalize_qk normalises queries and keys; the specification does not"),
    ),
)
