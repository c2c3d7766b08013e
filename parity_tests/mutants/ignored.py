"""Options and optional arguments that are ignored: one row each, the wrong function derived from the specification."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators import FILE_OF, find
from attention_core.specification import Layer
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import has_padding

METHODS = {"": "__init__", "call": "__call__"}
"""The names that Python has for the constructor and the call."""


def ignore(name: str, places: str, options: str, *, always: Any = None, **stated: Any) -> None:
    """Make a mutant in which options always have their defaults, or the value `always`, whatever is passed.

    A place is a function, a layer, of which the constructor is meant, or a layer's method, as LocalAttention.attend.
    Several places or options are one string, with spaces. The mutant is touched where another value is passed, unless
    a condition is stated; what else is stated goes to `mutant`.
    """
    first, *others = places.split()
    values = {option: _default(first, option) if always is None else always for option in options.split()}
    names = " and ".join(values)
    does = f"ignores {names}" if always is None else f"takes {always!r} for {names}, whatever is passed"
    stated.setdefault("sentence", f"{first} {does}.")
    stated.setdefault("touches", lambda arguments: any(_differ(arguments[name], values[name]) for name in values))
    mutant(*map(_path, (first, *others)), name=name, **stated)(lambda original: original(**values))


def _path(place: str) -> str:
    """The name of a place in the reference."""
    entry, _, method = place.partition(".")
    layer = isinstance(find(entry), Layer)
    return f"{FILE_OF[entry]}.{entry}.{METHODS.get(method, method)}" if layer else entry


def _default(place: str, name: str) -> Any:
    """The default of an option; None for an array that may be left out."""
    entry, _, method = place.partition(".")
    specified = find(entry)
    called = specified.method(method) if isinstance(specified, Layer) and method else specified
    return next((option.value for option in called.options if option.name == name), None)


def _differ(one: Any, other: Any) -> bool:
    return one is not other if one is None or other is None else not np.array_equal(one, other)


ignore("scale_ignored", "scaled_dot_score", "scale")
ignore("softcap_ignored", "scaled_dot_score", "softcap")
ignore("cosine_scale_ignored", "cosine_score", "scale")
ignore("kernel_width_ignored", "gaussian_score", "w")
ignore("causal_offset", "causal_mask", "offset")
ignore("window_offset", "window_mask", "offset")
ignore("block_offset", "block_mask", "offset")
ignore("stride_offset", "stride_mask", "offset")
ignore("window_left", "window_mask", "left", always=2)
ignore("window_right", "window_mask", "right", always=1)
ignore("block_size", "block_mask", "size", always=3)
ignore("stride_stride", "stride_mask", "stride", always=3)
ignore("threshold_ignored", "from_additive_mask", "threshold")
ignore("finite_ignored", "to_additive_mask", "finite")
ignore("dtype_ignored", "to_additive_mask", "dtype", touches=lambda finite, dtype: finite and dtype != "float32")
ignore(
    "dtype_overflows",
    "to_additive_mask",
    "dtype",
    touches=lambda finite: finite,
    sentence="The least finite number of float32 becomes -inf in float16.",
)
ignore("linear_causal_ignored", "linear_attention", "causal")
ignore("linear_lens_ignored", "linear_attention", "valid_lens", touches=has_padding)
ignore("layer_scale_ignored", "DotProductAttention", "scale")
ignore("layer_softcap_ignored", "DotProductAttention", "softcap")
ignore("heads_softcap_ignored", "MultiHeadAttention", "softcap")
ignore("bias_ignored", "DotProductAttention.attend", "bias")
ignore("heads_bias_ignored", "MultiHeadAttention.attend", "bias")
ignore("lowrank_scale_ignored", "LowRankAttention", "scale")
ignore("lowrank_dropout_ignored", "LowRankAttention.call", "dropout_mask")
ignore("compressed_scale_ignored", "CompressedAttention", "scale")
ignore("compressed_dropout_ignored", "CompressedAttention.call", "dropout_mask")
ignore("gather_dropout_ignored", "InducedAttention.call", "gather_dropout_mask")
ignore("spread_dropout_ignored", "InducedAttention.call", "dropout_mask")
ignore("segment_dropout_ignored", "SegmentAttention.call", "dropout_mask")
ignore("segment_heads_averaged", "SegmentAttention.call", "per_head")
ignore("vision_epsilon_ignored", "VisionTransformer", "epsilon")
ignore("vision_activation_ignored", "VisionTransformer", "activation")
for _dropped in ("embedding_dropout_mask", "self_dropout_mask", "hidden_dropout_mask", "dropout_mask"):
    ignore(f"vision_{_dropped}_ignored", "VisionTransformer.call", _dropped)
ignore("cosine_layer_unscaled", "CosineAttention", "scale")
ignore("width_of_the_layer_ignored", "KernelAttention", "width", cases="KernelAttention-* NadarayaWatson-*")
ignore("position_ignored", "DotProductAttention.extend", "position")
ignore(
    "mask_of_steps_ignored",
    "DotProductAttention.extend",
    "mask valid_lens",
    cases="DotProductAttention-extended_masked",
)
ignore("offset_ignored", "LocalAttention.attend", "offset", touches=lambda offset: np.any(offset))
ignore("noise_ignored", "HardAttention.attend", "noise")
ignore(
    "rotary_layout_of_heads_ignored",
    "MultiHeadAttention",
    "rotary_layout",
    always="interleaved",
    touches=lambda rotary_layout: rotary_layout == "concatenated",
    unseen="*-pruned_rotary",
)
ignore(
    "heads_rotated_by_halves",
    "MultiHeadAttention",
    "rotary_layout",
    always="concatenated",
    touches=lambda rotary_layout: rotary_layout == "interleaved",
)
ignore("rotary_base_of_heads_ignored", "MultiHeadAttention", "rotary_base")
ignore("offset_of_heads_ignored", "MultiHeadAttention.attend", "offset")
ignore("per_head_ignored", "MultiHeadAttention.attend", "per_head", cases="MultiHeadAttention-per_head")
ignore("head_mask_ignored", "MultiHeadAttention.attend", "head_mask")
ignore(
    "position_offset_ignored",
    "SinusoidalPositions.call LearnedPositions.call",
    "offset",
    sentence="Positions are counted from 0.",
)
ignore("layout_ignored", "SinusoidalPositions", "layout")
ignore(
    "sines_first",
    "SinusoidalPositions",
    "layout",
    always="concatenated",
    source="tensorflow/text#1122",
    sentence="All sines come first, then all cosines, whatever the layout.",
)
ignore("rotary_base_ignored", "RotaryPositions", "base")
ignore("rotary_offset_ignored", "RotaryPositions.call", "offset")
ignore("rotary_layout_ignored", "RotaryPositions", "layout")
ignore(
    "halves_rotated",
    "RotaryPositions",
    "layout",
    always="concatenated",
    source="vllm-project/vllm-ascend#12765",
    sentence="Pairs have a feature of each half, whatever the layout.",
)
ignore("alibi_offset_ignored", "alibi_bias", "offset")
ignore("alibi_dtype_ignored", "alibi_bias", "dtype", cases="alibi_bias-float64")
ignore("relative_offset_ignored", "relative_bias relative_buckets", "offset")
ignore(
    "max_distance_ignored",
    "relative_bias relative_buckets",
    "max_distance",
    unseen="relative_buckets-few",
    source="lucidrains/x-transformers#11",
)
ignore("buckets_both_ways", "relative_bias relative_buckets", "bidirectional")
ignore("buckets_one_way", "relative_bias relative_buckets", "bidirectional", always=False)
ignore("penalty_ignored", "BahdanauDecoder.beam", "length_penalty")
ignore(
    "bos_ignored",
    "BahdanauDecoder.greedy LuongDecoder.greedy",
    "bos",
    always=0,
    sentence="Greedy decoding begins with token 0.",
)
ignore("epsilon_of_keras", "adam", "epsilon", always=1e-7, unseen="adam-huge adam-zero")
ignore("decays_ignored", "adam", "beta1 beta2")
ignore(
    "not_clipped",
    "clip_by_global_norm",
    "max_norm",
    cases="clip_by_global_norm-* training-short_sgd",
    unseen="*-below *-met *-zero",
)
ignore(
    "decoder_sees_padding",
    "BahdanauDecoder.call LuongDecoder.call FixedContextDecoder.call",
    "valid_lens",
    cases="Translator-*",
    sentence="A translator's decoder attends to the padding of the sources.",
)
ignore("epsilon_of_keras_norm", "LayerNorm", "epsilon", always=1e-3, sentence="epsilon is 1e-3, as in Keras.")
ignore(
    "epsilon_of_float32",
    "RMSNorm",
    "epsilon",
    always=2.0**-23,
    sentence="epsilon is the eps of float32, as in PyTorch.",
)
