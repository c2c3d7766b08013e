"""The words of the names of arrays: those of frameworks that mean the same, and what they say of an array."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

LEAVES = {
    "weight": ("kernel", "gamma", "scale", "embedding", "embeddings", "table", "w", "g"),
    "bias": ("beta", "b"),
    "running_mean": ("moving_mean", "mean"),
    "running_var": ("moving_variance", "running_variance", "var"),
}
"""The last words of names, with those that mean the same in other frameworks."""

PARTS = {
    "query": ("q", "w_q", "q_proj", "q_lin", "wq", "to_q", "query_proj", "query_dense"),
    "key": ("k", "w_k", "k_proj", "k_lin", "wk", "to_k", "key_proj", "key_dense"),
    "value": ("v", "w_v", "v_proj", "v_lin", "wv", "to_v", "value_proj", "value_dense"),
    "out": ("o", "w_o", "out_proj", "o_proj", "out_lin", "wo", "to_out", "attention_output", "output_dense"),
    "attention": ("attn", "self_attn", "self_attention", "selfattention", "mha", "multi_head_attention"),
    "cross": ("encdecattention", "cross_attn", "cross_attention", "encoder_attn", "encdec_attention", "multihead_attn"),
    "norm": ("layernorm", "layer_norm", "ln", "layer_normalization", "rms_norm"),
    "embed": ("embedding", "embeddings", "embed_tokens", "wte"),
    "layers": ("layer", "blocks", "block", "h"),
}
"""The other words of names, with others for the same."""

NAMED = {
    "hidden": ("w_1", "fc1", "fc_1", "linear1", "c_fc", "wi", "gate_proj", "lin1", "dense_1", "inter_dense"),
    "down": ("w_2", "fc2", "fc_2", "linear2", "down_proj", "lin2", "dense_2"),
    "up": ("w_3", "fc3", "up_proj"),
    "norm 1": ("norm_1", "ln_1", "input_layernorm", "self_attn_layer_norm", "layernorm_before"),
    "norm 2": ("norm_2", "ln_2", "encoder_attn_layer_norm", "post_attention_layernorm", "layernorm_after"),
}
"""Names of layers in which a number, or a word of several, counts."""

STACKS = ("encoder", "decoder")

NUMBERED = {word: name for name, words in NAMED.items() for word in words}
LEAF = {word: name for name, words in LEAVES.items() for word in words}
PART = {word: name for name, words in PARTS.items() for word in words}


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in those of one framework, with numbers apart."""
    path = (NUMBERED.get(part, part) for part in re.split(r"[./:]", name.lower()))
    words = [word for part in path for word in re.split(r" |_(?=\d)|(?<=[a-z])(?=\d)", part) if word]
    parts = [PART.get(word, word) for word in words[:-1] if word not in ("params", "model", "module")]
    return (*parts, LEAF.get(words[-1], words[-1])) if words else ()


def group_of(words: Sequence[str]) -> tuple[str, ...]:
    """The block of layers that an array belongs to: the encoder or decoder, and the first number of the path."""
    stack = next((word for word in words if word in STACKS), "")
    return stack, next((word for word in words[:-1] if word.isdigit()), "")


def role_of(name: str) -> str:
    """What an array is by its last word, such as a weight or a bias; empty if that is not known."""
    word = leaf(name).lower()
    word = LEAF.get(word, word)
    return word if word in LEAVES else ""


def layer_of(name: str) -> str:
    """The path of the layer that an array belongs to."""
    return re.split(r"[./][^./]*$", name)[0] if re.search(r"[./]", name) else ""


def leaf(name: str) -> str:
    """The last word of a name, as its framework has it."""
    return re.split(r"[./]", name)[-1]
