"""Keras' AdditiveAttention: one vector, no projections: queries and keys are as large as the hidden layer.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/attention_layers/additive_attention/
"""

from __future__ import annotations

from backends.weights.table import OF_EVERY_LAYER, UNIFORM, Fixed, Row, Settings, Source

ADVICE = "it has no projections: set a Dense(use_bias=False) with kernel {0}.T before its {1}, and pass it the identity"

SOURCE = Source(
    name="keras.AdditiveAttention",
    layer="AdditiveAttention",
    warnings=(UNIFORM,),
    settings=Settings(("AdditiveAttention",), free=(*OF_EVERY_LAYER, "use_scale")),
    rows=(Row("scale | vars/0", "h -> h", ("w_v",)),),
    fixed={
        "W_q": Fixed(ADVICE.format("W_q", "queries"), like="w_v", is_zero=False),
        "W_k": Fixed(ADVICE.format("W_k", "keys"), like="w_v", is_zero=False),
    },
    notes=("There are no projections: W_q and W_k are the identity.",),
)
