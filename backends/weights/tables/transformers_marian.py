"""Marian of transformers, whose stacks share an embedding: the paper's Transformer, with sines and cosines in halves.

Its file has no positions; final_logits_bias, which no training changes, has to be 0.
https://huggingface.co/docs/transformers/model_doc/marian
"""

from __future__ import annotations

from backends.weights.table import COMPUTES_PADDING, Row, Settings, Source, inside
from backends.weights.tables.torch_layer_norm import SOURCE as NORM
from backends.weights.tables.transformers_gpt2 import ACTIVATIONS, FREE
from backends.weights.tables.transformers_vit import dense

BIAS = "the logits of layers that share their embedding have no bias"


def heads(name: str, canonical: str) -> tuple[Row, ...]:
    """The rows of an attention."""
    letters = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
    return tuple(row for one, letter in letters.items() for row in dense(f"{name}.{one}", "e e'", canonical, letter))


def stack(*attentions: tuple[str, str]) -> tuple[Row, ...]:
    """The rows of a stack whose layers have these attentions, by their names here and there."""
    layer: list[Row] = []
    for number, (name, canonical) in enumerate(attentions, start=1):
        layer += (*heads(name, canonical), *inside(f"{name}_layer_norm", NORM.rows, canonical=f"norm_{number}"))
    layer += inside("final_layer_norm", NORM.rows, canonical=f"norm_{len(attentions) + 1}")
    layer += (*dense("fc1", "f e", "feed_forward", "1"), *dense("fc2", "e f", "feed_forward", "2"))
    return inside("layers.{layer}", layer)


SELF, CROSS = ("self_attn", "self_attention"), ("encoder_attn", "cross_attention")

SOURCE = Source(
    name="transformers.MarianMTModel",
    layer="TransformerTranslator",
    warnings=(COMPUTES_PADDING,),
    config={
        "score": "scaled_dot",
        "rms": False,
        "norm": "post",
        "positions": "learned",
        "shared": True,
        "tied": True,
    },
    sinusoids=("encoder.positions.P", "decoder.positions.P"),
    settings=Settings(
        ("transformers>marian",),
        needed={"scale_embedding": True, "share_encoder_decoder_embeddings": True, "normalize_before": False},
        options={
            "encoder_attention_heads": "num_heads",
            "decoder_attention_heads": "num_heads",
            "activation_function": "activation",
            "max_position_embeddings": "num_positions",
        },
        values={"activation_function": ACTIVATIONS},
        free=(
            *FREE,
            *("d_model", "*coder_ffn_dim", "*coder_layers", "num_hidden_layers", "classifier_dropout", "normalize_*"),
            *("add_bias_logits", "add_final_layer_norm", "static_position_embeddings", "extra_pos_embeddings"),
        ),
        fixed={"epsilon": 1e-5},
    ),
    rows=(
        Row("model.shared.weight", "s e -> s e", ("decoder.embedding",)),
        *(
            Row(name, optional=name, same_as="model.shared.weight")
            for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
        ),
        *(Row(f"model.{part}.embed_positions.weight", optional=f"{part} positions") for part in ("encoder", "decoder")),
        *inside("model.encoder", stack(SELF), canonical="encoder"),
        *inside("model.decoder", stack(SELF, CROSS), canonical="decoder"),
        Row.zeros("final_logits_bias", "1 s", BIAS, optional="bias of the logits"),
    ),
)
