"""The attention that frameworks bring with them, as targets.

Each module imports one framework, and nothing imports the modules: a worker does, by place. An object in one has
functions under the specification's names, which bring canonical arrays into the layout of the framework's call, hand
its mask over as its documentation says, and take what it returns. What a call does not take is not in the signature;
what it does not give is None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A call of a framework, and where it is as a target.

    backend is the one whose environment and switches it runs under; packages are those whose versions tell its own.
    takes is what it knows hidden keys by: a mask, or lengths. raw is an object that hands a mask over as it is, where
    the target itself does not.
    """

    module: str
    name: str
    call: str
    operator: str
    backend: str
    packages: tuple[str, ...]
    takes: str = "mask"
    raw: bool = False

    @property
    def id(self) -> str:
        """Framework and call."""
        return f"{self.module}:{self.name}"

    @property
    def place(self) -> str:
        """The target, as `attention-parity check` takes it."""
        return f"{__name__}.{self.id}"

    @property
    def raw_place(self) -> str:
        """The target that hands a mask over as it is."""
        return f"{self.place}.raw" if self.raw else self.place


DOT, HEADS = "DotProductAttention", "MultiHeadAttention"

PEERS = (
    Peer("torch", "scaled_dot_product_attention", "F.scaled_dot_product_attention", DOT, "torch", ("torch",)),
    Peer(
        "torch",
        "multihead_attention_train",
        "nn.MultiheadAttention, need_weights=False, train",
        HEADS,
        "torch",
        ("torch",),
        raw=True,
    ),
    Peer(
        "torch",
        "multihead_attention_eval",
        "nn.MultiheadAttention, need_weights=False, eval",
        HEADS,
        "torch",
        ("torch",),
        raw=True,
    ),
    Peer(
        "torch",
        "multihead_attention_weights_train",
        "nn.MultiheadAttention, need_weights=True, train",
        HEADS,
        "torch",
        ("torch",),
        raw=True,
    ),
    Peer(
        "torch",
        "multihead_attention_weights_eval",
        "nn.MultiheadAttention, need_weights=True, eval",
        HEADS,
        "torch",
        ("torch",),
        raw=True,
    ),
    Peer(
        "torch",
        "multihead_attention_fast",
        "nn.MultiheadAttention, eval, fast path",
        HEADS,
        "torch",
        ("torch",),
        raw=True,
    ),
    Peer("keras", "attention", "layers.Attention", DOT, "tf", ("keras", "tensorflow")),
    Peer("keras", "additive_attention", "layers.AdditiveAttention", "AdditiveAttention", "tf", ("keras", "tensorflow")),
    Peer("keras", "multi_head_attention", "layers.MultiHeadAttention", HEADS, "tf", ("keras", "tensorflow")),
    Peer(
        "keras",
        "multi_head_attention_scores",
        "layers.MultiHeadAttention, return_attention_scores=True",
        HEADS,
        "tf",
        ("keras", "tensorflow"),
    ),
    Peer("keras", "ops_dot_product_attention", "ops.dot_product_attention", DOT, "tf", ("keras", "tensorflow")),
    Peer("jax", "dot_product_attention", "jax.nn.dot_product_attention, mask", DOT, "jax", ("jax",)),
    Peer(
        "jax",
        "dot_product_attention_lengths",
        "jax.nn.dot_product_attention, key_value_seq_lengths",
        DOT,
        "jax",
        ("jax",),
        takes="lengths",
    ),
    Peer("flax", "nnx_dot_product_attention", "nnx.dot_product_attention", DOT, "jax", ("flax", "jax")),
    Peer("flax", "nnx_multi_head_attention", "nnx.MultiHeadAttention", HEADS, "jax", ("flax", "jax")),
    Peer("flax", "linen_dot_product_attention", "linen.dot_product_attention", DOT, "jax", ("flax", "jax")),
    Peer("flax", "linen_multi_head_attention", "linen.MultiHeadDotProductAttention", HEADS, "jax", ("flax", "jax")),
    Peer("mxnet", "softmax_use_length", "npx.softmax, use_length=True", DOT, "mxnet", ("mxnet",), takes="lengths"),
    Peer("onnx", "reference_attention", "onnx.reference, attn_mask", DOT, "onnx", ("onnx",)),
    Peer(
        "onnx",
        "reference_attention_lengths",
        "onnx.reference, nonpad_kv_seqlen",
        DOT,
        "onnx",
        ("onnx",),
        takes="lengths",
    ),
    Peer("onnx", "onnxruntime_attention", "onnxruntime, attn_mask", DOT, "onnx", ("onnxruntime", "onnx")),
    Peer(
        "onnx",
        "onnxruntime_attention_lengths",
        "onnxruntime, nonpad_kv_seqlen",
        DOT,
        "onnx",
        ("onnxruntime", "onnx"),
        takes="lengths",
    ),
)
