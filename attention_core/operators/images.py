"""Images as sequences of patches, and a Transformer that reads them."""

from __future__ import annotations

from dataclasses import replace

from attention_core.errors import OptionError
from attention_core.operators.common import DOSOVITSKIY, NEED_WEIGHTS
from attention_core.operators.feed_forward import ACTIVATION, HIDDEN_FEATURES
from attention_core.operators.normalization import EPSILON
from attention_core.operators.transformer import _EMBEDDED_DROPOUT, _NUM_LAYERS, _STACKED, _stack_parts
from attention_core.operators.transformer_layers import (
    _ADDED_DROPOUT,
    _FEATURES,
    _HIDDEN_DROPOUT,
    _NUM_HEADS,
    _SELF_DROPOUT,
    _SELF_WEIGHTS,
    _SUBLAYERS,
    TRANSFORMER_ENCODER_LAYER,
    _layer_sizes,
    _of_layers,
)
from attention_core.rules import whole_patches
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Sizes, Tensor

IMAGES = Tensor("images", ("batch", "height", "width", "channels"), "numbers of each pixel, channels last")

PATCHES = Operator(
    name="patches",
    summary="Cut images into square patches, each as one vector.",
    formula=(
        "patches[b, i width/p + j, (r p + s) channels + c] = images[b, i p + r, j p + s, c];  "
        "p = patch_size, and r and s are from 0 to p - 1"
    ),
    source=DOSOVITSKIY,
    tensors=(IMAGES,),
    options=(Option("patch_size", "int", "height and width of a patch", keyword_only=True),),
    outputs=(
        Tensor(
            "patches",
            ("batch", "patches", "patch_features"),
            "the patches row by row, and so the pixels of each; its channels are neighbours",
        ),
    ),
    rules=(whole_patches,),
    notes="A projection of the patches is a convolution whose stride is the size of its kernel.",
)

# ------------------------------------------------------------------------------------------------ the layer

_FORMULA = (
    "logits = dense.W x[0] + dense.b;  x = [class_token; W_p patches(images) + b_p] + positions, then each of the "
    "layers with norm='pre', then the last norm"
)
_OPTIONS = {option.name: option for option in _SUBLAYERS}


def _of_patches(tensor: Tensor) -> Tensor:
    """A tensor of all layers, or of their inputs, whose steps are the class token and the patches."""
    return replace(tensor, axes=tuple("patches + 1" if axis == "steps" else axis for axis in tensor.axes))


def _sizes(config: Config) -> Sizes:
    for axis in ("height", "width"):
        if config[axis] % config["patch_size"]:
            raise OptionError(
                f"VisionTransformer: {axis} is {config[axis]}, expected a multiple of patch_size, which is "
                f"{config['patch_size']}. Crop or pad the images, or choose another patch_size."
            )
    steps = config["height"] // config["patch_size"] * (config["width"] // config["patch_size"]) + 1
    defaults = {option.name: option.value for option in TRANSFORMER_ENCODER_LAYER.options}
    stack = {"norm": "pre", "last_norm": None, "positions": "learned", "num_positions": steps}
    patch_features = config["patch_size"] ** 2 * config["channels"]
    return _layer_sizes({**defaults, **config, **stack, "patches + 1": steps, "patch_features": patch_features})


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    features = (sizes["features"],)
    return {
        "class_token": features,
        "W_p": (*features, sizes["patch_features"]),
        "b_p": features,
        "dense.W": (sizes["num_classes"], *features),
        "dense.b": (sizes["num_classes"],),
    }


VISION_TRANSFORMER = Layer(
    name="VisionTransformer",
    summary="Classify images by layers of self-attention over their patches.",
    formula=_FORMULA,
    source=DOSOVITSKIY,
    options=(
        Option("height", "int", "height of an image"),
        Option("width", "int", "width of an image"),
        Option("channels", "int", "channels of an image"),
        Option("patch_size", "int", "height and width of a patch"),
        Option("num_classes", "int", "number of classes"),
        _FEATURES,
        _NUM_HEADS,
        HIDDEN_FEATURES,
        _NUM_LAYERS,
        replace(ACTIVATION, default="'gelu'"),
        EPSILON,
        _OPTIONS["dropout"],
    ),
    parameters=(
        Parameter("class_token", ("features",), "the first step, from whose output classes are read", "features"),
        Parameter("W_p", ("features", "patch_features"), "projects a patch", "patch_features"),
        Parameter("b_p", ("features",), "biases of the projection", "patch_features"),
        Parameter("dense.W", ("num_classes", "features"), "weights of the logits", "features"),
        Parameter("dense.b", ("num_classes",), "biases of the logits", "features"),
    ),
    methods=(
        Operator(
            name="VisionTransformer.call",
            summary="Classify a batch of images.",
            formula=_FORMULA,
            source=DOSOVITSKIY,
            tensors=(IMAGES,),
            options=(NEED_WEIGHTS,),
            keyword_tensors=(
                _of_patches(replace(_EMBEDDED_DROPOUT, meaning="factor of class token and patches with positions")),
                *(_of_patches(_of_layers(mask)) for mask in (_SELF_DROPOUT, _HIDDEN_DROPOUT, _ADDED_DROPOUT)),
            ),
            outputs=(
                Tensor("logits", ("batch", "num_classes"), "scores of the classes (natural logarithm)"),
                _of_patches(_of_layers(_SELF_WEIGHTS)),
            ),
            notes="Step 0 is the class token, and step n + 1 is patch n.",
        ),
    ),
    complete=_sizes,
    own_shapes=_shapes,
    inside=lambda sizes: _stack_parts(TRANSFORMER_ENCODER_LAYER, sizes),
    parts={
        "positions": "the LearnedPositions of the class token and of the patches",
        "layers.{layer}": _STACKED["layers.{layer}"],
        "norm": "the last LayerNorm",
    },
)

OPERATORS = (PATCHES, VISION_TRANSFORMER)
