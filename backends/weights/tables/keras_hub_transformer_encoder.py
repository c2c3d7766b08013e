"""KerasHub's TransformerEncoder, which is one layer: Keras' MultiHeadAttention, LayerNormalization and Dense.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables. Its own epsilon is 1e-5.
https://keras.io/keras_hub/api/modeling_layers/transformer_encoder/
"""

from __future__ import annotations

from collections.abc import Mapping

from backends.weights.table import COMPUTES_PADDING, OF_EVERY_LAYER, UNIFORM, Row, Settings, Source, inside
from backends.weights.tables.keras_layer_normalization import SOURCE as NORM
from backends.weights.tables.keras_multi_head_attention import rows


def dense(name: str, axes: str, number: int) -> tuple[Row, ...]:
    """The rows of a projection of the network."""
    part, outputs = f"feedforward_{name}_dense", axes[-1]
    return (
        Row(f"{part}/kernel | _{part}/vars/0", f"{axes} -> {outputs} {axes[0]}", (f"feed_forward.W_{number}",)),
        Row(f"{part}/bias | _{part}/vars/1", f"{outputs} -> {outputs}", (f"feed_forward.b_{number}",)),
    )


def table(name: str, layer: str, attentions: Mapping[str, str], *warnings: str, **config: bool) -> Source:
    """The table of a layer whose attentions have these names in `variable.path`; in a file, theirs are all alike."""
    made: list[Row] = []
    for number, (part, path) in enumerate(attentions.items(), start=1):
        heads = rows(key=part, value=part)  # each attention has a size of keys
        made += inside(f"{path} | _{part}_layer", heads, canonical=part, separator="/")
        made += inside(f"{part}_layer_norm | _{part}_layer_norm", NORM.rows, canonical=f"norm_{number}", separator="/")
    last = f"norm_{len(attentions) + 1}"
    made += inside("feedforward_layer_norm | _feedforward_layer_norm", NORM.rows, canonical=last, separator="/")
    network = (*dense("intermediate", "e f", 1), *dense("output", "f e", 2))
    fixed = {"score": "scaled_dot", "rms": False, "bias": True, **config}
    settings = Settings(
        (name.replace(".", ">"),),
        options={
            "activation": "activation",
            "layer_norm_epsilon": "epsilon",
            "normalize_first": "norm",
            "num_heads": "num_heads",
        },
        values={
            "activation": {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"},
            "normalize_first": {True: "pre", False: "post"},
        },
        free=(*OF_EVERY_LAYER, "intermediate_dim", "decoder_sequence_shape", "encoder_sequence_shape"),
    )
    return Source(name=name, layer=layer, warnings=warnings, config=fixed, rows=(*made, *network), settings=settings)


SOURCE = table(
    "keras_hub.TransformerEncoder",
    "TransformerEncoderLayer",
    {"self_attention": "self_attention_layer"},
    COMPUTES_PADDING,
    UNIFORM,
)
