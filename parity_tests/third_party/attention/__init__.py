"""The frameworks' own attention as targets of the parity tests.

Each module imports one framework, and a worker imports the module by name: nothing else does. An object in it has
functions under the specification's names, which bring canonical arrays into the layout of the framework's call, pass
its mask as its documentation says, and return what the call gives. An argument that the call does not have is not in
the signature; an output that it does not give is None.
"""

from __future__ import annotations

from dataclasses import dataclass

BACKENDS = {
    "torch": "torch",
    "keras": "tf",
    "keras_torch": "torch",
    "keras_jax": "jax",
    "jax": "jax",
    "flax": "jax",
    "mxnet": "mxnet",
    "onnx": "onnx",
    "mlx": "mlx",
}
"""The environment and settings that each module runs under: those of a backend, of onnx, or of mlx."""

PACKAGES = {
    "torch": ("torch",),
    "keras": ("keras", "tensorflow"),
    "keras_torch": ("keras", "torch"),
    "keras_jax": ("keras", "jax"),
    "jax": ("jax",),
    "flax": ("flax", "jax"),
    "mxnet": ("mxnet",),
    "onnx": ("onnx",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "mlx": ("mlx",),
}
"""The packages whose versions a finding names, by module, or by the first word of a name."""


@dataclass(frozen=True)
class ThirdParty:
    """A framework's own call, and the target that runs it.

    takes is what hides keys: "mask", or "lengths". raw says that the target's function takes raw=True and then passes
    the mask as it is, where it is inverted otherwise. undefined names the questions that are not put to it: its call
    then reads or writes memory outside its arrays, so the answer, and any later one of the process, is by chance.
    leaves names those that cannot be put, since the target brings the arrays into another shape. asks names the only
    ones that are put to it, if it differs from another target in their answers alone.
    """

    module: str
    name: str
    call: str
    operator: str
    takes: str = "mask"
    raw: bool = False
    undefined: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Module and name."""
        return f"{self.module}:{self.name}"

    @property
    def place(self) -> str:
        """The target, as `attention-parity check` takes it."""
        return f"{__name__}.{self.id}"

    @property
    def backend(self) -> str:
        """The backend of the same framework, or onnx or mlx."""
        return BACKENDS[self.module]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions a finding names."""
        return PACKAGES.get(self.name.partition("_")[0], PACKAGES[self.module])


DOT, HEADS = "DotProductAttention", "MultiHeadAttention"
MODULE = "nn.MultiheadAttention"
LAYER = "nn.TransformerEncoderLayer"
ENCODER = ("fully_masked", "hidden_value", "hidden_key", "polarity", "float_mask", "left_padding")
STEPS = ("steps", "steps_causal")
OF_BACKENDS = ("fully_masked", "polarity", "float_mask", "left_padding", "causal", "mask_and_causal", "key_head")
CAUSAL = ("causal", "causal_one", "mask_and_causal", "padding_and_causal")

THIRD_PARTY = (
    ThirdParty("torch", "scaled_dot_product_attention", "F.scaled_dot_product_attention", DOT),
    ThirdParty("torch", "multihead_attention_train", f"{MODULE}, need_weights=False, train", HEADS, raw=True),
    ThirdParty("torch", "multihead_attention_eval", f"{MODULE}, need_weights=False, eval", HEADS, raw=True),
    ThirdParty("torch", "multihead_attention_weights_train", f"{MODULE}, need_weights=True, train", HEADS, raw=True),
    ThirdParty("torch", "multihead_attention_weights_eval", f"{MODULE}, need_weights=True, eval", HEADS, raw=True),
    ThirdParty("torch", "multihead_attention_fast", f"{MODULE}, eval, fast path", HEADS, raw=True, leaves=CAUSAL),
    ThirdParty("torch", "transformer_encoder_layer_train", f"{LAYER}, train", HEADS, raw=True, asks=ENCODER),
    ThirdParty("torch", "transformer_encoder_layer_eval", f"{LAYER}, eval", HEADS, raw=True, asks=ENCODER),
    ThirdParty("torch", "transformer_encoder_layer_fast", f"{LAYER}, eval, fast path", HEADS, raw=True, asks=ENCODER),
    ThirdParty("torch", "flex_attention_eager", "flex_attention", DOT),
    ThirdParty("keras", "attention", "layers.Attention", DOT, leaves=("mask_and_causal",)),
    ThirdParty(
        "keras", "additive_attention", "layers.AdditiveAttention", "AdditiveAttention", leaves=("mask_and_causal",)
    ),
    ThirdParty("keras", "multi_head_attention", "layers.MultiHeadAttention", HEADS),
    ThirdParty(
        "keras", "multi_head_attention_scores", "layers.MultiHeadAttention, return_attention_scores=True", HEADS
    ),
    ThirdParty("keras", "group_query_attention", "layers.GroupQueryAttention", HEADS),
    ThirdParty("keras", "ops_dot_product_attention", "ops.dot_product_attention", DOT),
    *(
        ThirdParty(f"keras_{backend}", name, f"{call}, KERAS_BACKEND={backend}", operator, asks=OF_BACKENDS)
        for backend in ("torch", "jax")
        for name, call, operator in (
            ("multi_head_attention", "layers.MultiHeadAttention", HEADS),
            ("group_query_attention", "layers.GroupQueryAttention", HEADS),
            ("ops_dot_product_attention", "ops.dot_product_attention", DOT),
        )
    ),
    ThirdParty("jax", "dot_product_attention", "jax.nn.dot_product_attention, mask", DOT),
    ThirdParty(
        "jax", "dot_product_attention_lengths", "jax.nn.dot_product_attention, key_value_seq_lengths", DOT, "lengths"
    ),
    ThirdParty("jax", "dot_product_attention_bias", "jax.nn.dot_product_attention, bias", DOT, asks=("float_mask",)),
    ThirdParty(
        "jax",
        "dot_product_attention_window",
        "jax.nn.dot_product_attention, local_window_size",
        DOT,
        asks=("causal", "causal_one"),
    ),
    ThirdParty("flax", "nnx_dot_product_attention", "nnx.dot_product_attention", DOT),
    ThirdParty("flax", "nnx_multi_head_attention", "nnx.MultiHeadAttention", HEADS),
    ThirdParty("flax", "linen_dot_product_attention", "linen.dot_product_attention", DOT),
    ThirdParty("flax", "linen_multi_head_attention", "linen.MultiHeadDotProductAttention", HEADS),
    ThirdParty("flax", "nnx_multi_head_attention_decode", "nnx.MultiHeadAttention, decode=True", HEADS, asks=STEPS),
    ThirdParty(
        "flax",
        "linen_multi_head_attention_decode",
        "linen.MultiHeadDotProductAttention, decode=True",
        HEADS,
        asks=STEPS,
    ),
    ThirdParty(
        "mxnet",
        "softmax_use_length",
        "npx.softmax, use_length=True",
        DOT,
        "lengths",
        undefined=("beyond", "below"),  # shown by test_mxnet_traps
    ),
    ThirdParty("onnx", "reference_attention", "onnx.reference, attn_mask", DOT),
    ThirdParty("onnx", "reference_attention_lengths", "onnx.reference, nonpad_kv_seqlen", DOT, "lengths"),
    ThirdParty("onnx", "onnxruntime_attention", "onnxruntime, attn_mask", DOT),
    ThirdParty("onnx", "onnxruntime_attention_lengths", "onnxruntime, nonpad_kv_seqlen", DOT, "lengths"),
    ThirdParty(
        "mlx",
        "fast_attention",
        "mx.fast.scaled_dot_product_attention",
        DOT,
        leaves=("mask_and_causal", "padding_and_causal"),  # one argument takes a mask or "causal"
    ),
)
