"""GPT-2 of transformers: a causal stack whose matrices are (inputs, outputs), those of queries, keys and values in one.

Its embedding is not multiplied by √features, as ours is. The logits are the outputs times the embedding, or lm_head.
https://huggingface.co/docs/transformers/model_doc/gpt2
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.weights.table import COMPUTES_PADDING, Row, Settings, Source, inside
from backends.weights.tables.torch_layer_norm import SOURCE as NORM

ACTIVATIONS = {
    **{name: name for name in ("relu", "gelu", "silu")},
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
"""The activations of transformers that are options here."""
FREE = (
    *("model_type", "architectures", "*dtype", "transformers_version", "_name_or_path", "_commit_hash", "auto_map"),
    *("*_token_id", "vocab_size", "*_vocab_size", "id2label", "label2id", "num_labels", "problem_type", "use_cache"),
    *("*dropout*", "*_pdrop", "*drop", "initializer_*", "init_std", "*tie_*", "is_*", "return_dict", "output_*"),
    *("*_length", "*_penalty", "num_beam*", "temperature", "top_*", "typical_p", "do_sample", "early_stopping"),
    *("task_specific_params", "summary_*", "prefix", "num_return_sequences", "torchscript", "remove_invalid_values"),
    *("max_position_embeddings", "n_positions", "n_ctx", "chunk_size_feed_forward", "use_bfloat16", "*_layerdrop"),
)
"""Settings of transformers that change no output, or are sizes of arrays, as patterns."""


def under(start: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of a model alone, and of one with a head, where the names have a prefix."""
    return tuple(row.under(start) for row in rows)


HEAD = Row("lm_head.weight", "s e -> s e", ("*head",), optional="head")
"""The logits of a language model, beside the stack; absent if it shares the embedding."""

LAYER = (
    *inside("ln_1", NORM.rows, canonical="norm_1"),
    Row("attn.c_attn.weight", "e (3 e') -> 3 e' e", tuple(f"self_attention.W_{one}" for one in "qkv")),
    Row("attn.c_attn.bias", "(3 e) -> 3 e", tuple(f"self_attention.b_{one}" for one in "qkv")),
    Row("attn.c_proj.weight", "e e' -> e' e", ("self_attention.W_o",)),
    Row("attn.c_proj.bias", "e -> e", ("self_attention.b_o",)),
    *inside("ln_2", NORM.rows, canonical="norm_2"),
    Row("mlp.c_fc.weight", "e f -> f e", ("feed_forward.W_1",)),
    Row("mlp.c_fc.bias", "f -> f", ("feed_forward.b_1",)),
    Row("mlp.c_proj.weight", "f e -> e f", ("feed_forward.W_2",)),
    Row("mlp.c_proj.bias", "e -> e", ("feed_forward.b_2",)),
    Row("attn.bias", optional="causal mask"),
    Row("attn.masked_bias", optional="fill of the mask"),
)

SOURCE = Source(
    name="transformers.GPT2Model",
    layer="TransformerEncoder",
    warnings=(COMPUTES_PADDING,),
    config={"score": "scaled_dot", "rms": False, "norm": "pre", "causal": True},
    settings=Settings(
        ("transformers>gpt2",),
        needed={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        options={"layer_norm_epsilon": "epsilon", "n_head": "num_heads", "activation_function": "activation"},
        values={"activation_function": ACTIVATIONS},
        free=(*FREE, "n_embd", "n_layer", "n_inner", "reorder_and_upcast_attn"),
    ),
    rows=(
        *under(
            "transformer.",
            (
                Row("wte.weight", "s e -> s e", ("embedding",), per_root="e"),
                Row("wpe.weight", "n e -> n e", ("positions.P",)),
                *inside("h.{layer}", LAYER, canonical="layers.{layer}"),
                *inside("ln_f", NORM.rows, canonical="norm"),
            ),
        ),
        HEAD,
    ),
)
