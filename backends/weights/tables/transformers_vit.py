"""ViT of transformers: patches by a convolution, whose kernel has the channels first, and a class token.

https://huggingface.co/docs/transformers/model_doc/vit
"""

from __future__ import annotations

from backends.weights.table import Row, Settings, Source, inside
from backends.weights.tables.torch_layer_norm import SOURCE as NORM
from backends.weights.tables.transformers_gpt2 import ACTIVATIONS, FREE, under


def dense(name: str, axes: str, canonical: str, letter: str) -> tuple[Row, ...]:
    """The rows of a projection."""
    outputs = axes.partition(" ")[0]
    return (
        Row(f"{name}.weight", f"{axes} -> {axes}", (f"{canonical}.W_{letter}",)),
        Row(f"{name}.bias", f"{outputs} -> {outputs}", (f"{canonical}.b_{letter}",)),
    )


LAYER = (
    *inside("layernorm_before", NORM.rows, canonical="norm_1"),
    *dense("attention.attention.query", "e e'", "self_attention", "q"),
    *dense("attention.attention.key", "e e'", "self_attention", "k"),
    *dense("attention.attention.value", "e e'", "self_attention", "v"),
    *dense("attention.output.dense", "e e'", "self_attention", "o"),
    *inside("layernorm_after", NORM.rows, canonical="norm_2"),
    *dense("intermediate.dense", "f e", "feed_forward", "1"),
    *dense("output.dense", "e f", "feed_forward", "2"),
)
PATCHES = "embeddings.patch_embeddings.projection"
KERNEL = "e channels patch_size patch_size' -> e (patch_size patch_size' channels)"

SOURCE = Source(
    name="transformers.ViTForImageClassification",
    layer="VisionTransformer",
    settings=Settings(
        ("transformers>vit",),
        needed={"qkv_bias": True},
        options={
            "layer_norm_eps": "epsilon",
            "num_attention_heads": "num_heads",
            "hidden_act": "activation",
            "image_size": "height width",
            "patch_size": "patch_size",
            "num_channels": "channels",
            "num_hidden_layers": "num_layers",
            "intermediate_size": "hidden_size",
        },
        values={"hidden_act": ACTIVATIONS},
        free=(*FREE, "hidden_size", "encoder_stride", "pooler_*", "layer_norm_type"),
    ),
    rows=(
        *under(
            "vit.",
            (
                Row("embeddings.cls_token", "1 1 e -> (1 1 e)", ("class_token",)),
                Row("embeddings.position_embeddings", "1 n e -> (1 n) e", ("positions.P",)),
                Row(f"{PATCHES}.weight", KERNEL, ("W_p",)),
                Row(f"{PATCHES}.bias", "e -> e", ("b_p",)),
                *inside("encoder.layer.{layer}", LAYER, canonical="layers.{layer}"),
                *inside("layernorm", NORM.rows, canonical="norm"),
            ),
        ),
        Row("classifier.weight", "l e -> l e", ("dense.W",)),
        Row("classifier.bias", "l -> l", ("dense.b",)),
    ),
)
