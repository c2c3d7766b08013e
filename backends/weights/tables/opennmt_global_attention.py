"""OpenNMT-py's GlobalAttention: "general", "mlp" and "dot", each with linear_out, the decoder's output projection.

linear_out reads [context; query], and belongs to the decoder, not to the attention layer: for "general" and "dot" it is
LuongDecoder's W_c; for "mlp" it has a bias, and no tanh follows.
https://github.com/OpenNMT/OpenNMT-py/blob/master/onmt/modules/global_attention.py
"""

from __future__ import annotations

from backends.weights.table import NAN, Row, Settings, Source

NAME = "opennmt.GlobalAttention"
OUT = (
    Row("linear_out.weight", "o c -> o c", ("*W_c",)),
    Row.absent("linear_cover.weight", "coverage adds the past weights to the keys; the specification does not"),
)

SOURCE = Source(
    name=NAME,
    layer="GeneralAttention",
    settings=Settings(needed={"attn_func": "softmax"}),
    warnings=(NAN,),
    # It projects the query, where GeneralAttention projects the key: the transpose.
    rows=(Row("linear_in.weight", "k q -> q k", ("W",)), *OUT),
    also=(
        Source(
            name=NAME,
            layer="AdditiveAttention",
            rows=(
                Row("linear_context.weight", "h k -> h k", ("W_k",)),
                Row("linear_query.weight", "h q -> h q", ("W_q",)),
                Row.zeros("linear_query.bias", "h", "AdditiveAttention has no bias inside its tanh"),
                Row("v.weight", "1 h -> (1 h)", ("w_v",)),
                *OUT,
                Row("linear_out.bias", "o -> o", ("*b_c",), optional="out"),
            ),
            notes=("No tanh follows linear_out here, and it has a bias: it is not W_c of LuongDecoder.",),
        ),
        Source(name=NAME, layer="DotProductAttention", rows=OUT, config={"scale": 1.0}),
    ),
)
