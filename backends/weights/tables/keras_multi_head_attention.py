"""Keras' MultiHeadAttention: kernels (inputs, heads, head size), and (heads, head size, outputs) on the way out.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/attention_layers/multi_head_attention/
"""

from __future__ import annotations

from backends.weights.table import UNIFORM, Row, Source

SOURCE = Source(
    name="keras.MultiHeadAttention",
    layer="MultiHeadAttention",
    warnings=(UNIFORM,),
    config={"score": "scaled_dot"},
    rows=(
        Row("query/kernel | query_dense/vars/0", "q num_heads d -> (num_heads d) q", ("W_q",)),
        Row("query/bias | query_dense/vars/1", "num_heads d -> (num_heads d)", ("b_q",), optional="bias"),
        Row("key/kernel | key_dense/vars/0", "k num_heads d -> (num_heads d) k", ("W_k",)),
        Row("key/bias | key_dense/vars/1", "num_heads d -> (num_heads d)", ("b_k",), optional="bias"),
        Row("value/kernel | value_dense/vars/0", "v num_heads d -> (num_heads d) v", ("W_v",)),
        Row("value/bias | value_dense/vars/1", "num_heads d -> (num_heads d)", ("b_v",), optional="bias"),
        Row("attention_output/kernel | output_dense/vars/0", "num_heads d q -> q (num_heads d)", ("W_o",)),
        Row("attention_output/bias | output_dense/vars/1", "q -> q", ("b_o",), optional="bias"),
    ),
)
