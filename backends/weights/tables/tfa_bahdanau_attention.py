"""TensorFlow Addons' BahdanauAttention: kernels (inputs, units); with normalize=True, v is normalised and has a gain.

https://github.com/tensorflow/addons/blob/master/tensorflow_addons/seq2seq/attention_wrapper.py
"""

from __future__ import annotations

from backends.weights.table import NAN, OF_EVERY_LAYER, Row, Settings, Source

NAME, LAYER = "tfa.BahdanauAttention", "AdditiveAttention"
PROJECTIONS = (
    Row("query_layer/kernel", "q h -> h q", ("W_q",)),
    Row("memory_layer/kernel", "k h -> h k", ("W_k",)),
)

SOURCE = Source(
    name=NAME,
    layer=LAYER,
    warnings=(NAN,),
    settings=Settings(
        ("Addons>BahdanauAttention",),
        needed={"probability_fn": "softmax"},
        free=(*OF_EVERY_LAYER, "units", "normalize", "scale", "memory*"),
    ),
    rows=(*PROJECTIONS, Row("attention_v", "h -> h", ("w_v",))),
    also=(
        Source(
            name=NAME,
            layer=LAYER,
            rows=(
                *PROJECTIONS,
                Row("attention_v", "h -> h", ("w_v",), scaled_by="attention_g", normalised=True),
                Row("attention_g"),
                Row.zeros("attention_b", "h", "AdditiveAttention has no bias inside its tanh"),
            ),
        ),
    ),
)
