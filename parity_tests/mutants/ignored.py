"""Options and optional arguments that are ignored: one row each, the wrong function derived from the specification."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators import FILE_OF, find
from attention_core.specification import Layer
from parity_tests.mutants.mutant import mutant, several

METHODS = {"": "__init__", "call": "__call__"}
"""The names that Python has for the constructor and the call."""


def ignored(
    name: str, places: str, options: str, *, red: str = "", cases: str = "", always: Any = None, **stated: Any
) -> None:
    """Make a mutant in which options always have their defaults, or the value `always`, whatever is passed.

    A place is a function, a layer, of which the constructor is meant, or a layer's method, as LocalAttention.attend.
    A function runs all of its cases; a layer its case `open` and those that have to be red, unless cases are given. The
    rest of what is stated goes to `mutant`. Several places or options are one string, as `mutant` takes them.
    """
    first, *others = several(places)
    values = {option: _default(first, option) if always is None else always for option in several(options)}
    names = " and ".join(values)
    does = f"ignores {names}" if always is None else f"takes {always!r} for {names}, whatever is passed"
    stated.setdefault("sentence", f"{first} {does}.")
    if not cases:
        entry = first.partition(".")[0]
        to_be_red = (pattern.partition(":")[0] for pattern in several(red))
        cases = " ".join((f"{entry}-open", *to_be_red)) if isinstance(find(entry), Layer) else f"{entry}-*"
    of = " ".join(map(_path, (first, *others)))
    mutant(cases, of=of, red=red, name=name, **stated)(lambda original: original(**values))


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


ignored("scale_ignored", "scaled_dot_score", "scale", red="scaled_dot_score-scale:*")
ignored("softcap_ignored", "scaled_dot_score", "softcap", red="scaled_dot_score-softcap*:*")
ignored("cosine_scale_ignored", "cosine_score", "scale", red="cosine_score-scale:*")
ignored("kernel_width_ignored", "gaussian_score", "w", red="gaussian_score-width:*")
ignored("causal_offset", "causal_mask", "offset", red="causal_mask-offset*:mask")
ignored("window_offset", "window_mask", "offset", red="window_mask-offset*:mask")
ignored("block_offset", "block_mask", "offset", red="block_mask-offset*:mask")
ignored("stride_offset", "stride_mask", "offset", red="stride_mask-offset*:mask")
ignored("window_left", "window_mask", "left", always=2, red="window_mask-{left,right}:mask")
ignored("window_right", "window_mask", "right", always=1, red="window_mask-{left,right}:mask")
ignored("block_size", "block_mask", "size", always=3, red="block_mask-ones:mask")
ignored("stride_stride", "stride_mask", "stride", always=3, red="stride_mask-one:mask")
ignored("threshold_ignored", "from_additive_mask", "threshold", red="from_additive_mask-{threshold,low_threshold}:mask")
ignored("finite_ignored", "to_additive_mask", "finite", red="to_additive_mask-finite_float64:additive_mask")
ignored("dtype_ignored", "to_additive_mask", "dtype", red="to_additive_mask-finite_float64:additive_mask")
ignored(
    "dtype_overflows",
    "to_additive_mask",
    "dtype",
    red="to_additive_mask-finite_float16:additive_mask",
    dtype="float16",
    sentence="The least finite number of float32 becomes -inf in float16.",
)
ignored(
    "dropout_ignored",
    "attention_pooling",
    "dropout_mask",
    red="attention_pooling-dropout:* *:gradient_dropout_mask",
    green="*:weights",
)
ignored("linear_causal_ignored", "linear_attention", "causal", red="linear_attention-causal*:*")
ignored(
    "linear_lens_ignored",
    "linear_attention",
    "valid_lens",
    red="linear_attention-{ragged,lens_and_mask,fully_masked,heads,hidden_*,causal_heads}:*",
)
ignored("layer_scale_ignored", "DotProductAttention", "scale", red="DotProductAttention-scale:*")
ignored("layer_softcap_ignored", "DotProductAttention", "softcap", red="DotProductAttention-*softcap:*")
ignored(
    "heads_softcap_ignored",
    "MultiHeadAttention",
    "softcap",
    red="MultiHeadAttention-softcap:*",
    green="*:gradient_b_{v,o}",
)
ignored(
    "bias_ignored",
    "DotProductAttention.attend",
    "bias",
    red="DotProductAttention-{bias_keys,bias_heads,bias_all,bias_softcap,context_bias_all}:*",
)
ignored(
    "heads_bias_ignored",
    "MultiHeadAttention.attend",
    "bias",
    red="MultiHeadAttention-bias_{keys,heads,all}:*",
    green="*:gradient_b_{k,v,o}",
)
for _layer in ("LowRankAttention", "CompressedAttention"):
    _name = _layer.removesuffix("Attention").lower()
    ignored(f"{_name}_scale_ignored", _layer, "scale", red=f"{_layer}-scale:*", green="*:gradient_b_{k,v}")
    ignored(
        f"{_name}_dropout_ignored",
        f"{_layer}.call",
        "dropout_mask",
        red=f"{_layer}-dropout:*",
        green="*:{weights,gradient_b_k}",
    )
ignored(
    "gather_dropout_ignored",
    "InducedAttention.call",
    "gather_dropout_mask",
    red="InducedAttention-gather_dropout:*",
    green="*:gradient_{gather.b_k,gather.b_o,spread.b_k,spread.b_v,spread.b_o}",
)
ignored(
    "spread_dropout_ignored",
    "InducedAttention.call",
    "dropout_mask",
    red="InducedAttention-dropout:*",
    green="*:{weights,gradient_{gather,spread}.b_k,gradient_spread.b_o}",
)
ignored(
    "segment_dropout_ignored",
    "SegmentAttention.call",
    "dropout_mask",
    red="SegmentAttention-dropout:* SegmentAttention-open:gradient_dropout_mask",
    green="*:{weights,gradient_b_k,gradient_b_o}",
)
ignored("segment_heads_averaged", "SegmentAttention.call", "per_head", red="SegmentAttention-heads_mask:*")
ignored(
    "vision_epsilon_ignored",
    "VisionTransformer",
    "epsilon",
    red="VisionTransformer-epsilon:*",
    green="*:gradient_{dense.b,norm.b,*self_attention.b_k}",
    cases="VisionTransformer-{plain,epsilon}",
)
ignored(
    "vision_activation_ignored",
    "VisionTransformer",
    "activation",
    red="VisionTransformer-{relu,silu}:*",
    green="*:gradient_{dense.b,norm.b,*self_attention.b_k}",
    cases="VisionTransformer-{plain,relu,silu}",
)
for _dropped in ("embedding_dropout_mask", "self_dropout_mask", "hidden_dropout_mask", "dropout_mask"):
    ignored(
        f"vision_{_dropped}_ignored",
        "VisionTransformer.call",
        _dropped,
        red="VisionTransformer-dropout:*",
        green="*:gradient_{dense.b,norm.b,*self_attention.b_k}",
        cases="VisionTransformer-{plain,dropout}",
    )
ignored("cosine_layer_unscaled", "CosineAttention", "scale", red="CosineAttention-scale:*")
ignored(
    "width_of_the_layer_ignored",
    "KernelAttention",
    "width",
    cases="KernelAttention-{constant,width} NadarayaWatson-width",
    red="*-width:*",
)
ignored("position_ignored", "DotProductAttention.extend", "position", red="DotProductAttention-extended_{at,over}:*")
ignored(
    "mask_of_steps_ignored",
    "DotProductAttention.extend",
    "mask valid_lens",
    red="DotProductAttention-extended_masked:*",
)
ignored("offset_ignored", "LocalAttention.attend", "offset", red="LocalAttention-offset:*")
ignored(
    "noise_ignored",
    "HardAttention.attend",
    "noise",
    red="HardAttention-noise*:*",
    green="*:gradient_{queries,keys,scored*,noise}",
)
for _option in ("rotary_layout", "rotary_base"):
    ignored(
        f"{_option}_of_heads_ignored",
        "MultiHeadAttention",
        _option,
        always="interleaved" if _option == "rotary_layout" else None,
        cases="MultiHeadAttention-{rotary,rotary_halves}",
        red="MultiHeadAttention-rotary_halves:*",
        green="*:gradient_b_{v,o}",
    )
ignored(
    "offset_of_heads_ignored",
    "MultiHeadAttention.attend",
    "offset",
    cases="MultiHeadAttention-{rotary,rotary_halves,rotary_offset,extended_rotary*}",
    red="MultiHeadAttention-{rotary_halves,rotary_offset,extended_rotary*}:*",
    green="*:gradient_b_{v,o}",
)
ignored("per_head_ignored", "MultiHeadAttention.attend", "per_head", red="MultiHeadAttention-per_head:*")
ignored(
    "head_mask_ignored",
    "MultiHeadAttention.attend",
    "head_mask",
    cases="MultiHeadAttention-{none,head_mask*}",
    red="MultiHeadAttention-head_mask*:*",
    green="*:{weights,gradient_b_k,gradient_b_o}",
)
ignored(
    "position_offset_ignored",
    "{Sinusoidal,Learned}Positions.call",
    "offset",
    cases="{Sinusoidal,Learned}Positions-*",
    red="*Positions-offset:outputs LearnedPositions-offset:gradient_P",
    sentence="Positions are counted from 0.",
)
ignored(
    "layout_ignored",
    "SinusoidalPositions",
    "layout",
    cases="SinusoidalPositions-*",
    red="SinusoidalPositions-concatenated:outputs",
)
ignored(
    "sines_first",
    "SinusoidalPositions",
    "layout",
    always="concatenated",
    cases="SinusoidalPositions-*",
    touches=lambda case: case.inputs["inputs"].size > 0 and case.config.get("layout") != "concatenated",
    source="tensorflow/text#1122",
    sentence="All sines come first, then all cosines, whatever the layout.",
)
ignored("rotary_base_ignored", "RotaryPositions", "base", cases="RotaryPositions-*", red="RotaryPositions-base:*")
ignored(
    "rotary_offset_ignored",
    "RotaryPositions.call",
    "offset",
    cases="RotaryPositions-*",
    red="RotaryPositions-{offset,offsets,far,concatenated,base,heads}:*",
)
ignored(
    "rotary_layout_ignored",
    "RotaryPositions",
    "layout",
    cases="RotaryPositions-*",
    red="RotaryPositions-{concatenated,heads_concatenated}:*",
)
ignored(
    "halves_rotated",
    "RotaryPositions",
    "layout",
    always="concatenated",
    cases="RotaryPositions-*",
    touches=lambda case: (
        case.inputs["inputs"].size > 0
        and case.inputs["inputs"].shape[-1] > 2
        and case.config.get("layout") != "concatenated"
        and (case.inputs["inputs"].shape[-2] > 1 or bool(np.any(case.inputs.get("offset", 0))))
    ),
    source="vllm-project/vllm-ascend#12765",
    sentence="Pairs have a feature of each half, whatever the layout.",
)
ignored("alibi_offset_ignored", "alibi_bias", "offset", red="alibi_bias-{float64,offset}:bias")
ignored("alibi_dtype_ignored", "alibi_bias", "dtype", red="alibi_bias-float64:bias")
ignored(
    "relative_offset_ignored",
    "relative_bias relative_buckets",
    "offset",
    cases="relative_*",
    red=(
        "relative_{bias,buckets}-{offset,offsets,one_direction,long}:* "
        "relative_buckets-{odd,power,long_one_direction}:*"
    ),
)
ignored(
    "max_distance_ignored",
    "relative_bias relative_buckets",
    "max_distance",
    cases="relative_*",
    red="relative_{bias,buckets}-{plain,offset,offsets,one_direction}:* relative_buckets-{odd,power}:*",
    source="lucidrains/x-transformers#11",
)
ignored(
    "buckets_both_ways",
    "relative_bias relative_buckets",
    "bidirectional",
    cases="relative_*",
    red="relative_{bias,buckets}-one_direction:* relative_buckets-{power,long_one_direction}:*",
)
ignored(
    "buckets_one_way",
    "relative_bias relative_buckets",
    "bidirectional",
    always=False,
    cases="relative_*",
    red="relative_{bias,buckets}-{plain,offset,offsets,long}:* relative_buckets-{odd,few}:*",
)
ignored(
    "penalty_ignored",
    "BahdanauDecoder.beam",
    "length_penalty",
    cases="BahdanauDecoder-beam*",
    red="BahdanauDecoder-beam_penalty:scores",
)
ignored(
    "bos_ignored",
    "{Bahdanau,Luong}Decoder.greedy",
    "bos",
    always=0,
    cases="{Bahdanau,Luong}Decoder-greedy",
    red="*-greedy:weights",
    sentence="Greedy decoding begins with token 0.",
)
ignored("epsilon_of_keras", "adam", "epsilon", always=1e-7, red="adam-[!hz]*:*")
ignored("decays_ignored", "adam", "beta1 beta2", red="adam-decays:*")
ignored(
    "not_clipped",
    "clip_by_global_norm",
    "max_norm",
    cases="training-{short_sgd,unclipped} clip_by_global_norm-*",
    red="training-short_sgd:* clip_by_global_norm-[pth]*:clipped.*",
)
ignored(
    "decoder_sees_padding",
    "{Bahdanau,Luong,FixedContext}Decoder.call",
    "valid_lens",
    cases="Translator-{none,ragged}",
    red="Translator-ragged:*",
    green="*:gradient_decoder.dense.b",
    sentence="A translator's decoder attends to the padding of the sources.",
)
ignored(
    "epsilon_of_keras_norm",
    "LayerNorm",
    "epsilon",
    always=1e-3,
    cases="LayerNorm-*",
    touches=lambda case: case.inputs["inputs"].size > 0,
    sentence="epsilon is 1e-3, as in Keras.",
)
ignored(
    "epsilon_of_float32",
    "RMSNorm",
    "epsilon",
    always=2.0**-23,
    cases="RMSNorm-*",
    touches=lambda case: case.inputs["inputs"].size > 0,
    sentence="epsilon is the eps of float32, as in PyTorch.",
)
