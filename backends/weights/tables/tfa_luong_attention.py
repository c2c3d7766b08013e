"""TensorFlow Addons' LuongAttention: one kernel (inputs, units) for the keys; with scale=True, a factor of the scores.

https://github.com/tensorflow/addons/blob/master/tensorflow_addons/seq2seq/attention_wrapper.py
"""

from __future__ import annotations

from backends.weights.table import NAN, OF_EVERY_LAYER, Row, Settings, Source

NAME, LAYER = "tfa.LuongAttention", "GeneralAttention"

SOURCE = Source(
    name=NAME,
    layer=LAYER,
    warnings=(NAN,),
    settings=Settings(
        ("Addons>LuongAttention",),
        needed={"probability_fn": "softmax"},
        free=(*OF_EVERY_LAYER, "units", "normalize", "scale", "memory*"),
    ),
    rows=(Row("memory_layer/kernel", "k q -> q k", ("W",)),),
    also=(
        Source(
            name=NAME,
            layer=LAYER,
            rows=(Row("memory_layer/kernel", "k q -> q k", ("W",), scaled_by="attention_g"), Row("attention_g")),
        ),
    ),
)
