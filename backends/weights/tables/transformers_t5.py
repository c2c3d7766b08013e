"""T5 of transformers, whose stacks share an embedding: RMS norms, a learned bias for each distance, no scale or biases.

Its embedding is not multiplied by √features, as ours is; its logits are divided by it if they share the embedding.
https://huggingface.co/docs/transformers/model_doc/t5
"""

from __future__ import annotations

from dataclasses import replace

from backends.weights.table import COMPUTES_PADDING, Fixed, Row, Settings, Source, inside
from backends.weights.tables.transformers_gpt2 import ACTIVATIONS, FREE

RELATIVE = "relative_attention_bias.weight"


def heads(name: str, canonical: str) -> tuple[Row, ...]:
    """The rows of an attention."""
    return tuple(
        Row(f"{name}.{one}.weight", axes, (f"{canonical}.W_{one}",))
        for one, axes in (("q", "q e -> q e"), ("k", "q e -> q e"), ("v", "q e -> q e"), ("o", "e q -> e q"))
    )


def stack(gated: bool, crosses: bool) -> tuple[Row, ...]:
    """The rows of a stack; the bias of distances is in its first layer, and acts in all."""
    last = 2 if crosses else 1
    network = {"wi_0": 1, "wi_1": 3} if gated else {"wi": 1}
    part = f"layer.{last}.DenseReluDense"
    layer = (
        *heads("layer.0.SelfAttention", "self_attention"),
        *(heads("layer.1.EncDecAttention", "cross_attention") if crosses else ()),
        *(Row(f"layer.{n}.layer_norm.weight", "e -> e", (f"norm_{n + 1}.g",)) for n in range(last + 1)),
        *(Row(f"{part}.{name}.weight", "f e -> f e", (f"feed_forward.W_{n}",)) for name, n in network.items()),
        Row(f"{part}.wo.weight", "e f -> e f", ("feed_forward.W_2",)),
    )
    return (
        Row(f"block.0.layer.0.SelfAttention.{RELATIVE}", "n num_heads -> n num_heads", ("bias_table",)),
        *inside("block.{layer}", layer, canonical="layers.{layer}"),
        Row("final_layer_norm.weight", "e -> e", ("norm.g",)),
    )


def table(gated: bool, tied: bool) -> Source:
    """The table of T5, or of its version 1.1, which is gated and has logits of its own."""
    head = (
        Row("lm_head.weight", optional="shared head", same_as="shared.weight")
        if tied
        else Row("lm_head.weight", "s e -> s e", ("decoder.dense.W",))
    )
    fixed = {"score": "dot", "rms": True, "norm": "pre", "bias": False, "positions": "relative", "gated": gated}
    return Source(
        name="transformers.T5ForConditionalGeneration",
        layer="TransformerTranslator",
        warnings=(COMPUTES_PADDING,),
        config={**fixed, "shared": True, "tied": tied},
        fixed={} if tied else {"decoder.dense.b": Fixed("its logits have no biases", like="decoder.dense.W")},
        rows=(
            Row("shared.weight", "s e -> s e", ("decoder.embedding",), per_root="e"),
            *(
                Row(f"{part}.embed_tokens.weight", optional=f"{part} embedding", same_as="shared.weight")
                for part in ("encoder", "decoder")
            ),
            *inside("encoder", stack(gated, False)),
            *inside("decoder", stack(gated, True)),
            head,
        ),
    )


SOURCE = replace(
    table(gated=False, tied=True),
    also=(table(gated=True, tied=True), table(gated=False, tied=False), table(gated=True, tied=False)),
    settings=Settings(
        ("transformers>t5", "transformers>mt5"),
        options={
            "layer_norm_epsilon": "epsilon",
            "num_heads": "num_heads",
            "dense_act_fn": "activation",
            "relative_attention_max_distance": "max_distance",
            "scale_decoder_outputs": "tied",
        },
        values={"dense_act_fn": ACTIVATIONS},
        free=(
            *FREE,
            *("d_ff", "d_kv", "d_model", "num_layers", "num_decoder_layers", "feed_forward_proj", "n_positions"),
            *("relative_attention_num_buckets", "initializer_factor", "tokenizer_class"),
        ),
    ),
)
