"""Llama and Mistral of transformers: a causal stack with RMS norms, rotary positions, a gated network and no biases.

Its embedding is not multiplied by √features, as ours is. The logits are the outputs times lm_head, or the embedding.
https://huggingface.co/docs/transformers/model_doc/llama
"""

from __future__ import annotations

from backends.weights.table import COMPUTES_PADDING, Row, Settings, Source, inside
from backends.weights.tables.transformers_gpt2 import ACTIVATIONS, FREE, HEAD, under

BIASES = "biases of the attention alone; the specification has them in all of a layer's matrices, or in none"

LAYER = (
    Row("input_layernorm.weight", "e -> e", ("norm_1.g",)),
    Row("self_attn.q_proj.weight", "q e -> q e", ("self_attention.W_q",)),
    Row("self_attn.k_proj.weight", "k e -> k e", ("self_attention.W_k",)),
    Row("self_attn.v_proj.weight", "k e -> k e", ("self_attention.W_v",)),
    Row("self_attn.o_proj.weight", "e q -> e q", ("self_attention.W_o",)),
    *(Row.absent(f"self_attn.{one}_proj.bias", BIASES) for one in "qkvo"),
    Row("self_attn.rotary_emb.inv_freq", optional="rates"),
    Row("post_attention_layernorm.weight", "e -> e", ("norm_2.g",)),
    Row("mlp.gate_proj.weight", "f e -> f e", ("feed_forward.W_1",)),
    Row("mlp.up_proj.weight", "f e -> f e", ("feed_forward.W_3",)),
    Row("mlp.down_proj.weight", "e f -> e f", ("feed_forward.W_2",)),
)

SOURCE = Source(
    name="transformers.LlamaModel",
    layer="TransformerEncoder",
    warnings=(COMPUTES_PADDING,),
    config={
        "score": "scaled_dot",
        "rms": True,
        "norm": "pre",
        "causal": True,
        "gated": True,
        "bias": False,
        "positions": "rotary",
        "rotary_layout": "concatenated",
    },
    settings=Settings(
        ("transformers>llama", "transformers>mistral"),
        needed={
            "attention_bias": False,
            "mlp_bias": False,
            "rope_scaling": None,
            "sliding_window": None,
            "rope_parameters.rope_type": "default",
            "pretraining_tp": 1,
        },
        options={
            "rms_norm_eps": "epsilon",
            "num_attention_heads": "num_heads",
            "num_key_value_heads": "num_key_heads",
            "hidden_act": "activation",
            "rope_theta": "rotary_base",
            "rope_parameters.rope_theta": "rotary_base",
        },
        values={"hidden_act": ACTIVATIONS},
        free=(*FREE, "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    ),
    rows=(
        *under(
            "model.",
            (
                Row("embed_tokens.weight", "s e -> s e", ("embedding",), per_root="e"),
                *inside("layers.{layer}", LAYER),
                Row("norm.weight", "e -> e", ("norm.g",)),
            ),
        ),
        HEAD,
    ),
)
