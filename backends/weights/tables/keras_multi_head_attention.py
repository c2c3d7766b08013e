"""Keras' MultiHeadAttention: kernels (inputs, heads, head size), and (heads, head size, outputs) on the way out.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/attention_layers/multi_head_attention/
"""

from __future__ import annotations

from backends.weights.table import OF_EVERY_LAYER, UNIFORM, Row, Settings, Source


def rows(start: str = "", key_heads: str = "num_heads", key: str = "k", value: str = "v") -> tuple[Row, ...]:
    """The rows, with the start of the names in a file, and the axes of the heads and features of keys and values."""
    return (
        Row(f"query/kernel | {start}query_dense/vars/0", "q num_heads d -> (num_heads d) q", ("W_q",)),
        Row(f"query/bias | {start}query_dense/vars/1", "num_heads d -> (num_heads d)", ("b_q",), optional="bias"),
        Row(f"key/kernel | {start}key_dense/vars/0", f"{key} {key_heads} d -> ({key_heads} d) {key}", ("W_k",)),
        Row(f"key/bias | {start}key_dense/vars/1", f"{key_heads} d -> ({key_heads} d)", ("b_k",), optional="bias"),
        Row(f"value/kernel | {start}value_dense/vars/0", f"{value} {key_heads} d -> ({key_heads} d) {value}", ("W_v",)),
        Row(f"value/bias | {start}value_dense/vars/1", f"{key_heads} d -> ({key_heads} d)", ("b_v",), optional="bias"),
        Row(f"attention_output/kernel | {start}output_dense/vars/0", "num_heads d q -> q (num_heads d)", ("W_o",)),
        Row(f"attention_output/bias | {start}output_dense/vars/1", "q -> q", ("b_o",), optional="bias"),
    )


FREE = ("*_dim", "use_bias", "output_shape", "flash_attention")
"""The settings that shapes tell, and that of an implementation."""

SOURCE = Source(
    name="keras.MultiHeadAttention",
    layer="MultiHeadAttention",
    warnings=(UNIFORM,),
    config={"score": "scaled_dot"},
    settings=Settings(
        ("MultiHeadAttention",),
        needed={"attention_axes": None},
        options={"num_heads": "num_heads"},
        free=(*OF_EVERY_LAYER, *FREE),
    ),
    rows=rows(),
)
