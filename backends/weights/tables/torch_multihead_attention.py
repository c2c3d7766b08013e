"""PyTorch's MultiheadAttention: the three input projections in one array, or in three where key and value sizes differ.

https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
"""

from __future__ import annotations

from backends.weights.table import NAN, Row, Settings, Source

NAME, LAYER, CONFIG = "torch.nn.MultiheadAttention", "MultiHeadAttention", {"score": "scaled_dot"}
SHARED = (
    Row("in_proj_bias", "(3 e) -> 3 e", ("b_q", "b_k", "b_v"), optional="bias"),
    Row("out_proj.weight", "e e' -> e e'", ("W_o",)),
    Row("out_proj.bias", "e -> e", ("b_o",), optional="bias"),
    Row.absent("bias_k", "add_bias_kv adds a key that every query may attend to; the specification has none"),
    Row.absent("bias_v", "add_bias_kv adds a value that every query may attend to; the specification has none"),
)

SOURCE = Source(
    name=NAME,
    layer=LAYER,
    warnings=(NAN,),
    config=CONFIG,
    settings=Settings(needed={"add_zero_attn": False}),
    rows=(Row("in_proj_weight", "(3 e) e' -> 3 e e'", ("W_q", "W_k", "W_v")), *SHARED),
    also=(
        Source(
            name=NAME,
            layer=LAYER,
            config=CONFIG,
            rows=(
                Row("q_proj_weight", "e e' -> e e'", ("W_q",)),
                Row("k_proj_weight", "e k -> e k", ("W_k",)),
                Row("v_proj_weight", "e v -> e v", ("W_v",)),
                *SHARED,
            ),
        ),
    ),
)
